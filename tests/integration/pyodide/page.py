"""Inside Pyodide, on the loop shared with the page: what an application there would do."""

import asyncio
import contextvars
import gc
import importlib
import importlib.util
import sys
from collections.abc import AsyncIterator
from typing import Any

import anyio

import polybus
from polybus import Bus, Channel, Code, ConnectFailed, Context, Limits, NoHandler, RemoteProtocolError, RequestError, connect
from polybus.plugins.registry import find_protocol
from polybus.transports.postmessage import JSPort, PortTransport

OUT_OF_PLACE = "websockets httpx cloudevents google.protobuf uvloop multiprocessing"


async def in_the_event() -> None:
    """A plain function runs in the event that brings its request: in order, and without leaving anything behind."""
    js = importlib.import_module("js")
    bus, log = Bus(), list[str]()
    seen: contextvars.ContextVar[str] = contextvars.ContextVar("seen", default="nothing")

    def note(word: str) -> str:
        task = "in a task" if asyncio.current_task() is not None else "in the event"
        log.append(f"{word} {task}, seen {seen.get()}")
        seen.set(word)
        return word

    bus.handle("plain")(note)
    bus.handle("inline", inline=True)(note)

    @bus.handle("async")
    async def coroutine(word: str) -> str:
        return note(word)

    @bus.handle("given")
    def given(word: str) -> Any:
        return coroutine(word)

    @bus.handle("fails")
    def fails(word: str) -> None:
        raise RequestError(Code.NOT_FOUND, note(word))

    @bus.handle("breaks")
    def breaks(word: str) -> None:
        raise BaseException(note(word))

    @bus.handle("asks")
    def asks(word: str, ctx: Context) -> str:
        assert ctx.peer is not None
        asked.append(ctx.peer.request("name", timeout=60))
        return note(word)

    asked: list[Any] = []
    client = Bus()

    @client.handle("name")
    async def name() -> str:
        return "the client"

    channel = js.MessageChannel.new()
    async with (
        bus.serve(PortTransport(JSPort(channel.port2)), protocol="ubre"),
        connect(PortTransport(JSPort(channel.port1)), protocol="ubre", bus=client),
    ):
        words = "async plain async async inline given fails breaks plain".split()
        replies = [client.request(word, f"{word} {number}", timeout=60) for number, word in enumerate(words)]
        told: list[Any] = []
        for reply in replies:
            try:
                told.append(await reply)
            except RequestError as error:
                told.append(error.code)
        assert told == [
            *(f"{word} {number}" for number, word in enumerate(words[:6])),
            Code.NOT_FOUND,
            Code.INTERNAL,
            "plain 8",
        ]
        begun = [line.split(" in ")[0] for line in log]
        assert begun == [f"{word} {number}" for number, word in enumerate(words)], log
        assert all(line.endswith("seen nothing") for line in log), log
        log.clear()
        for word in ("plain", "asks", "inline", "async", "given"):  # each when the one before is over
            assert await client.request(word, word, timeout=60) == word
        places = ["in the event"] * 3 + ["in a task"] * 2
        assert [line.removesuffix(", seen nothing").partition(" ")[2] for line in log] == places, log
        assert await asked[0] == "the client"
        assert bus.stats().running == 0


async def a_deadline_that_passes_as_it_is_set(server: Bus) -> None:
    """anyio looks at the clock, and asks for a call at the deadline: it comes although the deadline has passed in between."""
    loop = asyncio.get_running_loop()
    early = iter((loop.time() - 60,))
    fired = asyncio.Event()
    async with server.serve("ubre+memory://late"), connect("ubre+memory://late") as bus:
        loop.call_at(loop.time() - 60, fired.set)
        await asyncio.wait_for(fired.wait(), 60)
        clock, loop.time = loop.time, lambda: next(early, None) or clock()  # type: ignore[method-assign]
        try:
            with anyio.CancelScope(deadline=clock() - 30) as scope:
                loop.time = clock  # type: ignore[method-assign]
                await anyio.sleep_forever()
        finally:
            loop.time = clock  # type: ignore[method-assign]
        assert scope.cancelled_caught
        assert await bus.request("plain", 1, timeout=60) == 2


