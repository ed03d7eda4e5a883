"""What message ports cost: in one process beside bare callbacks, and in a browser beside the raw port.

``python -m bench.ports [--browser] [--seconds 0.5] [--repeats 7]``. In one process the figures are processor time. In the
browser the page asks, in turns, a frame that only gives back and a Python bus in a frame (Pyodide), of another site and so
in another process, each over a port from the same handshake; what is compared stands beside each other within seconds. It
needs Chromium, npm `ubre` and Pyodide, as the tests do (``make peers web``).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Any

import anyio

from polybus import Bus, connect
from polybus.transports.postmessage import MessageChannel, PortTransport

TEXT = '{"request":"echo","id":123456,"body":"' + "x" * 64 + '"}'


# -- in one process ------------------------------------------------------------------------------------------------------


async def bare(count: int) -> None:
    """Two functions that schedule each other: the floor of anything that delivers by callbacks in later turns."""
    loop, done = asyncio.get_running_loop(), asyncio.Event()
    left = count

    def here(data: str) -> None:
        nonlocal left
        left -= 1
        if left:
            loop.call_soon(there, data)
        else:
            done.set()

    def there(data: str) -> None:
        loop.call_soon(here, data)

    there(TEXT)
    await done.wait()


async def ports(count: int) -> None:
    """The same over the two ports of a channel."""
    channel, done = MessageChannel(), asyncio.Event()
    left = count

    def here(data: str) -> None:
        nonlocal left
        left -= 1
        if left:
            channel.port1.post(data)
        else:
            done.set()

    channel.port1.on_message(here)
    channel.port2.on_message(channel.port2.post)
    channel.port1.post(TEXT)
    await done.wait()


async def buses(count: int) -> None:
    """Requests from one bus to the other over such a channel, one at a time."""
    channel, server = MessageChannel(), Bus()

    @server.handle("echo", inline=True)
    def echo(body: str) -> str:
        return body

    body = "x" * 64
    async with server.serve(PortTransport(channel.port2), protocol="ubre"):
        async with connect(PortTransport(channel.port1), protocol="ubre") as bus:
            for _ in range(count):
                await bus.request("echo", body)


def rate(play: Callable[[int], Awaitable[None]], seconds: float) -> float:
    """Round trips per second of processor time."""
    count = 500
    while True:
        begin = time.process_time()
        asyncio.run(_run(play, count))
        took = time.process_time() - begin
        if took >= seconds:
            return count / took
        count = int(count * max(2.0, 1.2 * seconds / max(took, 1e-6)))


async def _run(play: Callable[[int], Awaitable[None]], count: int) -> None:
    await play(count)


def in_one_process(seconds: float, repeats: int) -> None:
    """Each in its turn; ratios within a turn."""
    plays = {"bare callbacks": bare, "port pair": ports, "requests of a bus": buses}
    rounds = [{name: rate(play, seconds) for name, play in plays.items()} for _ in range(repeats)]
    for name in plays:
        rates = [turn[name] for turn in rounds]
        ratios = [turn[name] / turn["bare callbacks"] for turn in rounds]
        print(f"{name:20} {statistics.median(rates):10,.0f} /s of processor time   {show(ratios)} of bare callbacks")


def show(ratios: list[float]) -> str:
    """The median and the spread."""
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


# -- in a browser --------------------------------------------------------------------------------------------------------

SERVICE = """
from polybus import Bus, connect
from polybus.transports.postmessage import PortTransport

bus = Bus()

@bus.handle("plain", inline=True)
def plain(body: str) -> str:
    return body

@bus.handle("async")
async def coroutine(body: str) -> str:
    return body

async def main(port):
    async with connect(PortTransport(port), protocol="ubre", bus=bus):
        await bus.wait_closed()
"""

MEASURE = """
const text = '{"request":"echo","id":123456,"body":"' + 'x'.repeat(64) + '"}', body = 'x'.repeat(64);
const place = (program) => new Promise((resolve) => { const child = put(program, { at });
  serveFrame(child, { origin, onport: (port) => resolve(port) }); document.body.append(child) });
const raw = await place(echo), node = await place(javascript), python = await place(program);
for (const port of [node, python]) port.onmessage = ({ data }) => ubre.message(data, port);
const waiting = []; raw.onmessage = ({ data }) => waiting.shift()(data);
const bounce = () => new Promise((resolve) => { waiting.push(resolve); raw.postMessage(text) });
const rows = { 'raw port': bounce, 'ubre in the frame': () => ubre(node).request('plain', body),
  'Python, plain handler': () => ubre(python).request('plain', body),
  'Python, async handler': () => ubre(python).request('async', body) };
const measure = async (ask, lanes) => { let count = 0; const begin = performance.now(), until = begin + seconds * 1000;
  await Promise.all(Array.from({ length: lanes }, async () => { while (performance.now() < until) { await ask(); count++ } }));
  return count / (performance.now() - begin) * 1000 };
for (const ask of Object.values(rows)) await measure(ask, 1);
const rounds = [];
for (let i = 0; i < repeats; i++) { const round = {};
  for (const lanes of [1, 32])
    for (const [name, ask] of Object.entries(rows)) round[`${name}, ${lanes}`] = await measure(ask, lanes);
  rounds.push(round) }
return rounds
"""


async def in_a_browser(seconds: float, repeats: int) -> None:
    """Frames of the same and of another site."""
    from tests.integration.browser import site, test_frames, test_python
    from tests.integration.web.browser import browser

    async with site.site() as server, browser() as chromium:
        for name, at in (("same process", server.here), ("another site, so another process", server.elsewhere)):
            facts = test_python.facts(server).replace(json.dumps(test_python.SERVICE), json.dumps(SERVICE))
            base = f"const base = {server.here!r};"
            hello = "const { connectToHost } = await import(`${base}/polybus.js`);"
            opened = f"{base}{hello} const port = await connectToHost({{ origins: [base] }});"
            known: dict[str, Any] = {
                "at": at,
                "origin": at,
                "seconds": seconds,
                "repeats": repeats,
                "program": facts + test_python.FRAME,
                "echo": opened + "port.onmessage = ({ data }) => port.postMessage(data)",
                "javascript": opened
                + """const { default: Ubre } = await import(`${base}/ubre/ubre.js`);
                const ubre = Ubre({ open: true, send: (message) => port.postMessage(message) });
                ubre.handle('plain', (body) => body); port.onmessage = ({ data }) => ubre.message(data, port)""",
            }
            tab = await chromium.tab(f"{server.here}/page")
            story = f"(async () => {{ {test_frames.HOST} {MEASURE} }})()"
            await site.play(tab, f"{story}.then((told) => (globalThis.told = told)); return 0", **known)
            await tab.until("globalThis.told", seconds=120 + 16 * seconds * repeats)
            rounds = await tab.run("told")
            await tab.aclose()
            print(name)
            for row in rounds[0]:
                lanes = row.rpartition(", ")[2]
                ratios = [turn[row] / turn[f"raw port, {lanes}"] for turn in rounds]
                median = statistics.median(turn[row] for turn in rounds)
                print(f"  {row + ' in flight':38} {median:10,.0f} /s   {show(ratios)} of the raw port")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--browser", action="store_true", help="also in Chromium")
    parser.add_argument("--seconds", type=float, default=0.3)
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    in_one_process(arguments.seconds, arguments.repeats)
    if arguments.browser:
        anyio.run(in_a_browser, arguments.seconds, arguments.repeats)


if __name__ == "__main__":
    main()
