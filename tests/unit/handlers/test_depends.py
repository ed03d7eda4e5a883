"""Values that handlers ask for by `Depends`: in every style, once a call, cleaned up before the answer leaves."""

import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Annotated, Any, TypeVar

import anyio
import anyio.lowlevel
import pytest
from fast_depends import Depends
from fastapi import Depends as FastapiDepends
from fastapi import Header, Request, Security
from pydantic import JsonValue
from typing_extensions import TypeAliasType

from polybus import Bus, Channel, Context, Message, Peer, Router
from polybus._core.bus.bus import parts_of
from polybus._core.runtime import injection
from polybus.errors import BadRequest, Forbidden, NotFound, RequestError
from polybus.sync import BlockingBus, BlockingPeer
from polybus.sync import Context as BlockingContext
from polybus.testing import pair
from tests.support import eventually, let_expire

pytestmark = pytest.mark.native


def opens(diary: list[str], name: str) -> Callable[[], Iterator[str]]:
    def plain() -> Iterator[str]:
        diary.append(f"{name} opened")
        try:
            yield name
        except BaseException as error:
            diary.append(f"{name} saw {type(error).__name__}")
            raise
        finally:
            diary.append(f"{name} closed")

    return plain


def opens_on_the_loop(diary: list[str], name: str) -> Callable[[], AsyncIterator[str]]:
    async def of_the_loop() -> AsyncIterator[str]:
        diary.append(f"{name} opened")
        try:
            yield name
        except Exception as error:
            diary.append(f"{name} saw {type(error).__name__}")
            raise
        finally:
            await anyio.lowlevel.checkpoint()  # a clean-up that awaits
            diary.append(f"{name} closed")

    return of_the_loop


def with_diary() -> tuple[Bus, list[str], Any, Any]:
    """A bus, what has happened in order, and two functions that open and close something."""
    diary = list[str]()
    return Bus(), diary, Depends(opens_on_the_loop(diary, "session")), Depends(opens(diary, "file"))


USUAL = ["session opened", "file opened", "handled", "file closed", "session closed"]


async def by_request(client: Bus) -> Any:
    return [await client.request("asked", "x")]


async def by_stream(client: Bus) -> Any:
    async with client.stream("asked", "x") as stream:
        return [item async for item in stream]


async def by_channel(client: Bus) -> Any:
    async with client.channel("asked") as channel:
        await channel.send("x")
        await channel.send_eof()
        return [item async for item in channel]


@pytest.mark.parametrize(
    ("kind", "options", "ask"),
    [
        ("coroutine", {}, by_request),
        ("function", {}, by_request),
        ("function", {"inline": True}, by_request),
        ("items", {}, by_stream),
        ("talk", {}, by_channel),
        ("publication", {}, lambda client: client.publish("asked", "x")),
        ("coroutine", {}, lambda client: client.notify("asked", "x")),
    ],
)
async def test_handlers_of_each_kind_have_their_values_which_are_closed_before_the_answer_leaves(
    kind: str, options: dict[str, Any], ask: Callable[[Bus], Awaitable[Any]]
) -> None:
    bus, diary, session, file = with_diary()
    seen: list[threading.Thread] = []

    def function(key: str, one: Annotated[str, session], two: Annotated[str, file]) -> str:
        seen.append(threading.current_thread())
        diary.append("handled")
        return f"{key} of {one} and {two}"

    async def coroutine(key: str, one: Annotated[str, session], two: Annotated[str, file]) -> str:
        return function(key, one, two)

    async def items(key: str, one: Annotated[str, session], two: Annotated[str, file]) -> AsyncIterator[str]:
        yield function(key, one, two)

    async def talk(channel: Channel[str, str], one: Annotated[str, session], two: Annotated[str, file]) -> None:
        await channel.send(function(await anext(channel), one, two))

    handlers: dict[str, Any] = {each.__name__: each for each in (function, coroutine, items, talk)}
    (bus.on if kind == "publication" else bus.handle)("asked", **options)(handlers.get(kind, coroutine))
    async with pair(bus) as client:
        answers = await ask(client)
        if answers is None:  # to what is published and told
            await eventually(lambda: diary == USUAL)
        assert (answers, diary) in ((None, USUAL), (["x of session and file"], USUAL))
        if kind == "coroutine":
            diary.clear()
            assert await bus.request("asked", "x") == "x of session and file"  # of the bus itself
            assert diary == USUAL
    assert (seen[0] is threading.current_thread()) is (kind != "function" or "inline" in options)


