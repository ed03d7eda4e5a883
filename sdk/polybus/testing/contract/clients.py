"""Contracts of methods: clients and implementations of a Protocol class."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Protocol

import attrs
import pytest

from ... import BadRequest, Bus, NotFound, method, notify
from ._base import Contract, eventually, needs


@attrs.frozen
class GetUser:
    id: int


@attrs.frozen
class User:
    id: int
    name: str


class Users:
    """An implementation of all that the tests ask for."""

    def __init__(self) -> None:
        self.touched: list[int] = []
        self.watching: int = 0

    async def get(self, query: GetUser) -> User:
        if query.id == 0:
            raise NotFound("no user 0")
        return User(query.id, "Ann")

    async def count(self) -> int:
        return 2

    async def touch(self, id: int) -> None:
        self.touched.append(id)

    async def watch(self, query: GetUser) -> AsyncIterator[User]:
        self.watching += 1
        try:
            for number in range(query.id):
                yield User(number, "Ann")
        finally:
            self.watching -= 1


class ClientContract(Contract):
    """`client` and `implement`."""

    async def test_the_methods_of_a_contract_are_asked_and_answered(self) -> None:
        class Asked(Protocol):
            @method(self.subject("user.get"))
            async def get(self, query: GetUser) -> User: ...

            @method(self.subject("user.count"))
            async def count(self) -> int: ...

        bus = Bus()
        bus.implement(Asked, Users())
        async with self.joined(bus) as client:
            users: Any = client.client(Asked)
            assert await users.get(GetUser(7)) == User(7, "Ann")
            assert await users.get(query=GetUser(8)) == User(8, "Ann")
            assert await users.count() == 2
            with pytest.raises(NotFound):
                await users.get(GetUser(0))
            with pytest.raises(BadRequest):
                await users.get({"id": "seven"})

    @needs("notifications")
    async def test_a_notification_of_a_contract_arrives(self) -> None:
        class Told(Protocol):
            @method(self.subject("user.touch"))
            @notify
            async def touch(self, id: int) -> None: ...

        bus, users = Bus(), Users()
        bus.implement(Told, users)
        async with self.joined(bus) as client:
            told: Any = client.client(Told)
            await told.touch(7)
            await eventually(lambda: users.touched == [7])

    @needs("extensions")
    async def test_a_stream_of_a_contract_gives_its_items_and_stops_where_it_is_left(self) -> None:
        class Watched(Protocol):
            @method(self.subject("user.watch"))
            def watch(self, query: GetUser) -> AsyncIterator[User]: ...

        bus, users = Bus(), Users()
        bus.implement(Watched, users)
        async with self.joined(bus) as client:
            watched: Any = client.client(Watched)
            assert [user.id async for user in watched.watch(GetUser(3))] == [0, 1, 2]
            async for user in watched.watch(GetUser(1_000_000)):
                if user.id == 3:
                    break
            await eventually(lambda: users.watching == 0)
