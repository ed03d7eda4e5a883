"""No handler, hook or dependency ends a bus by what it raises; one of which a task fails all the same closes and says so."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from functools import partial
from typing import Annotated, Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
from fast_depends import Depends

from polybus import Broker, Bus, Cluster, Context, Limits, Message, Route, Store, bridge, connect, sync
from polybus._core.bus.bus import parts_of
from polybus.errors import BusError, LocalProtocolError
from polybus.testing import NatsEngine
from tests.loops import both_backends  # noqa: F401
from tests.support import eventually

pytestmark = pytest.mark.native


class Odd(BaseException):
    """As the outcomes of pytest and the exits of gevent are."""


IN_THREADS: list[Callable[[], BaseException]] = [
    *(GeneratorExit, StopIteration, StopAsyncIteration, SystemExit, asyncio.CancelledError, Odd),
    *(lambda: BaseExceptionGroup("several", [GeneratorExit(), Odd()]), KeyboardInterrupt),
]
ON_THE_LOOP = IN_THREADS[:-1]
"""KeyboardInterrupt asks the program to end, wherever the event loop's thread raises it."""


class Trap:
    def __init__(self) -> None:
        self.next: Callable[[], BaseException] | None = None
        self.sprung = 0

    def __call__(self) -> None:
        kind, self.next = self.next, None
        if kind is not None:
            self.sprung += 1
            raise kind()


Provoke = Callable[[Any], Awaitable[object]]
Place = Callable[[Bus, Trap], Provoke]
PLACES: dict[str, tuple[Place, list[Callable[[], BaseException]]]] = {}


def place(kinds: list[Callable[[], BaseException]], **variants: list[bool]) -> Callable[[Callable[..., Provoke]], Any]:
    """Add a place for each of its variants, which are one argument and its values."""

    def add(define: Callable[..., Provoke]) -> Any:
        for keyword, values in variants.items() or [("", [False])]:
            for value in values:
                name = " ".join([define.__name__, *([keyword] if value else [])])
                PLACES[name.replace("_", " ")] = partial(define, **({keyword: value} if keyword else {})), kinds
        return define

    return add


async def ask(client: Any) -> None:
    await client.request("trap")


async def tell(client: Any) -> None:
    await client.publish("trap")


async def read(client: Any) -> None:
    async with client.stream("trap") as items:
        async for _ in items:
            pass


@place(ON_THE_LOOP)
def an_inline_function(bus: Bus, trap: Trap) -> Provoke:
    bus.handle("trap", inline=True)(trap.__call__)
    return ask


@place(IN_THREADS)
def a_def_handler(bus: Bus, trap: Trap) -> Provoke:
    bus.handle("trap", running=1)(trap.__call__)
    return ask


@place(ON_THE_LOOP)
def a_stream(bus: Bus, trap: Trap) -> Provoke:
    @bus.handle("trap")
    async def items() -> AsyncIterator[int]:
        yield 1
        trap()

    return read


@place(ON_THE_LOOP)
def an_on_handler(bus: Bus, trap: Trap) -> Provoke:
    @bus.on("trap")
    async def handler() -> None:
        trap()

    return tell


@place(IN_THREADS)
def a_def_on_handler(bus: Bus, trap: Trap) -> Provoke:
    bus.on("trap")(trap.__call__)
    return tell


@place(IN_THREADS)
def a_def_handler_between_dependencies(bus: Bus, trap: Trap) -> Provoke:
    def session() -> Iterator[int]:
        yield 1

    async def another() -> AsyncIterator[int]:
        yield 1

    @bus.on("trap")
    def handler(value: Annotated[int, Depends(session)], other: Annotated[int, Depends(another)]) -> None:
        trap()

    return tell


@place(ON_THE_LOOP, waits=[False, True])
def a_coroutine_function(bus: Bus, trap: Trap, waits: bool) -> Provoke:
    @bus.handle("trap")
    async def handler() -> None:
        if waits:
            await anyio.lowlevel.checkpoint()
        trap()

    return ask


@place(ON_THE_LOOP, after=[False, True])
def a_middleware(bus: Bus, trap: Trap, after: bool) -> Provoke:
    @bus.use
    async def middleware(message: Message, ctx: Context, call_next: Any) -> Any:
        if not after:
            trap()
        answer = await call_next(message)
        trap()
        return answer

    bus.handle("trap")(lambda: None)
    bus.on("trap", inline=True)(lambda: None)
    return ask if after else tell


