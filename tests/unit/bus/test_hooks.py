"""Hooks are checked when they are given, as handlers are, and name themselves when they fail."""

import logging
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
from fastapi import HTTPException

from polybus import Bus, CallNext, Context, Message, NoHandler, NotFound, RemoteError, RequestError, Route
from polybus.broker import Broker
from polybus.testing import pair

FUNCTIONS: list[Callable[..., Any]] = [
    lambda: None, lambda a: None, lambda a, b: None, lambda a, b, c: None, lambda a, b, c, d: None,
]  # fmt: skip
"""Functions by the number of arguments that they take."""
HOOKS: dict[str, tuple[Callable[[Any], object], int]] = {
    "authenticate": (lambda hook: Bus(authenticate=hook), 1), "authorize": (lambda hook: Bus(authorize=hook), 3),
    "lifespan": (lambda hook: Bus(lifespan=hook), 1), "middleware": (lambda hook: Bus().use(hook), 3),
    "outgoing hook": (lambda hook: Bus().use(hook, outgoing=True), 1),
    "converter of requests": (lambda hook: Route("a", "b", request=hook), 2),
    "converter of replies": (lambda hook: Route("a", "b", reply=hook), 2),
    "authenticate of a broker": (lambda hook: Broker("csb+memory://c", "csb+memory://s", authenticate=hook), 1),
}  # fmt: skip


def generating(*given: Any) -> Any:
    yield False


async def generating_async(*given: Any) -> Any:
    yield False


@pytest.mark.parametrize("name", HOOKS)
def test_a_hook_with_another_number_of_arguments_is_a_type_error_when_it_is_given(name: str) -> None:
    give, takes = HOOKS[name]
    for number, function in enumerate(FUNCTIONS):
        for hook in (function, partial(function)):
            if number == takes:
                give(hook)
            else:
                with pytest.raises(TypeError, match="a function, .*, but it takes "):
                    give(hook)
    give(lambda *given: None)
    for yields in (generating, generating_async):  # what they give would count as true
        with pytest.raises(TypeError, match="yield|@asynccontextmanager"):
            give(yields)
    with pytest.raises(TypeError, match="a function"):
        give("text")


def test_authorize_may_take_the_message_and_no_other_name() -> None:
    Bus(authorize=lambda peer, verb, subject, message: True)
    Bus(authorize=lambda peer, verb, subject, *, message=None: True)
    with pytest.raises(TypeError, match="a function, authorize"):
        Bus(authorize=lambda peer, verb, subject, *, body: True)


def test_a_class_as_authorize_is_refused_because_its_objects_would_allow_everything() -> None:
    class Rule:
        def __init__(self, peer: object, verb: str, subject: object) -> None: ...

    with pytest.raises(TypeError, match="allow everything"):
        Bus(authorize=Rule)  # type: ignore[arg-type]


async def nothing(*given: object) -> None: ...


@pytest.mark.parametrize("function", [generating_async, nothing])
def test_a_lifespan_gives_an_async_context_manager(function: Any) -> None:
    Bus(lifespan=asynccontextmanager(generating_async))
    with pytest.raises(TypeError, match="@asynccontextmanager"):
        Bus(lifespan=function)


@pytest.mark.parametrize(
    ("keyword", "says"),
    [("durable", "bus.on"), ("group", "bus.on"), ("timeout", "caller"), ("runing", "did you mean running=")],
)
def test_an_argument_that_handle_does_not_have_names_where_it_belongs(keyword: str, says: str) -> None:
    given: Any = {keyword: 1}
    with pytest.raises(TypeError, match=says):
        Bus().handle("a", **given)


async def before(message: Message, ctx: Context, call_next: CallNext) -> Any:
    raise KeyError("before")


async def after(message: Message, ctx: Context, call_next: CallNext) -> Any:
    await call_next(message)
    raise KeyError("after")


async def around(message: Message, ctx: Context, call_next: CallNext) -> Any:
    return await call_next(message)


async def forgetful(message: Message, ctx: Context, call_next: CallNext) -> Any:
    await call_next(message)


def plain(message: Message, ctx: Context, call_next: CallNext) -> Awaitable[Any]:
    return call_next(message)


def silent(message: Message, ctx: Context, call_next: CallNext) -> Any: ...


def dividing(*middleware: Any) -> Bus:
    bus = Bus()

    @bus.handle("a")
    async def answer(number: int) -> int:
        return 1 // number

    @bus.handle("b")
    def in_a_thread(number: int) -> int:
        return 1 // number

    for one in middleware:
        bus.use(one)
    return bus


@pytest.mark.parametrize("subject", ["a", "b"])
@pytest.mark.parametrize(
    ("middleware", "body", "says"),
    [
        ([before], 1, "the middleware before failed at"),
        ([around, before, around], 1, "the middleware before failed at"),
        ([around, after, around], 1, "the middleware after failed at"),
        ([around, around], 0, "handler of"),
        ([plain, around], 0, "handler of"),
        ([], 0, "handler of"),
        ([silent], 1, "the middleware silent returned None, which cannot be awaited"),
    ],
)
async def test_a_failure_names_the_middleware_that_raised_it_or_else_the_handler(
    middleware: list[Any], body: int, says: str, subject: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with pair(dividing(*middleware)) as client:
        with pytest.raises(RemoteError):
            await client.request(subject, body)
    assert says in caplog.text


async def test_a_middleware_that_keeps_the_answer_for_itself_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    bus = dividing(around, forgetful)
    bus.check_answers = False
    async with pair(bus) as client:
        for _ in range(3):
            assert await client.request("a", 1) is None
    assert caplog.text.count("the middleware forgetful returns None instead of the handler's answer") == 1


@pytest.mark.parametrize("hook", [FUNCTIONS[3], nothing], ids=["plain", "async"])
async def test_authorize_that_forgets_to_answer_is_told(hook: Any, caplog: pytest.LogCaptureFixture) -> None:
    bus = Bus(authorize=hook)
    bus.handle("a")(lambda: 1)
    async with pair(bus, identity="ann") as client:
        with pytest.raises(RequestError):
            await client.request("a")
    assert "returned None, which refuses" in caplog.text


async def test_what_an_asker_may_have_meant_is_told_to_the_server_alone(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    bus = Bus()
    bus.handle("Greet.ann")(lambda: 1)
    bus.on("news.{day}")(lambda day: None)
    async with pair(bus) as client:
        for subject, told in (("greet.ann", "'Greet.ann'"), ("news.today", "an `on` handler receives it")):
            caplog.clear()
            with pytest.raises(NoHandler) as caught:
                await client.request(subject)
            assert told in caplog.text
            assert "Greet.ann" not in str(caught.value)


async def test_an_error_that_is_returned_or_of_a_web_framework_says_what_to_raise(caplog: pytest.LogCaptureFixture) -> None:
    bus = Bus()

    @bus.handle("returned")
    async def returned() -> Any:
        return NotFound("no order 9")

    @bus.handle("of a web framework")
    async def raised() -> None:
        raise HTTPException(404, "no such order")

    async with pair(bus) as client:
        for subject, told in (("returned", "raise it"), ("of a web framework", "on the bus raise polybus.NotFound in its")):
            with pytest.raises(RemoteError):
                await client.request(subject)
            assert told in caplog.text
            caplog.clear()