async def test_a_clean_up_may_fail_or_choose_another_answer_but_not_swallow_the_error() -> None:
    bus = Bus()

    async def forbids() -> AsyncIterator[int]:
        try:
            yield 1
        except ZeroDivisionError:
            raise Forbidden("not today") from None

    async def swallows() -> AsyncIterator[int]:
        with suppress(NotFound):
            yield 1

    def swallows_in_a_thread() -> Iterator[int]:
        with suppress(NotFound):
            yield 1

    async def commits() -> AsyncIterator[int]:
        yield 1
        raise ZeroDivisionError("the commit failed")

    @bus.handle("divide")
    async def divide(by: Annotated[int, Depends(forbids)]) -> int:
        return by // 0

    @bus.handle("find")
    async def find(one: Annotated[int, Depends(swallows)], two: Annotated[int, Depends(swallows_in_a_thread)]) -> int:
        raise NotFound("nowhere")

    @bus.handle("save")
    async def save(session: Annotated[int, Depends(commits)]) -> int:
        return 1

    async with pair(bus) as client:
        with pytest.raises(Forbidden, match="not today"):
            await client.request("divide")
        with pytest.raises(NotFound, match="nowhere"):
            await client.request("find")
        assert bus.stats().failed == 0
        with pytest.raises(RequestError, match="internal error"):
            await client.request("save")
        assert bus.stats().failed == 1


@pytest.mark.parametrize("how", ["cancel", "deadline", "gone"])
@pytest.mark.parametrize("thread", [False, True])
async def test_they_are_closed_when_the_call_is_stopped(how: str, thread: bool) -> None:
    bus, diary, session, file = with_diary()
    begun, release = threading.Event(), threading.Event()

    async def wait(one: Annotated[str, session], two: Annotated[str, file]) -> None:
        begun.set()
        await anyio.sleep_forever()

    def wait_in_a_thread(one: Annotated[str, session], two: Annotated[str, file]) -> None:
        begun.set()
        release.wait(30)

    async def ask(seconds: float) -> None:
        await eventually(lambda: bus.stats().running == 0)
        diary.clear()
        await client.request("wait", timeout=seconds)

    bus.handle("wait")(wait_in_a_thread if thread else wait)
    async with pair(bus) as client:
        if how == "deadline":
            await let_expire(ask, begun.is_set)
        else:
            reply = client.request("wait")
            await eventually(begun.is_set)
            if how == "cancel":
                reply.cancel()
            else:
                await bus.peers[0].aclose("gone")
        if thread:
            await eventually(lambda: parts_of(bus).services.running.stopping == 1)
            assert diary == ["session opened", "file opened"]  # the thread has them still
            release.set()
        await eventually(lambda: "session closed" in diary)
    assert [line for line in diary[2:] if "saw" not in line] == ["file closed", "session closed"]


async def test_what_a_thread_opens_while_the_call_is_cancelled_is_closed_too() -> None:
    bus, diary, begun, release = Bus(), list[str](), threading.Event(), threading.Event()

    def opens_slowly() -> Iterator[str]:
        begun.set()
        release.wait(30)
        yield from opens(diary, "file")()

    @bus.handle("get")
    async def get(one: Annotated[str, Depends(opens_slowly)]) -> None:
        diary.append("handled")

    async with pair(bus) as client:
        await client.peers[0].extended()  # or more than the word that cancels would follow
        reply = client.request("get")
        await eventually(begun.is_set)
        before = bus.stats().received
        reply.cancel()
        await eventually(lambda: bus.stats().received > before)
        release.set()
        await eventually(lambda: "file closed" in diary)
    assert [line for line in diary if "saw" not in line] == ["file opened", "file closed"]


async def test_they_are_closed_after_the_generator_when_a_stream_is_left_early() -> None:
    bus, diary, session, file = with_diary()

    @bus.handle("items")
    async def items(one: Annotated[str, session], two: Annotated[str, file]) -> AsyncIterator[int]:
        try:
            while True:
                yield 1
        finally:
            await anyio.lowlevel.checkpoint()
            diary.append("handled")

    async with pair(bus) as client:
        async with client.stream("items") as stream:
            assert await anext(stream) == 1
        await eventually(lambda: "session closed" in diary)
    assert [line for line in diary if "saw Cancelled" not in line] == USUAL