async def over_a_channel(server: Bus) -> None:
    """Over ports of JavaScript as they are: one, what a function gives, what comes from an iterator."""
    js, run_js = importlib.import_module("js"), importlib.import_module("pyodide.code").run_js
    promise = run_js("(port) => async () => port")
    iterator = run_js("(async function* (...ports) { yield* ports })")
    for make in (lambda port: port, JSPort, lambda port: lambda: port, promise, iterator):
        channel = js.MessageChannel.new()
        here, there = PortTransport(make(channel.port1)), PortTransport(make(channel.port2))
        async with server.serve(there, protocol="ubre"), connect(here, protocol="ubre") as bus:
            assert await bus.request("plain", 1) == 2
            assert await bus.request("plain", 41, timeout=60) == 42
            assert str(here.url).startswith("port://")


async def what_is_no_port() -> None:
    """Each is a `TypeError` that says what it is, and what is expected."""
    js, run_js = importlib.import_module("js"), importlib.import_module("pyodide.code").run_js
    window = run_js("(() => { const window = { postMessage() {} }; return (window.window = window) })()")
    no_ports: tuple[tuple[Any, str], ...] = (
        (js.Array.new(), "Array of JavaScript"),
        (run_js("({ postMessage: 7 })"), "Object of JavaScript"),
        (run_js("Object.create(null)"), "JsProxy"),
        (window, "a window: `serveFrame` and `connectToHost` of polybus-frames.js give its port"),
        (7, "int"),
        (None, "NoneType"),
    )
    for value, named in no_ports:
        for make, expected in (
            (PortTransport, "takes a message port, a function"),
            (JSPort, "takes a MessagePort of JavaScript"),
        ):
            try:
                make(value)
            except TypeError as error:
                assert expected in str(error) and str(error).endswith(f"not {named}"), error
            else:
                raise AssertionError(f"{value} was taken for a port")
    try:
        async with connect(PortTransport(lambda: js.Array.new()), protocol="ubre"):
            raise AssertionError("entered")
    except TypeError as error:
        assert "gave Array of JavaScript, which is not a message port" in str(error)


def what_is_too_deep() -> None:
    """It is refused before a parser sees it: the recursion of the parser would end Python and the page with it."""
    deep = b"[" * 60_000
    no_length = b"\xff\xff\xff\xff"
    frames = {
        "ubre": [b'{"request":"m","id":"x","body":' + deep, b'{"request":"x","body":{"subject":"m","body":' + deep],
        "ubre?format=binary": [
            b"R\0\1" + no_length + b'x{"subject":"m","body":' + deep,
            b"R\0\3" + no_length + b"x\0m" + deep,
            b"E" + (60_002).to_bytes(2, "big") + b"\0\0\0\0x\0" + deep,
        ],
        "jrep": [b'[{"ToSubject":"a","Value":' + deep, b'[{"ToSubject":"a","Value":' + deep[:20_000], deep],
    }
    for name, datas in frames.items():
        protocol, _, option = name.partition("?")
        codec = find_protocol(protocol, dict([option.split("=")] if option else [])).codec(Limits())
        for data in datas:
            try:
                found = codec.decode(data)
            except RemoteProtocolError as error:
                assert error.reason == "too_deep", (name, data[:60], error)
            else:
                raise AssertionError(f"{name} has read {found}")


def ports() -> int:
    """Those that something still leads to: JavaScript does, by the functions that it was given."""
    gc.collect()
    return sum(type(kept) is JSPort for kept in gc.get_objects())


MANAGED = """(port) => {
  const release = () => {}
  Object.defineProperty(port, 'polybus', { value: { origin: 'https://shop.example', epoch: 1, release } })
  return port
}"""
"""What `connectToHost` and `serveFrame` make of a port."""
TAKEN_OVER = "(port) => { const gone = new Event('close'); gone.reason = 'a newer page took over'; port.dispatchEvent(gone) }"


