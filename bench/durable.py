"""What it costs to keep: ``python -m bench.durable [--small]``.

On one nats-server with JetStream, in one process, parts that take turns; the median of the rounds counts:

* requests between two nodes of a cluster, which are kept nowhere;
* stored publications, 64 in flight, each until the server has said that it has it;
* a durable handler that is given what is stored, 64 at a time, until all is acknowledged;
* the same two with nats-py.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from itertools import count
from statistics import median
from typing import Any

import anyio
from attrs import frozen

from polybus import Bus, Cluster, Store

from .systems._helpers import free_port, nats_server, start

__all__ = ["Row", "main", "measure"]

IN_FLIGHT = 64
WORK = Store("work", "work.>")
_clusters = count()


@frozen
class Row:
    """One row of the table: a rate, and its ratio to that of another."""

    what: str
    rate: float
    ratio: float | None = None
    beside: str = ""
    at_least: float | None = None

    def __str__(self) -> str:
        text = f"{self.what:46} {self.rate:10,.0f} a second"
        if self.ratio is None:
            return text
        wanted = ""
        if self.at_least is not None:
            wanted = f" (at least {self.at_least:g}: {'reached' if self.ratio >= self.at_least else 'MISSED'})"
        return f"{text}   {self.ratio:5.2f} of {self.beside}{wanted}"


@contextmanager
def keeping_server() -> Iterator[str]:
    """The address of a server that keeps, on its way."""
    path, port = nats_server(), free_port()
    assert path is not None
    with (
        tempfile.TemporaryDirectory() as folder,
        start(path, "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", folder) as process,
    ):
        try:
            yield f"127.0.0.1:{port}"
        finally:
            process.terminate()


async def _in_flight(number: int, act: Callable[[int], Awaitable[Any]]) -> float:
    """Do something so often, 64 at a time; how often a second."""

    async def some(first: int) -> None:
        for one in range(first, number, IN_FLIGHT):
            await act(one)

    began = time.perf_counter()
    async with anyio.create_task_group() as group:
        for first in range(IN_FLIGHT):
            group.start_soon(some, first)
    return number / (time.perf_counter() - began)


async def ours(address: str, number: int) -> dict[str, float]:
    """Requests, stored publications and a durable handler of polybus, in a cluster of their own."""
    url = f"nats+tcp://{address}/bench{next(_clusters)}"
    asker, answerer = Bus(cluster=Cluster(url, stores=[WORK])), Bus(cluster=Cluster(url))
    worker = Bus(cluster=Cluster(url))
    handled = 0
    done = anyio.Event()

    @answerer.handle("echo")
    async def echo(body: Any) -> Any:
        return body

    @worker.on("work.*", durable="bench", concurrency=IN_FLIGHT)
    async def work(body: Any) -> None:
        nonlocal handled
        handled += 1
        if handled == number:
            done.set()

    async with AsyncExitStack() as stack:
        await stack.enter_async_context(asker)
        await stack.enter_async_context(answerer)
        await asker.request("echo", 0)
        found = {"request": await _in_flight(number, lambda one: asker.request("echo", one))}
        found["stored"] = await _in_flight(number, lambda one: asker.publish("work.begun", one))
        began = time.perf_counter()
        await stack.enter_async_context(worker)
        await done.wait()
        found["durable"] = number / (time.perf_counter() - began)
    return found


async def theirs(address: str, number: int) -> dict[str, float]:
    """Stored publications and a pulling consumer of nats-py, in a stream of their own."""
    import nats

    client = await nats.connect(f"nats://{address}")
    try:
        jetstream, name = client.jetstream(), f"theirs{next(_clusters)}"
        await jetstream.add_stream(name=name, subjects=[f"{name}.>"])
        found = {"stored": await _in_flight(number, lambda one: jetstream.publish(f"{name}.begun", b"%d" % one))}
        puller = await jetstream.pull_subscribe(f"{name}.>", durable="bench", stream=name)
        began, got = time.perf_counter(), 0
        while got < number:
            for message in await puller.fetch(min(IN_FLIGHT, number - got), timeout=20):
                await message.ack()
                got += 1
        await client.flush()
        found["durable"] = number / (time.perf_counter() - began)
        return found
    finally:
        await client.close()


def measure(number: int, rounds: int) -> list[Row]:
    """All rows."""
    own: list[dict[str, float]] = []
    other: list[dict[str, float]] = []
    with keeping_server() as address:
        for _ in range(rounds):
            own.append(asyncio.run(ours(address, number)))
            other.append(asyncio.run(theirs(address, number)))

    def rate(runs: list[dict[str, float]], what: str) -> float:
        return median(run[what] for run in runs)

    def ratio(upper: str, lower: list[dict[str, float]], beside: str) -> float:
        return median(run[upper] / base[beside] for run, base in zip(own, lower, strict=True))

    return [
        Row("request between two nodes", rate(own, "request")),
        Row("stored publication", rate(own, "stored"), ratio("stored", own, "request"), "requests", 0.6),
        Row("durable handler", rate(own, "durable"), ratio("durable", own, "stored"), "stored publications", 0.5),
        Row("nats-py, stored publication", rate(other, "stored"), ratio("stored", other, "stored"), "it, ours are"),
        Row("nats-py, pulling consumer", rate(other, "durable"), ratio("durable", other, "durable"), "it, ours are"),
    ]


def main(arguments: list[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.durable", description=__doc__)
    parser.add_argument("--small", action="store_true", help="whether it runs, not how fast")
    small = parser.parse_args(arguments).small
    for row in measure(*((200, 1) if small else (10_000, 5))):
        print(row)
    return 0


if __name__ == "__main__":
    sys.exit(main())
