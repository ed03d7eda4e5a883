"""Right and wrong programs with contracts, for `test_wrong_programs`, which reads the lines that type checkers reject.

``# wrong`` ends each line that they must reject; they must accept all others.
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from typing import Protocol, TypeVar, assert_type

import attrs

from polybus import Bus, Peer, Router, method, notify, sync

T_co = TypeVar("T_co", covariant=True)


@attrs.frozen
class GetUser:
    id: int


@attrs.frozen
class User:
    id: int
    name: str


class Users(Protocol):
    async def get(self, query: GetUser) -> User: ...

    def watch(self, query: GetUser) -> AsyncIterator[User]: ...

    @method("count.all", timeout=5)
    async def count(self) -> int: ...

    @notify
    async def touch(self, id: int) -> None: ...


class UsersForThreads(Protocol):
    def get(self, query: GetUser) -> User: ...

    def watch(self, query: GetUser) -> Iterator[User]: ...


class Rows(Protocol[T_co]):
    async def first(self) -> T_co: ...


async def a_client_has_the_methods_and_types_of_its_contract(bus: Bus, peer: Peer) -> None:
    users = bus.client(Users, "user")
    assert_type(users, Users)
    assert_type(await users.get(GetUser(7)), User)
    assert_type(await users.count(), int)
    async for user in users.watch(GetUser(7)):
        assert_type(user, User)
    await users.touch(7)
    assert_type(peer.client(Users), Users)
    assert_type(bus.user("ann").client(Users, "page"), Users)
    assert_type(bus.as_("ann").client(Users), Users)
    assert_type(await bus.client(Rows[User]).first(), User)
    assert_type(await bus.client(Rows[int], "rows").first(), int)


async def a_client_is_called_as_its_contract_says(bus: Bus) -> None:
    users = bus.client(Users, "user")
    await users.get({"id": 7})  # wrong
    await users.get()  # wrong
    await users.got(GetUser(7))  # wrong
    name: str = await users.count()  # wrong
    print(name)
    async for number in users.get(GetUser(7)):  # wrong
        print(number)
    await users.touch("7")  # wrong
    bus.client(Users, 7)  # wrong
    async with aclosing(users.watch(GetUser(7))) as found:  # wrong
        print(found)


def a_thread_has_a_contract_of_its_own(bus: sync.BlockingBus) -> None:
    users = bus.client(UsersForThreads, "user")
    assert_type(users.get(GetUser(7)), User)
    for user in users.watch(GetUser(7)):
        assert_type(user, User)
    users.get("7")  # wrong


class UsersInMemory(Users):
    async def get(self, query: GetUser) -> User:
        return User(query.id, "Ann")

    async def watch(self, query: GetUser) -> AsyncIterator[User]:
        yield User(query.id, "Ann")

    async def count(self) -> int:
        return 1

    async def touch(self, id: int) -> None:
        pass


class UsersElsewhere:
    async def get(self, query: GetUser) -> User:
        return User(query.id, "Ann")

    async def watch(self, query: GetUser) -> AsyncIterator[User]:
        yield User(query.id, "Ann")

    async def count(self) -> int:
        return 1

    async def touch(self, id: int) -> None:
        pass


class WrongUsers(Users):
    async def get(self, query: str) -> User:  # wrong
        return User(int(query), "Ann")

    async def watch(self, query: GetUser) -> AsyncIterator[int]:  # wrong
        yield query.id

    async def count(self) -> int:
        return 1

    async def touch(self, id: int) -> None:
        pass


class MissingUsers:
    async def get(self, query: GetUser) -> User:
        return User(query.id, "Ann")


def an_implementation_has_the_methods_of_its_contract(bus: Bus) -> None:
    bus.implement(Users, UsersInMemory(), "user")
    bus.implement(Users, UsersElsewhere(), "others")
    right: Users = UsersElsewhere()
    wrong: Users = MissingUsers()  # wrong
    bus.implement(Users, right, "right")
    bus.implement(Users, wrong, "wrong")


def a_router_implements_as_a_bus_does(router: Router) -> None:
    router.implement(Users, UsersInMemory(), "user")
    router.implement(Users, UsersInMemory(), 7)  # wrong
    router.implement(Users)  # wrong
    router.client(Users)  # wrong