async def test_a_task_group_may_be_a_value() -> None:
    bus, ran = Bus(), list[int]()

    async def group() -> AsyncIterator[anyio.abc.TaskGroup]:
        async with anyio.create_task_group() as tasks:
            yield tasks

    async def work(number: int) -> None:
        await anyio.lowlevel.checkpoint()
        ran.append(number)

    @bus.handle("start")
    async def start(number: int, tasks: Annotated[Any, Depends(group)]) -> None:
        tasks.start_soon(work, number)

    async with pair(bus) as client:
        await client.request("start", 7)
    assert ran == [7]


async def test_a_clean_up_after_a_cancel_has_seconds(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(injection, "_CLEAN_UP", 0.02)
    bus, begun = Bus(), anyio.Event()

    async def never_closes() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            await anyio.sleep_forever()

    @bus.handle("wait")
    async def wait(one: Annotated[int, Depends(never_closes)]) -> None:
        begun.set()
        await anyio.sleep_forever()

    async with pair(bus) as client:
        reply = client.request("wait")
        await begun.wait()
        reply.cancel()
        await eventually(lambda: "took more than 0.02 s" in caplog.text)
        assert bus.stats().running == 0
    assert "wait" in caplog.text


async def test_a_value_is_made_once_a_call_unless_it_says_otherwise() -> None:
    bus, made = Bus(), 0

    async def count(step: int = 1) -> int:  # a default is left to it
        nonlocal made
        made += step
        return made

    shared, own = Depends(count), Depends(count, use_cache=False)

    async def needs(one: Annotated[int, shared], two: Annotated[int, own]) -> list[int]:
        return [one, two]

    @bus.handle("get")
    async def get(one: Annotated[int, shared], two: Annotated[int, own], three: Annotated[Any, Depends(needs)]) -> list[Any]:
        return [one, two, three]

    async with pair(bus) as client:
        assert await client.request("get") == [1, 2, [1, 3]]
        assert await client.request("get") == [4, 5, [4, 6]]


async def of_the_loop(ctx: Context, message: Message, bus: Bus, peer: Peer | None, id: int) -> list[Any]:
    assert ctx.bus is bus
    assert ctx.peer is peer
    assert type(ctx) is Context
    return [message.subject, ctx.pattern, id]


def in_a_thread(ctx: BlockingContext, plain: Context, message: Message, bus: BlockingBus, peer: BlockingPeer | None) -> str:
    assert isinstance(plain, BlockingContext)
    assert isinstance(bus, BlockingBus)
    assert peer is None or isinstance(peer, BlockingPeer)
    answer: str = ctx.bus.request("whoami")
    return f"{answer} {message.subject}"


async def test_dependencies_are_given_what_handlers_are() -> None:
    bus = Bus()
    bus.handle("whoami", inline=True)(lambda: "me")

    @bus.on("order.{id}")
    async def on_order(
        body: Any, one: Annotated[list[Any], Depends(of_the_loop)], two: Annotated[str, Depends(in_a_thread)]
    ) -> None:
        seen.append((body, one, two))

    seen: list[Any] = []
    async with pair(bus) as client:
        await client.publish("order.7", "soup")
        await eventually(lambda: seen == [("soup", ["order.7", "order.{id}", 7], "me order.7")])
        await client.publish("order.seven", "soup")  # fits no int: skipped, as of a parameter of the handler
        await eventually(lambda: bus.stats().dropped == 1)


async def test_a_body_that_does_not_fit_opens_nothing_and_what_was_opened_is_closed_when_the_next_one_cannot_be_made() -> None:
    bus, diary, session, _ = with_diary()

    def fails() -> int:
        raise NotFound("no such tenant")

    @bus.handle("get")
    async def get(number: int, one: Annotated[str, session], two: Annotated[int, Depends(fails)]) -> None: ...

    async with pair(bus) as client:
        with pytest.raises(RequestError, match="invalid body"):
            await client.request("get", "seven")
        assert diary == []
        with pytest.raises(NotFound, match="no such tenant"):
            await client.request("get", 7)
    assert diary == ["session opened", "session saw NotFound", "session closed"]


async def real() -> str:
    return "real"


async def outer(inner: Annotated[str, Depends(real)]) -> str:
    return f"outer of {inner}"


def fake() -> Iterator[str]:
    yield "fake"


async def test_tests_put_others_in_their_place_on_one_bus() -> None:
    router = Router()

    @router.handle("get")
    async def get(one: Annotated[str, Depends(real)], two: Annotated[str, Depends(outer)]) -> list[str]:
        return [one, two]

    bus, second = Bus(), Bus()
    bus.include(router)
    second.include(router, prefix="v2.")
    async with pair(bus) as client, pair(second) as other:
        with bus.dependencies.override(real, fake):
            assert await client.request("get") == ["fake", "outer of fake"]
            assert await other.request("v2.get") == ["real", "outer of real"]
            with bus.dependencies.override(outer, lambda: "none"):
                assert await client.request("get") == ["fake", "none"]
            assert await client.request("get") == ["fake", "outer of fake"]
        with pytest.raises(ZeroDivisionError), bus.dependencies.override(real, fake):
            raise ZeroDivisionError
        assert await client.request("get") == ["real", "outer of real"]


@pytest.mark.parametrize(
    ("replacement", "text"),
    [("fake", "functions"), (outer, "depends on itself"), (lambda id: id, "needs 'id'")],
    ids=["no function", "itself", "unknown"],
)
def test_what_cannot_stand_in_is_refused(replacement: Any, text: str) -> None:
    with pytest.raises(TypeError, match=text), Bus().dependencies.override(real, replacement):
        raise AssertionError


class Page:
    def __init__(self, message: Message) -> None:
        self.subject = message.subject


async def test_marks_of_fastapi_are_taken_too() -> None:
    bus = Bus()

    @bus.handle("get")
    async def get(one: Annotated[str, FastapiDepends(outer)], page: Annotated[Page, FastapiDepends()]) -> list[Any]:
        return [one, page.subject]

    @bus.handle("old")
    async def old(one: str = FastapiDepends(outer), page: Page = FastapiDepends(Page)) -> list[Any]:  # noqa: B008
        return [one, page.subject]

    async with pair(bus) as client:
        assert await client.request("get") == ["outer of real", "get"]
        assert await client.request("old") == ["outer of real", "old"]


def wants_request(request: Request) -> None: ...
def wants_header(agent: Annotated[str, Header()]) -> None: ...
def wants_header_by_default(agent: str = Header()) -> None: ...
def wants_body(body: dict[str, Any]) -> None: ...
def wants_what_wants_request(url: Annotated[str, Depends(wants_request)]) -> None: ...
async def wants_a_blocking_bus(bus: BlockingBus) -> None: ...
def wants_a_bus_of_the_loop(bus: Bus) -> None: ...
async def wants_a_context_of_a_thread(ctx: BlockingContext) -> None: ...
async def one_of_two(other: Annotated[str, Depends(lambda: None)]) -> None: ...
async def other_of_two(one: Annotated[str, Depends(one_of_two)]) -> None: ...


one_of_two.__annotations__["other"] = Annotated[str, Depends(other_of_two)]


class Equal:
    __hash__ = None  # type: ignore[assignment]  # as @define leaves it

    def __call__(self) -> str:
        return "x"


@asynccontextmanager
async def decorated() -> AsyncIterator[str]:
    yield "x"


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (wants_request, "handler: wants_request, which it depends on, needs Request as 'request', .*no HTTP request"),
        (wants_header, "needs Header as 'agent'"),
        (wants_header_by_default, "needs Header as 'agent'"),
        (wants_what_wants_request, "wants_request, which it depends on, needs Request"),
        (wants_body, "needs 'body', which no call can provide: use Context, Message"),
        (wants_a_blocking_bus, "runs on the event loop: annotate 'bus' with polybus.Bus"),
        (wants_a_bus_of_the_loop, "runs in a thread: annotate 'bus' with polybus.sync.BlockingBus"),
        (wants_a_context_of_a_thread, "runs on the event loop: annotate 'ctx' with polybus.Context"),
        (one_of_two, "depends on itself, through one_of_two and other_of_two"),
        (decorated, "leave out @contextmanager or @asynccontextmanager"),
        (Equal(), "is not hashable, because its class defines __eq__: use @define"),
        ("session", "a function"),
    ],
)
def test_what_a_call_does_not_have_is_told_at_registration(function: Any, text: str) -> None:
    async def handler(one: Annotated[str, Depends(function)]) -> None: ...

    handler.__qualname__ = "handler"
    with pytest.raises(TypeError, match=text):
        Bus().handle("get")(handler)


