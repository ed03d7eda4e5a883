"""The processes of `bench.cluster`: nodes of one cluster, and a client of one of them.

Commands and answers are lines of JSON.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any
from unittest.mock import patch

import anyio
import psutil
from attrs import evolve

from polybus import Bus, Cluster, Identity
from polybus import connect as connect_bus
from polybus._core.bus.bus import parts_of
from polybus.plugins import ToUser

from .child import raise_file_limit, say
from .systems.ours import LIMITS

__all__ = ["BODY", "PAUSE", "PLACES", "USER", "WORK"]

PLACES, PAUSE, WORK = 4, 0.020, 0.001
"""Places of a handler that waits, the seconds that it waits, and the processor time of one that works."""
SHORT = 0.002
PACE = 0.05
"""Seconds between two publications, so that each is delivered alone: several that come together would leave together."""
_LIMITS = evolve(LIMITS, ping_interval=3600)
"""Signs of life would be counted as publications by clients that know no protocol."""
USER = "ann"
BODY = {"id": 7, "name": "x" * 46}
SUBJECT = "bench.fan"


def handlers(bus: Bus) -> None:
    @bus.handle("pool.wait", running=PLACES)
    async def wait(body: Any) -> Any:
        await anyio.sleep(PAUSE)
        return body

    @bus.handle("pool.work")
    async def work(body: Any) -> Any:
        end = time.thread_time() + WORK
        while time.thread_time() < end:
            pass
        return body

    @bus.handle("echo")
    async def echo(body: Any) -> Any:
        return body

    @bus.handle("echo.late")
    async def late(body: Any) -> Any:
        await anyio.sleep(SHORT)
        return body


def fan(bus: Bus) -> None:
    @bus.handle("bench.burst")
    async def burst(body: int) -> None:
        for _ in range(body):
            await bus.publish(SUBJECT, BODY)
            await anyio.sleep(PACE)


class Node:
    """One process. What its methods return is said."""

    def __init__(self, bus: Bus) -> None:
        self.bus = bus
        self.users = 0

    async def ask(self, subject: str, in_flight: int, seconds: float, user: str | None = None) -> dict[str, Any]:
        """Keeps that many requests under way, each at least once, however short the time is on a machine that is busy."""
        request: Callable[..., Awaitable[Any]] = self.bus.request if user is None else self.bus.user(user).request
        count, end = 0, time.perf_counter() + seconds

        async def work() -> None:
            nonlocal count
            while True:
                await request(subject, BODY, timeout=30)
                count += 1
                if time.perf_counter() >= end:
                    return

        began = time.perf_counter()
        async with anyio.create_task_group() as group:
            for _ in range(in_flight):
                group.start_soon(work)
        return {"count": count, "seconds": time.perf_counter() - began}

    async def publish(self, count: int) -> dict[str, Any]:
        for _ in range(count):
            await self.bus.publish(SUBJECT, BODY)
            await anyio.sleep(PACE)
        return {"count": count}

    async def become(self, users: int) -> dict[str, Any]:
        """Has so many users, as far as the engine knows; connections they have none."""
        announcer, process = parts_of(self.bus).pubsub.announcer, psutil.Process()
        gc.collect()
        before, began = process.memory_full_info().uss, time.perf_counter()
        for number in range(self.users, users):
            announcer.add_behind(ToUser(f"user{number}"))
            if number % 500 == 499:
                await announcer.known_to_cluster()
        await announcer.known_to_cluster()
        seconds = time.perf_counter() - began
        gc.collect()
        self.users = users
        return {"seconds": seconds, "bytes": process.memory_full_info().uss - before}


async def commands(node: Node) -> None:
    """Does what the lines of the standard input say, until they end."""
    async with await anyio.open_file(0, closefd=False) as lines:
        async for line in lines:
            for name, arguments in json.loads(line).items():
                say(**await getattr(node, name)(**arguments))


async def run(role: str, url: str) -> None:
    async with AsyncExitStack() as stack:
        if role == "client":
            bus = Bus(limits=_LIMITS)
            handlers(bus)
            await stack.enter_async_context(connect_bus(url, bus=bus, wait=20))
            say(url="")
        else:
            cluster = None if role == "alone" else Cluster(url, wait=20)
            bus = Bus(limits=_LIMITS, cluster=cluster, authenticate=known if role == "users" else None)
            if role in ("worker", "silent"):
                handlers(bus)
            if role in ("gateway", "alone"):
                fan(bus)
            if role == "silent":
                keep_silent()
            await stack.enter_async_context(bus)
            serves = role in ("gateway", "alone", "users")
            listener = await stack.enter_async_context(bus.serve("ubre+tcp://127.0.0.1:0")) if serves else None
            say(url="" if listener is None else listener.url)
        await commands(Node(bus))


def known(handshake: object) -> Identity:
    return Identity(USER, key=USER)


def keep_silent() -> None:
    """Has this process say to nobody that it has a request, so that what that costs can be seen."""
    from polybus.protocols.nats.cluster.dialect import ClusterDialect

    def hold(dialect: Any, id: Any, asker: str) -> None:
        dialect._held[id] = asker

    patch.object(ClusterDialect, "_hold", hold).start()


if __name__ == "__main__":
    raise_file_limit()
    anyio.run(run, sys.argv[1], sys.argv[2])
