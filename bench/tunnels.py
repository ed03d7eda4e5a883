"""What a tunnel costs: bytes of a small request, and requests per second of processor time, per level and outer protocol.

``python -m bench.tunnels [--seconds 0.2] [--rounds 5] [--depth 4]``; both sides run in one process, over TCP on the loopback.

All levels of a protocol are up at once and are measured in turn, so many rounds, and the best is printed. It is processor time,
because that is what an idle machine would take, and what other work on it changes least.
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
    link = outermost.peers[0].link
    before = link.transport
    sizes: list[int] = []
    for _ in range(3):  # now and then a credit goes with it
        metered: Any = Metered(before)
        link.transport = metered
        await client.request("user.get", {"id": 7})
        sizes.append(metered.sent)
    link.transport = before
    return min(sizes)


async def rate(client: Bus, seconds: float) -> float:
    """Requests per second of processor time, of both sides together."""
    done = 0
    until = time.perf_counter() + seconds

    async def ask() -> None:
        nonlocal done
        while time.perf_counter() < until:
            await client.request("user.get", {"id": 7})
            done += 1

    used = time.process_time()
    async with anyio.create_task_group() as group:
        for _ in range(IN_FLIGHT):
            group.start_soon(ask)
    return done / (time.process_time() - used)


async def levels(make: Callable[[], Any], depth: int, seconds: float, rounds: int) -> list[tuple[int, float]]:
    """For each level: bytes and rate. All levels speak the same protocol."""
    clients: list[Bus] = []
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
            clients.append(client)
        sizes = [await frame_size(outermost, client) for client in clients]
        measured = [[await rate(client, seconds) for client in clients] for _ in range(rounds)]
        return [(size, max(speeds)) for size, speeds in zip(sizes, zip(*measured, strict=True), strict=True)]


async def run(depth: int, seconds: float, rounds: int, say: Callable[[str], object]) -> None:
    columns = " | ".join("direct" if level == 0 else f"{level} deep" for level in range(depth + 1))
    say(f"| protocol in itself | {columns} |")
    say("| --- |" + " --- |" * (depth + 1))
    for name, make in OUTER.items():
        measured = await levels(make, depth, seconds, rounds)
        direct = measured[0][1]
        cells = [f"{size} B, {speed / 1000:.0f} k/s, {speed / direct:.2f}" for size, speed in measured]
        say(f"| {name} | " + " | ".join([cells[0].removesuffix(", 1.00"), *cells[1:]]) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.tunnels")
    parser.add_argument("--seconds", type=float, default=0.2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--depth", type=int, default=4, choices=range(1, 5))
    given = parser.parse_args()
    body: Callable[..., Awaitable[None]] = run
    anyio.run(body, given.depth, given.seconds, given.rounds, lambda text: print(text, file=sys.stdout, flush=True))


if __name__ == "__main__":
    main()
