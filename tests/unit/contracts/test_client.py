"""Clients of a contract: its methods ask, tell and iterate as the verbs of a bus do."""

import copy
import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from typing import Annotated, Any, Protocol, TypeVar, assert_type

import anyio
import pytest

from polybus import BadReply, BadRequest, Bus, Context, DeadlineExceeded, Identity, NoHandler, NotFound, Peer, method
from polybus.contracts.client import ItemStream
from polybus.contracts.contract import ContractPlan
from polybus.plugins.extensions import core_of
from polybus.testing import pair
from tests.support import eventually

from .users import User, Users, UsersInMemory

T_co = TypeVar("T_co", covariant=True)


async def test_the_subjects_are_the_prefix_a_dot_and_the_name() -> None:
    bus = Bus()
    bus.implement(Users, UsersInMemory(), "user")
    async with pair(bus) as client:
        users = client.client(Users, "user")
        assert_type(users, Users)
        assert await users.get(7) == await client.request("user.get", 7, returns=User) == User(7, "Ann")
        assert await client.request("user.count") == 2
        with pytest.raises(NoHandler):
            await client.client(Users).get(7)


class Ticks(Protocol):
    def ticks(self, first: int) -> AsyncGenerator[int, None]: ...


class EndlessTicks:
    def __init__(self) -> None:
        self.running = 0
        self.begun: list[int] = []

    async def ticks(self, first: int) -> AsyncGenerator[int, None]:
        self.running += 1
        self.begun.append(first)
        try:
            while True:
                yield first
                first += 1
        finally:
            self.running -= 1


async def test_a_generator_can_be_closed_at_once() -> None:
    bus, endless = Bus(), EndlessTicks()
    bus.implement(Ticks, endless, "clock")
    async with pair(bus) as client:
        clock = client.client(Ticks, "clock")
        async with aclosing(clock.ticks(5)) as ticks:
            assert [await anext(ticks), await anext(ticks)] == [5, 6]
            assert await ticks.asend(None) == 7
        with pytest.raises(StopAsyncIteration):
            await anext(ticks)
        await eventually(lambda: endless.running == 0)
        thrown = clock.ticks(1)
        await anext(thrown)
        with pytest.raises(LookupError):
            await thrown.athrow(LookupError("mine"))
        await eventually(lambda: endless.running == 0)
        with pytest.raises(TypeError, match="a stream does not accept items"):
            await clock.ticks(1).asend(3)  # type: ignore[arg-type]


@pytest.mark.parametrize("fails", ["NOT_FOUND", "BAD_REPLY"])
async def test_a_stream_that_has_failed_has_ended(fails: str) -> None:
    class Numbers(Protocol):
        def count(self) -> AsyncIterator[int]: ...

    server, left = Bus(), anyio.Event()

    @server.handle("n.count")
    async def count() -> AsyncIterator[Any]:
        try:
            yield 1
            if fails == "NOT_FOUND":
                raise NotFound("no more")
            yield "two"
            await anyio.sleep_forever()
        finally:
            left.set()

    async with pair(server) as client:
        numbers = client.client(Numbers, "n").count()
        assert await anext(numbers) == 1
        with pytest.raises(NotFound if fails == "NOT_FOUND" else BadReply):
            await anext(numbers)
        with anyio.fail_after(5):
            await left.wait()  # though `numbers` is still held
        for _ in range(2):
            with pytest.raises(StopAsyncIteration):
                await anext(numbers)


async def test_a_stream_that_is_closed_while_it_is_opened_stops_its_handler() -> None:
    bus, endless, entered, opened = Bus(), EndlessTicks(), anyio.Event(), anyio.Event()
    bus.implement(Ticks, endless, "clock")

    class Opening:
        async def __aenter__(self) -> Any:
            entered.set()
            await opened.wait()
            return await client.stream("clock.ticks", 1).__aenter__()

    async def read() -> None:
        with pytest.raises(StopAsyncIteration):
            await anext(items)

    opening: Any = Opening()
    items: ItemStream[int] = ItemStream(opening)
    async with pair(bus) as client:
        async with anyio.create_task_group() as group:
            group.start_soon(read)
            await entered.wait()
            await items.aclose()
            assert endless.begun == []
            opened.set()
        await eventually(lambda: not core_of(client.peers[0]).channels)
        assert endless.running == 0