@pytest.mark.parametrize("mark", [Depends, FastapiDepends, Security])
def test_depends_without_its_function_is_not_taken_for_the_body(mark: Any) -> None:
    async def asks(user: Annotated[str, mark]) -> None: ...
    async def by_default(user: Any = mark) -> None: ...
    async def inner(user: Annotated[str, Depends(asks)]) -> None: ...

    says = f"'user' has {mark.__name__} without its function: write {mark.__name__}\\(session\\)"
    for handler in (asks, by_default, inner):
        with pytest.raises(TypeError, match=says):
            Bus().handle("get")(handler)


async def test_a_dependency_that_cancels_its_call_itself_fails_it() -> None:
    bus = Bus()

    async def hurried() -> AsyncIterator[str]:
        with anyio.CancelScope() as scope:
            scope.cancel()
            yield "x"

    @bus.handle("get")
    async def get(one: Annotated[str, Depends(hurried)]) -> None:
        await anyio.sleep_forever()

    async with pair(bus) as client:
        with pytest.raises(RequestError, match="INTERNAL"):
            await client.request("get", timeout=20)
    assert bus.stats().failed == 1


named: Any = TypeAliasType  # types that are made at run time


@pytest.mark.parametrize("mark", [Depends, FastapiDepends])
@pytest.mark.parametrize(
    "around",
    [
        lambda hint: hint | None,
        lambda hint: list.__class_getitem__(hint),
        lambda hint: dict.__class_getitem__((str, hint | None)),
        lambda hint: named("User", hint) | None,
    ],
)
def test_depends_within_another_type_is_not_taken_for_the_body(mark: Any, around: Callable[[Any], Any]) -> None:
    async def handler(user=None) -> None: ...  # type: ignore[no-untyped-def]

    handler.__annotations__["user"] = around(Annotated[str, mark(lambda: "Ann")])
    with pytest.raises(
        TypeError, match=r"handler: 'user' has Depends within .*, where the peer would choose its value: write Ann"
    ):
        Bus().handle("get")(handler)


