"""A contract and its implementation."""

from collections.abc import AsyncIterator
from typing import Protocol

from attrs import frozen

from polybus import Context, NotFound, notify


@frozen
class User:
    id: int
    name: str = "Ann"


class Users(Protocol):
    async def get(self, id: int) -> User:
        """Find a user."""
        ...

    async def count(self) -> int: ...

    def watch(self, id: int) -> AsyncIterator[User]: ...

    @notify
    async def touch(self, id: int) -> None: ...


class UsersInMemory(Users):
    def __init__(self) -> None:
        self.touched: list[tuple[int, str | int]] = []
        self.watching = 0

    async def get(self, id: int) -> User:
        if id == 0:
            raise NotFound("no user 0")
        return User(id)

    async def count(self) -> int:
        return 2

    async def watch(self, id: int) -> AsyncIterator[User]:
        self.watching += 1
        try:
            for number in range(id):
                yield User(number)
        finally:
            self.watching -= 1

    async def touch(self, id: int, ctx: Context | None = None) -> None:
        assert ctx is not None
        self.touched.append((id, ctx.message.subject))