@place(IN_THREADS, after=[False, True])
def a_def_dependency_of_an_on_handler(bus: Bus, trap: Trap, after: bool) -> Provoke:
    def session() -> Iterator[int]:
        if not after:
            trap()
        yield 1
        trap()

    async def of_the_loop(value: Annotated[int, Depends(session)]) -> None: ...
    def in_a_thread(value: Annotated[int, Depends(session)]) -> None: ...

    bus.on("trap")(in_a_thread if after else of_the_loop)
    return tell


@place(ON_THE_LOOP, after=[False, True])
def an_async_dependency(bus: Bus, trap: Trap, after: bool) -> Provoke:
    async def session() -> AsyncIterator[int]:
        if not after:
            trap()
        yield 1
        trap()

    def in_a_thread(value: Annotated[int, Depends(session)]) -> None: ...
    async def items(value: Annotated[int, Depends(session)]) -> AsyncIterator[int]:
        yield 1

    bus.handle("trap")(items if after else in_a_thread)
    return read if after else ask


@place(ON_THE_LOOP, waits=[False, True])
def authorize(bus: Bus, trap: Trap, waits: bool) -> Provoke:
    def allow(peer: Any, verb: str, subject: str | int) -> bool:
        if subject == "trap":
            trap()
        return True

    async def allow_later(peer: Any, verb: str, subject: str | int) -> bool:
        await anyio.lowlevel.checkpoint()
        return allow(peer, verb, subject)

    parts_of(bus).services.access.authorize = parts_of(bus).services.authorize = allow_later if waits else allow
    bus.handle("trap")(lambda: None)
    bus.on("trap")(lambda: None)
    return tell if waits else ask


@place(ON_THE_LOOP, waits=[False, True])
def authenticate(bus: Bus, trap: Trap, waits: bool) -> Provoke:
    def who(handshake: Any) -> str:
        trap()
        return "Ann"

    async def who_later(handshake: Any) -> str:
        await anyio.lowlevel.checkpoint()
        return who(handshake)

    async def knock(client: Any) -> None:
        async with connect(bus.state):
            pass

    parts_of(bus).services.access.authenticate = who_later if waits else who
    return knock


@place(ON_THE_LOOP, in_a_thread=[False, True])
def a_hook_for_what_leaves(bus: Bus, trap: Trap, in_a_thread: bool) -> Provoke:
    def hook(message: Message) -> None:
        if message.subject == "elsewhere":
            trap()

    bus.use(hook, outgoing=True)

    async def on_the_loop() -> None:
        await bus.publish("elsewhere")

    def thread(own: sync.BlockingBus) -> None:
        own.publish("elsewhere")

    bus.on("trap")(thread if in_a_thread else on_the_loop)
    return tell


@place(ON_THE_LOOP)
def a_hook_that_is_told_the_outcome(bus: Bus, trap: Trap) -> Provoke:
    def hook(message: Message) -> Callable[[Any], None] | None:
        return (lambda outcome: trap()) if message.subject == "echo" else None

    bus.use(hook, outgoing=True)

    @bus.handle("trap")
    async def handler(ctx: Context) -> None:
        assert ctx.peer is not None
        await ctx.peer.request("echo")

    return ask


async def lives(bus: Bus, client: Any) -> bool:
    """A bus answers those who were there before, and those who come now."""
    async with connect(bus.state) as another:
        return bus.ready and await another.request("ok") == await client.request("ok") == 1


@pytest.mark.parametrize("name", PLACES)
async def test_what_a_function_of_the_application_raises_ends_no_bus(name: str) -> None:
    define, kinds = PLACES[name]
    bus, caller, trap = Bus(limits=Limits(threads=2)), Bus(), Trap()
    caller.handle("echo")(lambda: 1)
    bus.handle("ok")(lambda: 1)
    provoke = define(bus, trap)
    async with bus.serve("ubre+memory://ends") as server:
        parts_of(bus).life.state = server.url
        async with connect(server.url, bus=caller) as client:
            for count, kind in enumerate(kinds, 1):
                trap.next = kind
                try:
                    await provoke(client)
                except BusError:
                    pass
                await eventually(lambda: trap.sprung == count)  # noqa: B023  # called in this round
                assert await lives(bus, client)