async def nothing_is_kept(server: Bus) -> None:
    """However a connection ends, JavaScript keeps nothing of Python."""
    js, run_js = importlib.import_module("js"), importlib.import_module("pyodide.code").run_js

    async def this_end(channel: Any) -> None:
        there = PortTransport(channel.port2)
        async with server.serve(there, protocol="ubre"), connect(PortTransport(channel.port1), protocol="ubre") as bus:
            assert await bus.request("plain", 1) == 2

    async def the_other_end(channel: Any) -> None:
        served, here = PortTransport(channel.port2), PortTransport(channel.port1)
        async with Bus() as other, other.serve(served, protocol="ubre"), connect(here, protocol="ubre") as bus:
            events = bus.events()
            await other.peers[0].aclose("enough")
            async for event in events:
                if type(event).__name__ == "LinkDown":
                    break

    async def the_page(channel: Any) -> None:
        here = run_js(MANAGED)(channel.port1)
        async with server.serve(PortTransport(channel.port2), protocol="ubre"):
            async with connect(PortTransport(here), protocol="ubre") as bus:
                events = bus.events()
                assert bus.peers[0].address == "https://shop.example#1"
                run_js(TAKEN_OVER)(here)
                async for event in events:
                    if type(event).__name__ == "LinkDown":
                        break

    async def nobody(channel: Any) -> None:
        limits = Limits(handshake_timeout=0.05)
        try:
            async with connect(PortTransport(channel.port1), protocol="ubre", limits=limits):
                raise AssertionError("entered")
        except ConnectFailed as error:
            assert "bare=True" in str(error)

    async def never_used(channel: Any) -> None:
        PortTransport(channel.port1)

    for end in (this_end, the_other_end, the_page, nobody, never_used):
        for _ in range(3):
            channel = js.MessageChannel.new()
            await end(channel)
            channel.port1.close()
            channel.port2.close()
        with anyio.fail_after(20):
            while ports():  # noqa: ASYNC110  # nothing tells when the collector has found it
                await anyio.sleep(0.005)


async def main() -> int:
    loaded = [name for name in OUT_OF_PLACE.split() if name in sys.modules]
    assert not loaded, f"importing polybus has loaded {loaded}"
    assert importlib.util.find_spec("websockets") is None, "this test shows nothing where everything is installed"

    server = Bus()

    @server.handle("user.get")
    async def get(body: dict[str, int], ctx: Context) -> dict[str, str]:
        await ctx.bus.publish("asked.user", body["id"])
        return {"name": f"user {body['id']}"}

    @server.handle("plain")
    def plain(body: int, ctx: Context) -> int:
        assert isinstance(ctx.bus, Bus)  # without threads there is nothing to block
        return body + 1

    @server.handle("count")
    async def count(body: int) -> AsyncIterator[int]:
        for number in range(body):
            yield number

    @server.handle("sum")
    async def add(ch: Channel[int, int]) -> None:
        total = 0
        async for number in ch:
            total += number
            await ch.send(total)

    for protocol in ("ubre", "ubre+memory://page?format=binary"):
        url = protocol if "://" in protocol else f"{protocol}+memory://page"
        async with server.serve(url), connect(url) as bus, bus.subscribe("asked.*") as asked:
            assert await bus.request("user.get", {"id": 7}, timeout=60) == {"name": "user 7"}
            assert (await anext(asked)).body == 7
            assert await bus.request("plain", 1) == 2
            async with bus.stream("count", 3) as numbers:
                assert [number async for number in numbers] == [0, 1, 2]
            async with bus.channel("sum", sends=int, receives=int) as sums:
                for number in (1, 2):
                    await sums.send(number)
                await sums.send_eof()
                assert [total async for total in sums] == [1, 3]
            try:
                await bus.request("nobody")
            except NoHandler:
                pass
            else:
                raise AssertionError("somebody answered")
            replies = [bus.request("plain", number) for number in range(100)]
            assert [await reply for reply in replies] == list(range(1, 101))
    await a_deadline_that_passes_as_it_is_set(server)
    await over_a_channel(server)
    await what_is_no_port()
    what_is_too_deep()
    await nothing_is_kept(server)
    await in_the_event()
    print(f"{len(polybus.__all__)} names of polybus in Pyodide")
    return 0
