"""What a cluster costs, and what it brings: ``python -m bench.cluster [--small]``.

Real processes on a real nats-server:

* **pool**: one asker, and 1, 2, 4 processes whose handlers wait 20 ms (four at a time in each), or work 1 ms;
* **fan-out**: one publication to 4 gateways with 1,000 clients each, beside one that a bus without a cluster makes itself;
* **users**: a node with 1 to 100,000 users, and what it costs to ask one of them;
* **taken**: what it costs both ends that a node says it has a request which it cannot answer in the turn.

Ratios of processor time compare runs that take turns, and the median counts.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from statistics import median
from typing import Any
from urllib.request import urlopen

from attrs import frozen

from .child import raise_file_limit
from .cluster_roles import USER
from .light import FanOut
from .processes import Child, cpu_seconds
from .systems import SYSTEMS
from .systems._helpers import free_port, nats_server, start

__all__ = ["Line", "Size", "main", "measure"]

_TIMEOUT = 120.0
_SAME = 1.02
"""A ratio of runs that do the same, with what they differ by chance."""
_ASKED = 64
_BUSY = 16
"""Requests in flight, of handlers that wait and of those that work."""


@frozen(kw_only=True)
class Size:
    """How much is measured."""

    seconds: float = 1.0
    rounds: int = 5
    processes: tuple[int, ...] = (1, 2, 4)
    gateways: int = 4
    clients: int = 1000
    publications: int = 40
    users: tuple[int, ...] = (1, 1_000, 10_000, 100_000)


SMALL = Size(seconds=0.2, rounds=1, processes=(1, 2), gateways=2, clients=20, publications=10, users=(1, 100))


@frozen(kw_only=True)
class Line:
    """One line of the table; `ratio` to what `beside` says, and what it should be."""

    what: str
    figure: str
    ratio: float | None = None
    beside: str = ""
    at_least: float | None = None
    at_most: float | None = None

    @property
    def verdict(self) -> str:
        if self.ratio is None or (self.at_least is None and self.at_most is None):
            return ""
        good = self.ratio >= (self.at_least or 0.0) and (self.at_most is None or self.ratio <= self.at_most)
        return "reached" if good else "MISSED"

    def cells(self) -> list[str]:
        wanted = f">= {self.at_least:g}" if self.at_least is not None else f"<= {self.at_most:g}" if self.at_most else ""
        ratio = "" if self.ratio is None else f"{self.ratio:.2f}"
        return [self.what, self.figure, ratio, self.beside, wanted, self.verdict]


class Engine:
    """A nats-server of its own."""

    def __init__(self, pid: int, port: int, monitor: int) -> None:
        self.pid = pid
        self.url = f"nats+tcp://127.0.0.1:{port}/bench"
        self._monitor = f"http://127.0.0.1:{monitor}/subsz"

    def subscriptions(self) -> int:
        with urlopen(self._monitor, timeout=10) as answer:  # of our own child, on the loopback
            return int(json.load(answer)["num_subscriptions"])

    def memory(self) -> int:
        with open(f"/proc/{self.pid}/statm", encoding="ascii") as pages:
            return int(pages.read().split()[1]) * 4096


@contextmanager
def engine() -> Iterator[Engine]:
    path = nats_server()
    if path is None:
        raise SystemExit("nats-server is not on PATH: install it, or say where it is with BENCH_NATS_SERVER")
    port, monitor = free_port(), free_port()
    with start(path, "-a", "127.0.0.1", "-p", str(port), "-m", str(monitor)) as process:
        try:
            yield Engine(process.pid, port, monitor)
        finally:
            process.terminate()


class Member:
    """A process of `cluster_roles`. Several start at the same time: what is asked of one waits until it is there."""

    def __init__(self, child: Child) -> None:
        self.child = child
        self.pid = child.pid

    @cached_property
    def url(self) -> str:
        """Where it serves, if it does, once it is there."""
        return str(self.child.answer(_TIMEOUT)["url"])

    def begin(self, name: str, **arguments: Any) -> None:
        _ = self.url
        self.child.tell(json.dumps({name: arguments}))

    def end(self) -> dict[str, Any]:
        return self.child.answer(_TIMEOUT)

    def do(self, name: str, **arguments: Any) -> dict[str, Any]:
        self.begin(name, **arguments)
        return self.end()


def member(stack: ExitStack, role: str, url: str) -> Member:
    child = Child([sys.executable, "-m", "bench.cluster_roles", role, url], role)
    stack.callback(child.stop)
    return Member(child)


def spent(pids: Sequence[int]) -> float:
    return sum(map(cpu_seconds, pids))


def rate(asker: Member, subject: str, in_flight: int, seconds: float) -> float:
    asker.do("ask", subject=subject, in_flight=in_flight, seconds=seconds / 4)
    found = asker.do("ask", subject=subject, in_flight=in_flight, seconds=seconds)
    return float(found["count"] / found["seconds"])


def pool(size: Size) -> list[Line]:
    """Rates with more and more processes."""
    lines, waits, works = list[Line](), dict[int, float](), dict[int, float]()
    with ExitStack() as stack:
        hub = stack.enter_context(engine())
        asker = member(stack, "asker", hub.url)
        there = 0
        for count in size.processes:
            for worker in [member(stack, "worker", hub.url) for _ in range(count - there)]:
                _ = worker.url
            there = count
            waits[count] = rate(asker, "pool.wait", _ASKED, size.seconds)
            works[count] = rate(asker, "pool.work", _BUSY, size.seconds)
    one = size.processes[0]
    for count in size.processes:
        wanted = {2: 1.9, 4: 3.7}.get(count)
        ratio = waits[count] / waits[one]
        what = f"pool, handlers that wait 20 ms, 4 at a time, {count} processes"
        lines.append(Line(what=what, figure=f"{waits[count]:.0f}/s", ratio=ratio, beside="one process", at_least=wanted))
    for count in size.processes:
        before = {4: 2}.get(count, one)
        wanted = {2: 1.6, 4: 0.95}.get(count)
        ratio = works[count] / works[before]
        what = f"pool, handlers of 1 ms processor time, {count} processes"
        beside = f"{before} of them" if before > 1 else "one process"
        lines.append(Line(what=what, figure=f"{works[count]:.0f}/s", ratio=ratio, beside=beside, at_least=wanted))
    return lines


def fan_out(size: Size) -> list[Line]:
    """Time for a delivery, of gateways that are told by the cluster and of a bus that publishes itself."""
    wire = SYSTEMS["ubre-tcp@asyncio"].light()
    told, own, between = list[float](), list[float](), list[float]()
    with ExitStack() as stack:
        hub = stack.enter_context(engine())
        alone = member(stack, "alone", hub.url)
        gateways = [member(stack, "gateway", hub.url) for _ in range(size.gateways)]
        publisher = member(stack, "asker", hub.url)
        beside = FanOut(wire, alone.url, size.clients)
        crowds = [FanOut(wire, gateway.url, size.clients) for gateway in gateways]
        for crowd in (beside, *crowds):  # the gateways' have heard how the next ones were tried
            crowd.drain()
        deliveries = size.publications * size.clients
        for _ in range(size.rounds):
            before = spent([alone.pid])
            beside.measure(size.publications)
            own.append((spent([alone.pid]) - before) / deliveries)
            pids = [gateway.pid for gateway in gateways]
            before, engine_before = spent(pids), spent([hub.pid])
            publisher.begin("publish", count=size.publications)
            for crowd in crowds:
                crowd.receive(size.publications)
            publisher.end()
            told.append((spent(pids) - before) / deliveries / size.gateways)
            between.append((spent([hub.pid]) - engine_before) / size.publications)
    ratios = [one / other for one, other in zip(told, own, strict=True)]
    what = f"publication to {size.gateways} gateways x {size.clients} clients: a gateway's time for a delivery"
    each = median(between) / size.gateways
    return [
        Line(
            what=what, figure=f"{median(told) * 1e6:.2f} us", ratio=median(ratios), beside="published by itself", at_most=1.03
        ),
        Line(
            what="the engine's time for it, for each gateway",
            figure=f"{each * 1e6:.0f} us",
            ratio=each / median(told),
            beside="one delivery",
            at_most=3,
        ),
    ]


def users(size: Size) -> list[Line]:
    """A node with more and more users, one of whom is there and is asked."""
    lines, asked = list[Line](), dict[int, float]()
    with ExitStack() as stack:
        hub = stack.enter_context(engine())
        node = member(stack, "users", hub.url)
        client = member(stack, "client", node.url)
        asker = member(stack, "asker", hub.url)
        _ = client.url  # who asks before it is there finds nobody
        ends, before = [asker.pid, node.pid, client.pid, hub.pid], 1
        for count in size.users:
            memory, known = hub.memory(), hub.subscriptions()
            made = node.do("become", users=count - 1)
            more, kept = count - before, hub.memory() - memory
            costs = []
            for _ in range(size.rounds):
                began = spent(ends)
                found = asker.do("ask", subject="echo", in_flight=_BUSY, seconds=size.seconds / 2, user=USER)
                costs.append((spent(ends) - began) / found["count"])
            asked[count] = median(costs)
            figure = f"{asked[count] * 1e6:.0f} us; {hub.subscriptions():,} subscriptions"
            what = f"request to a user of a node with {count:,}: all processes"
            lines.append(Line(what=what, figure=figure, ratio=asked[count] / asked[size.users[0]], beside="1 user"))
            if more:
                if hub.subscriptions() - known < 2 * more:
                    raise RuntimeError(f"the engine has {hub.subscriptions()} subscriptions: each user needs two")
                each = f"{made['seconds'] / more * 1e6:.0f} us; {made['bytes'] / more:,.0f} B; engine {kept / more:,.0f} B"
                lines.append(Line(what="  each one more: time to be known; memory of the node, of the engine", figure=each))
            before = count
    return lines


def taken(size: Size) -> list[Line]:
    """Time of both ends where a node says that it has a request, beside one that does not say so."""
    lines = []
    with ExitStack() as stack:
        pairs = []
        for role in ("worker", "silent"):
            hub = stack.enter_context(engine())
            pairs.append((member(stack, "asker", hub.url), member(stack, role, hub.url)))
        for _, worker in pairs:
            _ = worker.url
        for subject, what, most in (("echo", "answers in the turn", _SAME), ("echo.late", "waits", 1.10)):
            for asker, _ in pairs:
                asker.do("ask", subject=subject, in_flight=_ASKED, seconds=size.seconds / 4)
            ratios, costs = list[float](), list[float]()
            for _ in range(2 * size.rounds):
                said, unsaid = (of_both_ends(pair, subject, size.seconds / 2) for pair in pairs)
                costs.append(said)
                ratios.append(said / unsaid)
            name = f'"taken", a handler that {what}: time of both ends'
            figure, ratio = f"{median(costs) * 1e6:.0f} us", median(ratios)
            lines.append(Line(what=name, figure=figure, ratio=ratio, beside="nothing said", at_most=most))
    return lines


def of_both_ends(pair: tuple[Member, Member], subject: str, seconds: float) -> float:
    """Processor time for a request."""
    pids = [one.pid for one in pair]
    before = spent(pids)
    count = pair[0].do("ask", subject=subject, in_flight=_ASKED, seconds=seconds)["count"]
    return (spent(pids) - before) / float(count)


PARTS = {"pool": pool, "fan-out": fan_out, "users": users, "taken": taken}


def measure(size: Size, parts: Sequence[str]) -> list[Line]:
    """The lines of these parts."""
    return [line for part in parts for line in PARTS[part](size)]


def table(lines: Sequence[Line]) -> str:
    rows = [["", "figure", "ratio", "to", "target", ""], *(line.cells() for line in lines)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.cluster", description="what a cluster costs, and what it brings")
    parser.add_argument("parts", nargs="*", metavar=f"{{{','.join(PARTS)}}}", help="these alone")
    parser.add_argument("--small", action="store_true", help="little of everything: to see that it runs")
    given = parser.parse_args(argv)
    if unknown := [part for part in given.parts if part not in PARTS]:
        parser.error(f"no part {unknown[0]}: there are {', '.join(PARTS)}")
    raise_file_limit()
    began = time.monotonic()
    print(table(measure(SMALL if given.small else Size(), given.parts or list(PARTS))))
    print(f"{time.monotonic() - began:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
