"""What subscribers that stopped reading cost the others: ``python -m bench.stalled``.

A server announces 10 kB to 40 subscribers, 200 times a second, while one more client asks it. In every second round 10 of the
40 do not read; the asking begins when their outboxes are full and the oldest is dropped. Printed is the 99th percentile of the
asker's round trips in both kinds of rounds, in turn in one run, and what the server dropped. The bound is twice.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import time
from functools import partial

import anyio

from polybus import Bus, Limits, connect

__all__ = ["main"]

SUBSCRIBERS, STALLED, ROUNDS, ASKED = 40, 10, 8, 300
SUBSCRIBE = b'{"subscribe":"announcement"}'


class Subscriber(asyncio.Protocol):
    """Subscribes, and reads or does not."""

    def __init__(self, reads: bool) -> None:
        self.reads = reads

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(len(SUBSCRIBE).to_bytes(4, "big") + SUBSCRIBE)
        if not self.reads:
            transport.pause_reading()


async def serve() -> None:
    """The server: prints its URL, and ends with its standard input."""
    bus = Bus(limits=Limits(write_timeout=600, outbox=100))

    @bus.handle("echo")
    async def echo(body: int) -> int:
        return body

    @bus.handle("dropped")
    async def count() -> int:
        return bus.stats().dropped

    async def announce() -> None:
        while True:
            await bus.publish("announcement", "x" * 10_000)
            await anyio.sleep(0.005)

    async with bus.serve("ubre+tcp://127.0.0.1:0") as server, anyio.create_task_group() as tasks:
        tasks.start_soon(announce)
        print(server.url, flush=True)
        await anyio.to_thread.run_sync(sys.stdin.read)
        tasks.cancel_scope.cancel()


async def crowd(host: str, port: int, stalled: int) -> None:
    """The subscribers: says when they stand, and ends with its standard input."""
    loop = asyncio.get_running_loop()
    # Kept: the loop does not hold a transport that does not read, and one that is collected resets its connection.
    there = [await loop.create_connection(partial(Subscriber, number >= stalled), host, port) for number in range(SUBSCRIBERS)]
    print("there", flush=True)
    await anyio.to_thread.run_sync(sys.stdin.read)
    del there


def child(*arguments: str) -> subprocess.Popen[str]:
    """A process of this module."""
    command = [sys.executable, "-m", "bench.stalled", *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


async def dropped(bus: Bus) -> int:
    """Publications so far."""
    return await bus.request("dropped", returns=int)


async def percentile(bus: Bus) -> float:
    """The 99th of the round trips, in milliseconds."""
    times = []
    for number in range(ASKED):
        began = time.perf_counter()
        await bus.request("echo", number)
        times.append(time.perf_counter() - began)
        await anyio.sleep(0.002)
    return 1000 * sorted(times)[int(0.99 * ASKED)]


async def measure(url: str) -> dict[str, list[float]]:
    """Milliseconds, round by round."""
    host, _, port = url.removeprefix("ubre+tcp://").rpartition(":")
    found: dict[str, list[float]] = {"all read": [], "some stalled": []}
    async with connect(url) as bus:
        for number in range(2 * ROUNDS):
            kind, stalled = ("some stalled", STALLED) if number % 2 else ("all read", 0)
            with child("crowd", host, port, str(stalled)) as others:
                assert others.stdout is not None
                assert others.stdin is not None
                await anyio.to_thread.run_sync(others.stdout.readline)
                before = await dropped(bus)
                while await dropped(bus) < before + stalled:  # noqa: ASYNC110  # no event tells of each drop
                    await anyio.sleep(0.1)
                found[kind].append(await percentile(bus))
                others.stdin.close()
        print(f"dropped for those who did not read: {await dropped(bus)} publications")
    return found


def main(arguments: list[str]) -> int:
    """Exit status 1 where the others wait more than twice as long."""
    if arguments[:1] == ["serve"]:
        anyio.run(serve)
    elif arguments[:1] == ["crowd"]:
        anyio.run(crowd, arguments[1], int(arguments[2]), int(arguments[3]))
    else:
        with child("serve") as server:
            assert server.stdout is not None
            assert server.stdin is not None
            found = anyio.run(measure, server.stdout.readline().strip())
            server.stdin.close()
        for kind, values in found.items():
            print(f"{kind:13} p99 median {statistics.median(values):.2f} ms of {json.dumps([round(v, 2) for v in values])}")
        ratio = statistics.median(found["some stalled"]) / statistics.median(found["all read"])
        print(f"ratio {ratio:.2f}, bound 2")
        return int(ratio > 2)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
