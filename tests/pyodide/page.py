"""Inside Pyodide, on the loop that it shares with the page: what an application there would do."""

import gc
import importlib
import importlib.util
import sys
import weakref
from collections.abc import AsyncIterator

import anyio

import polybus
from polybus import Bus, Channel, Context, NoHandler, connect
from polybus.transports.postmessage import JSPort, PortTransport

OUT_OF_PLACE = "websockets httpx cloudevents google.protobuf uvloop multiprocessing"


async def over_a_channel(server: Bus) -> None:
    """Over ports of JavaScript; which keep nothing of Python when they are closed."""
    js = importlib.import_module("js")
    kept: list[weakref.ref[object]] = []
    for _ in range(3):
        channel = js.MessageChannel.new()
        here, there = JSPort(channel.port1), JSPort(channel.port2)
        async with server.serve(PortTransport(there), protocol="ubre"), connect(PortTransport(here), protocol="ubre") as bus:
            assert await bus.request("plain", 1) == 2
            assert await bus.request("plain", 41, timeout=5) == 42
        kept += [weakref.ref(here), weakref.ref(there)]
        del here, there, bus
    with anyio.fail_after(20):
        while any(port() is not None for port in kept):  # the functions that JavaScript was given lead to them
            gc.collect()
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
            assert await bus.request("user.get", {"id": 7}, timeout=5) == {"name": "user 7"}
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
    await over_a_channel(server)
    print(f"{len(polybus.__all__)} names of polybus in Pyodide")
    return 0
