"""What type checkers know of the calls: mypy reads this file with `make lint`, pytest only imports it."""

from typing import Any, assert_type

import pytest
from attrs import frozen

from polybus import Bus, Channel, Code, Reply, RequestError, Subject, connect


@frozen
class GetUser:
    id: int


@frozen
class User:
    id: int
    name: str


GET_USER = Subject("user.get", GetUser, User)


async def typed_calls(bus: Bus) -> None:
    by_subject = bus.request(GET_USER, GetUser(7))
    await assert_type(by_subject, Reply[User])
    assert_type(await by_subject, User)
    by_type = bus.request("user.get", {"id": 7}, returns=User)
    await assert_type(by_type, Reply[User])
    assert_type(await by_type, User)
    assert_type(await by_type.wait(), User)
    untyped = bus.request("user.get")
    await assert_type(untyped, Reply[Any])
    await untyped
    async with connect("ubre+memory://nobody") as client:
        assert_type(client, Bus)
    async with bus.connect("ubre+memory://nobody") as peer:
        asked = peer.request(GET_USER, GetUser(7))
        await assert_type(asked, Reply[User])
        await asked


bus = Bus()


@bus.handle("user.get")
async def get_user(query: GetUser) -> User:
    return User(query.id, "Ann")


@bus.handle("talk")
async def talk(channel: Channel[GetUser, User]) -> None:
    async for query in channel:
        assert_type(query, GetUser)
        await channel.send(User(query.id, "Ann"))


@pytest.mark.anyio
async def test_a_registered_handler_stays_the_function_it_was() -> None:
    assert_type(await get_user(GetUser(7)), User)


def test_an_error_is_of_the_class_of_its_code() -> None:
    assert type(RequestError(Code.NOT_FOUND, "gone")).__name__ == "NotFound"
