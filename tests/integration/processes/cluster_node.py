"""A node of a cluster as a process. Its only argument is a JSON object of options:

* ``cluster``: the URL of the engine
* ``ledger``: a file with a line for each message, written before a handler does anything
* ``limits``: fields of `Limits`
* ``run``: arguments of `polybus.run`
"""

import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import attrs

import polybus
from polybus import Bus, Cluster, Handshake, Identity, Limits
from polybus._core.bus.bus import parts_of


def tasks_here() -> list[str]:
    return sorted(str(task.name) for task in anyio.get_running_tasks())


def idle(bus: Bus) -> bool:
    """True if the session with the engine remembers no request of anybody."""
    peer = parts_of(bus).links.inner_peer
    session: Any = None if peer is None else peer.link.session
    return session is not None and bool(session._dialect.idle)


def by_header(handshake: Handshake) -> Identity:
    """Let everybody in, as the user that the header ``x-user`` names."""
    key = handshake.headers.get("x-user")
    return Identity(key or "somebody", key=key)


class Node:
    """The handlers, and what they have taken."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._ledger = os.open(options["ledger"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._heard: dict[str, list[int]] = {}
        self._released = anyio.Event()
        self.bus: Bus
        self.bus = bus = Bus(
            cluster=Cluster(options["cluster"]),
            limits=Limits(**options.get("limits", {})),
            authenticate=by_header,
            lifespan=self._closing,
        )
        for name in ("work", "hold", "control"):
            bus.handle(name)(getattr(self, name))
        bus.on("jobs.*", group="g")(self.job)
        bus.on("news.*", queue=100_000)(self.news)
        bus.on("release")(self.release)

    @asynccontextmanager
    async def _closing(self, bus: Bus) -> AsyncIterator[None]:
        yield
        os.close(self._ledger)

    def _note(self, word: str, number: int) -> None:
        os.write(self._ledger, f"{word} {number}\n".encode())

    async def work(self, number: int) -> int:
        self._note("work", number)
        await anyio.lowlevel.checkpoint()
        return number

    async def hold(self, number: int) -> int:
        """Answer when all are released."""
        self._note("hold", number)
        await self._released.wait()
        return number

    async def release(self) -> None:
        released, self._released = self._released, anyio.Event()
        released.set()

    async def job(self, number: int) -> None:
        self._note("job", number)

    async def news(self, body: list[Any], message: polybus.Message) -> None:
        self._heard.setdefault(str(message.subject), []).append(body[0])

    async def control(self, subject: str) -> dict[str, Any]:
        """The counters of this node, whom it knows, and what it has heard of a subject."""
        nodes = await self.bus.nodes()
        return {
            "stats": attrs.asdict(self.bus.stats()),
            "tasks": tasks_here(),
            "idle": idle(self.bus),
            "nodes": len(nodes) if nodes.complete else 0,
            "heard": self._heard.get(subject, []),
        }


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    polybus.run(Node(given).bus, "ubre+tcp://127.0.0.1:0", **given["run"])
