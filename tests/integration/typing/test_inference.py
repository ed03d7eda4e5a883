"""What type checkers know of the calls: mypy reads this file with `make lint`, pytest only imports it."""

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from functools import partial, wraps
from typing import Any, ParamSpec, assert_type

from attrs import frozen

import polybus.sync
from polybus import (
    Bus,
    Caller,
    Channel,
    Code,
    Context,
    Message,
    Peer,
    RemotePeer,
    Reply,
    RequestError,
    Retry,
    Router,
    Subject,
    Subscription,
    connect,
)
from polybus import (
    User as KnownUser,
)
from polybus.events import BusEvent
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


async def typed_verbs_of_other_parties(peer: Peer, remote: RemotePeer, user: KnownUser, caller: Caller, bus: Bus) -> None:
    for one in (peer, remote, user, caller):
        assert_type(await one.request(GET_USER, GetUser(7), retry=Retry()), User)
        assert_type(await one.request("user.get", returns=User), User)
        assert_type(await one.request("user.get"), Any)
        async with one.stream(GET_USER, GetUser(7)) as users, one.channel("talk", sends=GetUser, receives=User) as talk:
            assert_type(users, Channel[User, Any])
            assert_type(talk, Channel[User, GetUser])
        await one.notify(USER_NEW, User(7, "Ann"))
    await peer.notify(USER_NEW, User(7, "Ann"), to="//phone/CD/4")
    await bus.notify(USER_NEW, User(7, "Ann"), to="//phone/CD/4")
    await bus.notify("user.new", to=remote)
    for other in (peer, remote, user):
        await other.publish(USER_NEW, User(7, "Ann"))
    await bus.request(GET_USER, GetUser(7), to=remote)
    await bus.publish(USER_NEW, User(7, "Ann"), to=[peer, remote])
    await bus.publish(USER_NEW, User(7, "Ann"), to=await bus.present("room"))
    await bus.publish("user.new", {"id": 7})
    bus.publish_nowait(USER_NEW, Admin(7, "Ann", []), to=peer)
    async with bus.channel("talk", sends=GetUser) as sending:
        assert_type(sending, Channel[Any, GetUser])


async def whole_answers(bus: Bus) -> None:
    assert_type(await bus.request("user.get", returns=Message[User]), Message[User])
    assert_type((await bus.request(GET_USER, GetUser(7), returns=Message[User])).body, User)
    assert_type((await bus.request("user.get", returns=Message)).headers, dict[str, str] | None)


def blocking_verbs(bus: polybus.sync.BlockingBus, peer: polybus.sync.BlockingPeer, remote: RemotePeer) -> None:
    assert_type(bus.request(GET_USER, GetUser(7), retry=Retry()), User)
    assert_type(bus.as_("ann").request(GET_USER, GetUser(7)), User)
    assert_type(bus.user("ann").request("user.get", returns=User), User)
    assert_type(peer.request("user.get", returns=Message[User]).body, User)
    assert_type(bus.stream("count", 1, returns=int), polybus.sync.BlockingChannel[int, Any])
    assert_type(bus.subscribe("news", returns=User), polybus.sync.BlockingSubscription[User])
    assert_type(bus.events(), polybus.sync.BlockingItems[BusEvent])
    bus.publish(USER_NEW, User(7, "Ann"), to=[peer, remote])


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


# -- handlers of a Subject: each of these is right, and stays what it was ---------------------------------------------------


class Store:
    pass


@Router().handle(GET_USER)
async def body_alone(query: GetUser) -> User:
    return User(query.id, "Ann")


@Router().handle(GET_USER)
async def with_context(query: GetUser, ctx: Context) -> Admin:
    return Admin(query.id, "Ann", [])


@Router().handle(GET_USER)
async def context_first(ctx: Context[Store], query: GetUser) -> User:
    assert_type(ctx.state, Store)
    assert_type(ctx.answer_headers, dict[str, str])
    return User(query.id, "Ann")


@Router().handle(GET_USER)
async def three(bus: Bus, peer: Peer | None, query: GetUser, message: Message) -> User:
    return User(query.id, "Ann")


@Router().handle(GET_USER)
async def optional_context(query: GetUser, ctx: Context | None = None, *, peer: Peer | None = None) -> User:
    return User(query.id, "Ann")


