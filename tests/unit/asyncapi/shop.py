"""A bus with every feature that a document can show."""

import dataclasses
import enum
from collections.abc import AsyncIterator
from typing import Annotated, Any, NamedTuple, Protocol, TypedDict

import attrs
import msgspec
import pydantic

from polybus import Bus, Channel, Context, Subject, notify


class State(enum.Enum):
    COOKING = "cooking"
    READY = "ready"


@attrs.frozen
class GetUser:
    """Which user."""

    id: int


@attrs.frozen
class User:
    id: int
    name: str
    boss: "User | None" = None
    tags: list[str] = attrs.field(factory=list)


@dataclasses.dataclass
class Order:
    """An order of one article."""

    article: str
    amount: Annotated[int, msgspec.Meta(ge=1, le=99)] = 1


class Receipt(pydantic.BaseModel):
    text: str = pydantic.Field(description="What was ordered.")
    state: State


class Point(NamedTuple):
    x: float
    y: float = 0.0


class Filter(TypedDict, total=False):
    word: str


class Line(msgspec.Struct):
    number: int
    text: str


class Foreign:
    """Of another library."""


FIND = Subject("user.find", GetUser, User)
ORDER_PLACED = Subject("orders.placed", Order)


def make_bus(**options: Any) -> Bus:
    bus = Bus(**options)

    @bus.handle("user.get", running=4)
    async def get_user(query: GetUser, ctx: Context) -> User:
        """Find one user.

        Users that were removed are found for a month: see ``user.restore``.

        Args:
            query: Which.

        Raises:
            NotFound: There is no such user, or it was removed
                long ago.
            Conflict, ABORTED: It is being removed.
            ValueError: Never seen by a caller.
        """
        return User(query.id, "Ann")

    @bus.handle(FIND)
    async def find(query):  # type: ignore[no-untyped-def]
        return User(query.id, "Ann")

    @bus.handle("orders.place")
    async def place(order: Order) -> Receipt:
        return Receipt(text=order.article, state=State.COOKING)

    @bus.handle("orders.list")
    async def listed() -> list[Order]:
        return []

    @bus.handle("log.tail")
    async def tail(query: Filter) -> AsyncIterator[Line]:
        """Lines of the log as they are written."""
        yield Line(1, "one")

    @bus.handle("chat")
    async def chat(channel: Channel[Line, Point]) -> None:
        pass

    @bus.handle("anything")
    async def anything(body: Any) -> Any:
        return body

    @bus.handle("/body.access/1/rpc.open")
    async def open_door() -> None:
        pass

    @bus.handle(0x10001)
    async def numbered(body: bytes) -> bytes:
        return body

    @bus.on("news.{day}.>", group="printers")
    async def on_news(day: str, body: dict[str, int]) -> None:
        """Print the news.

        Args:
            day: As in ``monday``.
        """

    @bus.on("user.get")
    async def heard(body: str) -> None:
        pass

    bus.publishes(
        ORDER_PLACED,
        description="""Told for each order, after it was paid.

        Not for those that are cancelled within a minute.
        """,
    )
    bus.publishes(
        Subject("reading.{sensor}.>", Point),
        description="""Measured values.

        Args:
            sensor: Its number.
        """,
    )
    bus.publishes(Subject("user.get", User))
    return bus


class Users(Protocol):
    """The users of the shop."""

    async def get(self, query: GetUser) -> User:
        """Find one user.

        Raises:
            NotFound: There is no such user.
        """
        ...

    def watch(self, first: int) -> AsyncIterator[User]: ...

    @notify
    async def touch(self, id: int) -> None: ...


class UsersInMemory(Users):
    async def get(self, query: GetUser) -> User:
        return User(query.id, "Ann")

    async def watch(self, first: int) -> AsyncIterator[User]:
        """Users that come.

        The words of the implementation count.
        """
        yield User(first, "Ann")

    async def touch(self, id: int) -> None:
        pass
