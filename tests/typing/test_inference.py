"""What type checkers know of the calls: mypy reads this file with `make lint`, pytest only imports it."""

from collections.abc import Awaitable
from typing import Any, assert_type

import pytest
from attrs import frozen

from polybus import Bus, Channel, Code, Message, Peer, Reply, RequestError, Subject, Subscription, connect
from polybus.plugins import ProtocolAdapter
from polybus.protocols import Csb, Jrep, Ubre, UProtocol


@frozen
class GetUser:
    id: int


@frozen
class User:
    id: int
    name: str


@frozen
class PreciseGetUser(GetUser):
    fields: list[str]


@frozen
class Admin(User):
    rights: list[str]


GET_USER = Subject("user.get", GetUser, User)
USER_NEW = Subject("user.new", User)
USER_CHANGED = Subject("user.changed", User, None)
LAST_USER = Subject("user.last", None, User)
ANY_USER = Subject("user.any", returns=User)
ANYTHING = Subject("anything")
PERHAPS = Subject("user.perhaps", User | None, User)


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


async def typed_subjects(bus: Bus) -> None:
    assert_type(USER_NEW, Subject[User, Any])
    assert_type(USER_CHANGED, Subject[User, None])
    assert_type(LAST_USER, Subject[None, User])
    assert_type(ANY_USER, Subject[Any, User])
    assert_type(ANYTHING, Subject[Any, Any])
    assert_type(PERHAPS, Subject[Any, Any])
    async with bus.subscribe(USER_CHANGED) as new:
        assert_type((await new.receive()).body, User)
    assert_type(await bus.request(LAST_USER), User)


async def typed_subscriptions(bus: Bus, peer: Peer) -> None:
    async with bus.subscribe("user.new", returns=User) as by_type, bus.subscribe(GET_USER) as by_subject:
        assert_type(by_type, Subscription[User])
        async for message in by_type:
            assert_type(message, Message[User])
            assert_type(message.body, User)
        assert_type((await anext(by_subject)).body, GetUser)
    async with peer.subscribe("user.new", returns=User) as of_one, peer.subscribe("user.>") as untyped:
        assert_type((await anext(of_one)).body, User)
        assert_type((await anext(untyped)).body, Any)
        wider: Subscription[User | None] = of_one
        await anext(wider)
        narrower: Subscription[Admin] = of_one  # type: ignore[assignment]
        await anext(narrower)


async def typed_channels(bus: Bus) -> None:
    async with bus.stream(GET_USER, GetUser(7)) as users, bus.stream("log", returns=str) as lines:
        assert_type(users, Channel[User, Any])
        assert_type(lines, Channel[str, Any])
    async with bus.channel(GET_USER) as asking, bus.channel("talk", receives=User) as talk, bus.channel("talk") as untyped:
        assert_type(asking, Channel[User, GetUser])
        assert_type(talk, Channel[User, Any])
        assert_type(untyped, Channel[Any, Any])


def a_plain_message_is_one_of_anything(message: Message) -> None:
    assert_type(message.body, Any)


def protocols_are_adapters() -> list[ProtocolAdapter]:
    """So that `connect(url, protocol=Ubre(format="binary"))` is right for everybody's type checker."""
    return [Csb(), Jrep(), Ubre(), UProtocol()]


async def what_is_wanted_back_may_be_more_general(bus: Bus) -> None:
    """A `Subject` takes less and gives more where that is asked for; a `Reply` gives more; a `Channel` is both."""
    general: Awaitable[object] = bus.request(GET_USER, GetUser(7))
    await general
    reply: Reply[User] = bus.request(GET_USER, GetUser(7))
    wider: Reply[User | None] = reply
    await wider
    _takes_less: Subject[PreciseGetUser, User | None] = GET_USER
    _takes_more: Subject[object, User] = GET_USER  # type: ignore[assignment]  # not everything is a question
    _gives_less: Subject[GetUser, Admin] = GET_USER  # type: ignore[assignment]  # not every user is one
    narrower: Reply[Admin] = reply  # type: ignore[assignment]
    await narrower


def a_channel_may_be_more_general(channel: Channel[Admin, User]) -> None:
    _general: Channel[User, Admin] = channel
    _reads_less: Channel[Admin, object] = channel  # type: ignore[assignment]  # it sends users
    _writes_less: Channel[PreciseGetUser, User] = channel  # type: ignore[assignment]  # it reads admins


def any_subject_is_a_subject_of_something(subjects: list[Subject[Any, object]]) -> None:
    subjects.append(GET_USER)


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
