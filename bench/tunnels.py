"""What a tunnel costs: bytes of a small request, requests per second and processor time, for each level and outer protocol.

``python -m bench.tunnels [--seconds 1.0] [--depth 4]``; both sides run in one process, over TCP on the loopback.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import anyio

from polybus import Bus, connect
from polybus.protocols import Csb, Jrep, Ubre, UProtocol

OUTER: dict[str, Callable[[], Any]] = {
    "UBRE JSON": Ubre,
    "UBRE binary": lambda: Ubre(format="binary"),
    "CSB": Csb,
    "J.REP": Jrep,
    "uProtocol JSON": UProtocol,
    "uProtocol protobuf": lambda: UProtocol(format="protobuf"),
}
IN_FLIGHT = 64


class Metered:
    """A transport that counts the bytes of the frames that it sends."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self.sent = 0

    def send(self, frame: bytes) -> None:
        self.sent += len(frame)
        self._transport.send(frame)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


def echoing() -> Bus:
    bus = Bus()

    @bus.handle("user.get")
    async def get(body: Any) -> Any:
        return body

    return bus


async def frame_size(outermost: Bus, client: Bus) -> int:
    """Bytes of one small request, on the outermost wire."""
    link = outermost.peers[0]._link
    before = link.transport
    sizes: list[int] = []
    for _ in range(3):  # now and then a credit goes with it
        metered: Any = Metered(before)
        link.transport = metered
        await client.request("user.get", {"id": 7})
        sizes.append(metered.sent)
    link.transport = before
    return min(sizes)


async def rate(client: Bus, seconds: float) -> tuple[float, float]:
    """Requests per second, and the processor time of each, of both sides, in microseconds."""
    done = 0
    until = time.perf_counter() + seconds

    async def ask() -> None:
        nonlocal done
        while time.perf_counter() < until:
            await client.request("user.get", {"id": 7})
            done += 1

    started, used = time.perf_counter(), time.process_time()
    async with anyio.create_task_group() as group:
        for _ in range(IN_FLIGHT):
            group.start_soon(ask)
    return done / (time.perf_counter() - started), (time.process_time() - used) / done * 1e6


async def levels(make: Callable[[], Any], depth: int, seconds: float) -> list[tuple[int, float, float]]:
    """For each level: bytes, rate and processor time. All levels speak the same protocol."""
    found: list[tuple[int, float, float]] = []
    async with AsyncExitStack() as stack:
        bus = echoing()
        bus.handle_tunnels("deeper", bus, protocol=make())
        listener = await stack.enter_async_context(bus.serve(f"{make().name}+tcp://127.0.0.1:0", protocol=make()))
        url = listener.url.partition("?")[0]
        outermost = client = await stack.enter_async_context(connect(url, protocol=make()))
        for level in range(depth + 1):
            if level:
                client = await stack.enter_async_context(connect(client.tunnel("deeper"), protocol=make()))
            await client.request("user.get", {"id": 7})
            found.append((await frame_size(outermost, client), *await rate(client, seconds)))
    return found


async def run(depth: int, seconds: float, say: Callable[[str], object]) -> None:
    columns = " | ".join("direct" if level == 0 else f"{level} deep" for level in range(depth + 1))
    say(f"| protocol in itself | {columns} |")
    say("| --- |" + " --- |" * (depth + 1))
    for name, make in OUTER.items():
        measured = await levels(make, depth, seconds)
        cells = (f"{size} B, {speed / 1000:.1f} k/s, {used:.0f} µs" for size, speed, used in measured)
        say(f"| {name} | " + " | ".join(cells) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.tunnels")
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--depth", type=int, default=4, choices=range(1, 5))
    given = parser.parse_args()
    body: Callable[..., Awaitable[None]] = run
    anyio.run(body, given.depth, given.seconds, lambda text: print(text, file=sys.stdout, flush=True))


if __name__ == "__main__":
    main()