@Router().handle(GET_USER)
async def no_body() -> User:
    return User(7, "Ann")


@Router().handle(GET_USER)
async def context_alone(ctx: Context) -> User:
    return User(7, "Ann")


@Router().handle(GET_USER)
async def two_injected(ctx: Context, peer: Peer | None) -> User:
    return User(7, "Ann")


@Router().handle(GET_USER)
def in_a_thread(query: GetUser, ctx: polybus.sync.Context) -> User:
    return User(query.id, "Ann")


@Router().handle(GET_USER, inline=True, running=2)
def in_place(bus: Bus) -> User:
    return User(7, "Ann")


@Router().handle(GET_USER)
def with_a_blocking_bus(bus: polybus.sync.BlockingBus) -> User:
    return User(7, "Ann")


@Router().handle(GET_USER)
async def anything(query: Any) -> User:
    return User(query.id, "Ann")


@Router().handle(GET_USER)
async def wider(query: GetUser | None) -> Any:
    return query


@Router().handle(GET_USER)
async def several(query: GetUser, ctx: Context) -> AsyncIterator[User]:
    yield User(query.id, "Ann")


@Router().handle(GET_USER)
async def conversation(channel: Channel[GetUser, User]) -> None:
    await channel.send(User(7, "Ann"))


@Router().handle(GET_USER)
async def conversation_with_context(ctx: Context, channel: Channel[GetUser, User]) -> None:
    await channel.send(User(7, "Ann"))


@Router().handle(USER_CHANGED)
async def nothing_back(user: User) -> None:
    pass


@Router().handle(USER_NEW)
async def whatever_back(user: User) -> str:
    return user.name


@Router().handle(LAST_USER)
async def of_nothing(ctx: Context) -> User:
    return User(7, "Ann")


@Router().handle(ANYTHING)
async def of_anything(ctx: Context, query: GetUser) -> User:
    return User(query.id, "Ann")


@Router().handle(PERHAPS)
async def of_a_union(user: User | None) -> User:
    return user or User(7, "Ann")


@Router().on(USER_NEW)
async def on_new(user: User) -> None:
    pass


@Router().on(USER_NEW, queue=3, when_full="latest")
def on_new_in_a_thread(ctx: polybus.sync.Context, user: User) -> None:
    pass


@Router().on(USER_NEW)
async def on_new_without_a_body(message: Message, ctx: Context) -> None:
    pass


@Router().on(Subject("news.{day}", str))
async def on_a_pattern(day: str, text: str) -> None:
    pass


P = ParamSpec("P")


def logged(function: Callable[P, Awaitable[User]]) -> Callable[P, Coroutine[Any, Any, User]]:
    @wraps(function)
    async def inner(*args: P.args, **kwargs: P.kwargs) -> User:
        return await function(*args, **kwargs)

    return inner


class Users:
    @Router().handle("user.static")
    @staticmethod
    async def static(query: GetUser) -> User:
        return User(query.id, "Ann")

    @logged
    async def get(self, query: GetUser, ctx: Context) -> User:
        return User(query.id, "Ann")

    async def scaled(self, factor: int, query: GetUser) -> User:
        return User(factor * query.id, "Ann")


Router().handle(GET_USER)(Users().get)
Router().handle(GET_USER)(partial(Users().scaled, 2))


def what_is_published_keeps_its_type() -> None:
    assert_type(Router().publishes(USER_NEW), Subject[User, Any])
    assert_type(bus.publishes("news.today", description="What happens."), Subject[Any, Any])


async def registered_functions_stay_what_they_were(ctx: Context[Store]) -> None:
    assert_type(await body_alone(GetUser(7)), User)
    assert_type(await with_context(GetUser(7), ctx=ctx), User)
    assert_type(await context_first(ctx, GetUser(7)), User)
    assert_type(await no_body(), User)
    assert_type(in_a_thread(GetUser(7), polybus.sync.Context(bus, Message(polybus.Kind.REQUEST))), User)
    async for user in several(GetUser(7), ctx):
        assert_type(user, User)
    await on_new(User(7, "Ann"))


async def test_a_registered_handler_stays_the_function_it_was() -> None:
    assert_type(await get_user(GetUser(7)), User)


def test_an_error_is_of_the_class_of_its_code() -> None:
    assert type(RequestError(Code.NOT_FOUND, "gone")).__name__ == "NotFound"