async def test_a_stream_that_nobody_reads_is_not_opened() -> None:
    bus, endless = Bus(), EndlessTicks()
    bus.implement(Ticks, endless, "clock")
    async with pair(bus) as client:
        clock = client.client(Ticks, "clock")
        left = clock.ticks(1)
        await left.aclose()
        with pytest.raises(StopAsyncIteration):
            await anext(left)
        async with aclosing(clock.ticks(5)) as ticks:
            await anext(ticks)
        assert endless.begun == [5]


class Slow(Protocol):
    @method("find.one", timeout=0.01)
    async def get(self, id: int) -> int: ...

    @method("stream.all", timeout=0.01)
    def all(self) -> AsyncIterator[int]: ...

    async def usual(self) -> float | None: ...

    def endless(self) -> AsyncIterator[float | None]: ...


class NeverAnswers:
    async def get(self, id: int) -> int:
        await anyio.sleep_forever()
        return id

    async def all(self) -> AsyncIterator[int]:
        await anyio.sleep_forever()
        yield 1

    async def usual(self, ctx: Context) -> float | None:
        return ctx.message.ttl

    async def endless(self, ctx: Context) -> AsyncIterator[float | None]:
        yield ctx.message.ttl


async def test_a_method_has_the_name_and_the_time_that_its_contract_says() -> None:
    bus = Bus()
    bus.implement(Slow, NeverAnswers(), "user")
    async with pair(bus) as client:
        slow = client.client(Slow, "user")
        with pytest.raises(DeadlineExceeded, match=r"user\.find\.one"):
            await slow.get(7)
        with pytest.raises(DeadlineExceeded):
            await anext(slow.all())
        assert await slow.usual() == pytest.approx(30)
        assert (await anext(slow.endless()) or 60) > 30, "only as long as this test"


class Rows(Protocol[T_co]):
    async def first(self) -> T_co: ...

    def all(self) -> AsyncIterator[T_co]: ...


class UserRows(Rows[User], Protocol):
    async def second(self) -> User: ...


class TwoUsers:
    async def first(self) -> User:
        return User(1, "Ann")

    async def second(self) -> User:
        return User(2, "Bob")

    async def all(self) -> AsyncIterator[User]:
        yield await self.first()
        yield await self.second()


async def test_a_contract_may_be_generic_and_may_inherit() -> None:
    bus = Bus()
    bus.implement(UserRows, TwoUsers(), "rows")
    async with pair(bus) as client:
        rows, users = client.client(Rows[User], "rows"), client.client(UserRows, "rows")
        assert_type(await rows.first(), User)
        assert [user async for user in rows.all()] == [await rows.first(), await users.second()]
        assert await users.first() == User(1, "Ann")


class Columns(Protocol[T_co]):
    async def column(self) -> T_co: ...


class Table(Rows[int], Columns[str], Protocol):
    """Two bases, whose type variable is the same one and stands for two types."""


class Groups(Rows[Sequence[T_co]], Protocol[T_co]):
    async def one(self) -> T_co: ...


class UserGroups(Groups[User], Protocol):
    """A base whose base has a type of its own for the same type variable."""


@pytest.mark.parametrize(
    ("contract", "types"),
    [
        (Table, {"column": str, "first": int, "all": int}),
        (Groups[int], {"first": Sequence[int], "all": Sequence[int], "one": int}),
        (UserGroups, {"first": Sequence[User], "all": Sequence[User], "one": User}),
    ],
)
def test_a_type_variable_stands_for_what_each_base_is_given(contract: Any, types: dict[str, Any]) -> None:
    assert {method.attribute: method.returns for method in ContractPlan.of(contract).methods} == types