async def test_what_a_durable_handler_raises_ends_no_bus() -> None:
    trap = Trap()
    async with NatsEngine() as engine:
        bus = Bus(cluster=Cluster(engine.url, name="shop", stores=[Store("work", "work.>")]))
        bus.handle("ok")(lambda: 1)

        @bus.on("work.*", durable="worker", concurrency=2)
        def work() -> None:
            trap()

        async with bus.serve("ubre+tcp://127.0.0.1:0") as server, connect(server.url) as client:
            parts_of(bus).life.state = server.url
            for count, kind in enumerate(IN_THREADS, 1):
                trap.next = kind
                await bus.publish("work.now")
                await eventually(lambda: trap.sprung == count)  # noqa: B023  # called in this round
                assert await lives(bus, client)


@pytest.mark.parametrize("side", ["request", "reply"])
async def test_what_the_converter_of_a_route_raises_ends_no_bus(side: str) -> None:
    trap, left, right = Trap(), Bus(), Bus()
    right.handle("trap")(lambda: 1)
    left.handle("ok")(lambda: 1)

    def convert(body: Any, message: Message) -> Any:
        trap()
        return body

    route = Route("trap", "trap", **{side: convert})  # type: ignore[arg-type]
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(bus.serve("ubre+tcp://127.0.0.1:0")) for bus in (left, right)]
        parts_of(left).life.state = servers[0].url
        behind = await stack.enter_async_context(connect(servers[1].url))
        await stack.enter_async_context(bridge(left, behind, routes=[route]))
        client = await stack.enter_async_context(connect(servers[0].url))
        for count, kind in enumerate(ON_THE_LOOP, 1):
            trap.next = kind
            with pytest.raises(BusError):
                await client.request("trap")
            assert trap.sprung == count
            assert await lives(left, client)


async def fail() -> None:
    """End a task as no `except` prevents: asyncio throws this into the outermost coroutine, and closes all that it awaits."""

    def leave() -> None:
        raise GeneratorExit

    await anyio.to_thread.run_sync(leave)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_bus_of_which_a_task_fails_closes_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    bus, links = Bus(), []

    @bus.handle("trap")
    async def trap() -> None:
        await fail()

    for _ in range(2):  # it can be entered again
        caplog.clear()
        with pytest.raises(RuntimeError, match="a task of this bus failed") as raised:
            async with bus.serve("ubre+tcp://127.0.0.1:0") as server, connect(server.url) as client:
                links.append(client)
                with pytest.raises(BusError):
                    await client.request("trap")
                await bus.wait_closed()
                assert not bus.ready
                assert bus.why_not_ready == "it does not take requests: one of its tasks failed"
                with pytest.raises(LocalProtocolError):
                    await bus.request("trap")
        cause = raised.value.__cause__
        assert isinstance(cause, BaseExceptionGroup)
        assert cause.subgroup(GeneratorExit)
        said = [record.getMessage() for record in caplog.records if record.levelname == "ERROR" and record.name == "polybus"]
        assert "a task of a bus has failed, which closes the bus" in said


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_bus_of_which_a_task_fails_while_it_drains_closes_at_once() -> None:
    bus, asked = Bus(), anyio.Event()

    @bus.handle("trap")
    async def trap() -> None:
        asked.set()
        await anyio.sleep_forever()

    with pytest.raises(RuntimeError, match="a task of this bus failed"):
        async with (
            bus.serve("ubre+memory://drains"),
            connect("ubre+memory://drains") as client,
            anyio.create_task_group() as group,
        ):
            reply = client.request("trap")
            await asked.wait()
            group.start_soon(bus.drain, 1000)
            await eventually(lambda: not bus.ready)
            parts_of(bus).services.running.spawn(fail)
            await bus.wait_closed()
            assert reply.done()


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_broker_of_which_a_task_fails_closes() -> None:
    broker = Broker("csb+ws://127.0.0.1:0/game", "csb+tcp://127.0.0.1:0")
    async with broker:
        broker._running.spawn(fail)
        await broker.wait_closed()
        assert not broker.client_urls