T = TypeVar("T")


async def test_a_named_type_gives_what_it_stands_for() -> None:
    bus, diary = Bus(), list[str]()

    @bus.handle("json")
    async def any_json(body: JsonValue) -> JsonValue:  # it contains itself, by its name
        return body

    async def handler(rows: Any, file: Any, ctx: Any) -> Any:
        return [rows, file, ctx.message.subject]

    handler.__annotations__ |= {
        "file": named("File", Annotated[str, Depends(opens(diary, "file"))]),
        "ctx": named("Here", Context | None),
        "rows": named("Rows", list.__class_getitem__(T), type_params=(T,))[int],
    }
    bus.handle("x")(handler)
    async with pair(bus) as client:
        assert await client.request("x", [1]) == [[1], "file", "x"]
        with pytest.raises(BadRequest):
            await client.request("x", "chosen by the peer")
        assert await client.request("json", [{"a": 1}]) == [{"a": 1}]
    assert diary == ["file opened", "file closed"]


@pytest.mark.parametrize("value", ["Nowhere", "Named"])
def test_a_named_type_that_stands_for_nothing_is_a_type_error(value: str) -> None:
    kind = named("Named", value)
    if value == "Named":  # that of itself
        kind = type("TypeAliasType", (), {})()
        kind.__value__ = kind

    async def handler(body) -> None: ...  # type: ignore[no-untyped-def]

    handler.__annotations__["body"] = kind
    with pytest.raises(TypeError, match="handler: .*'body'"):
        Bus().handle("x")(handler)


async def test_middleware_runs_around_all_of_it() -> None:
    bus, diary, session, file = with_diary()

    @bus.handle("get")
    async def get(one: Annotated[str, session], two: Annotated[str, file]) -> None:
        diary.append("handled")

    @bus.use
    async def around(message: Message, ctx: Context, call_next: Any) -> Any:
        diary.append("begin")
        try:
            return await call_next(message)
        finally:
            diary.append("end")

    async with pair(bus) as client:
        await client.request("get")
    assert diary == ["begin", *USUAL, "end"]