async def test_a_type_needs_no_hash() -> None:
    metres = Annotated[int, {"unit": "m"}]

    class Rows(Protocol[T_co]):
        async def get(self, id: metres) -> T_co: ...

    class Doubled:
        async def get(self, id: metres) -> metres:
            return 2 * id

    bus = Bus()
    bus.implement(Rows[metres], Doubled(), "row")
    async with pair(bus) as client:
        rows = client.client(Rows[metres], "row")
        assert await rows.get(7) == 14
        with pytest.raises(BadRequest, match="Expected `int`, got `str`"):
            await client.request("row.get", "seven")


class Defaults(Protocol):
    async def greet(self, name: str = ...) -> str: ...


class Greets:
    async def greet(self, name: str = "nobody") -> str:
        return f"Hello, {name}"


async def test_a_default_is_that_of_the_implementation() -> None:
    bus = Bus()
    bus.implement(Defaults, Greets())
    async with pair(bus) as client:
        greeter = client.client(Defaults)
        assert await greeter.greet() == "Hello, nobody"
        assert await greeter.greet("Ann") == await greeter.greet(name="Ann") == "Hello, Ann"


async def test_a_wrong_call_fails_as_that_of_a_function() -> None:
    async with pair(Bus()) as client:
        users: Any = client.client(Users, "user")
        calls: list[tuple[Callable[[], Any], str]] = [
            (lambda: users.get(), r"Users\.get: missing a required argument: 'id'"),
            (lambda: users.get(1, 2), r"Users\.get: too many positional arguments"),
            (lambda: users.get(1, no=1), r"Users\.get: got an unexpected keyword argument 'no'"),
            (lambda: users.count(1), r"Users\.count: too many positional arguments"),
            (lambda: users.touch(), r"Users\.touch: missing"),
            (lambda: users.watch(), r"Users\.watch: missing"),
        ]
        for call, says in calls:
            with pytest.raises(TypeError, match=says):
                await call()
        with pytest.raises(AttributeError, match="Users has no method 'gte'; it has get, count, watch, touch"):
            users.gte  # noqa: B018


async def test_a_client_shows_what_it_is() -> None:
    async with pair(Bus()) as client:
        users = client.client(Users, "user")
        assert repr(users).startswith("<client of Users at 'user' by <Bus ready")
        assert inspect.iscoroutinefunction(users.get)
        assert list(inspect.signature(users.get).parameters) == ["id"]
        assert users.get.__doc__ == "Find a user."
        assert users.get.__name__ == "get"


async def test_each_of_those_who_ask_makes_clients() -> None:
    page = Bus()
    page.implement(Users, UsersInMemory(), "page")
    peers, asked_by = list[Peer](), list[Any]()

    class Asked(UsersInMemory):
        async def get(self, id: int, ctx: Context | None = None) -> User:
            assert ctx is not None
            asked_by.append(ctx.identity)
            if ctx.peer is not None:
                peers.append(ctx.peer)
            return await super().get(id)

    bus = Bus(authenticate=lambda _: "ann")
    bus.implement(Users, Asked(), "user")
    async with pair(bus, client=page, identity=Identity("ann", key="ann")) as client:
        await client.client(Users, "user").get(1)
        (peer,) = peers
        assert await peer.client(Users, "page").get(3) == User(3, "Ann")
        assert await bus.as_("bob").client(Users, "user").get(4) == User(4, "Ann")
        assert await bus.user("ann").client(Users, "page").get(5) == User(5, "Ann")
        assert asked_by == ["ann", "bob"]
        assert [user.id async for user in bus.as_("bob").client(Users, "user").watch(2)] == [0, 1]
        assert [user.id async for user in peer.client(Users, "page").watch(2)] == [0, 1]


async def test_the_methods_of_a_contract_are_asked_at_the_own_bus_too_also_by_copies_of_a_client() -> None:
    bus, users = Bus(), UsersInMemory()
    bus.implement(Users, users, "user")
    async with bus:
        own = bus.client(Users, "user")
        for asked in (own, copy.copy(own), copy.deepcopy(own)):
            assert await asked.get(7) == User(7, "Ann")
        assert [user.id async for user in own.watch(2)] == [0, 1]
        await own.touch(3)
        await eventually(lambda: users.touched == [(3, "user.touch")])
