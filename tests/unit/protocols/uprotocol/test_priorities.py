"""Priorities on a link that carries less than is asked of it: a TCP peer that reads no faster than it is told."""

import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import anyio.lowlevel

from polybus import Bus, connect
from polybus.protocols import UProtocol
from tests.support import BOUND

PRIORITIES = {"log.>": "CS0", "door.>": "CS6"}
BODY = "x" * 8192


class Reader:
    """Reads events one by one."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._data = bytearray()

    async def next(self) -> str:
        """The priority of the next event."""
        await self._fill(4)
        size = int.from_bytes(self._data[:4], "big")
        await self._fill(4 + size)
        priority: str = json.loads(self._data[4 : 4 + size])["priority"]
        del self._data[: 4 + size]
        return priority

    async def _fill(self, size: int) -> None:
        while len(self._data) < size:
            await anyio.wait_readable(self._sock)
            self._data += self._sock.recv(size - len(self._data))


@asynccontextmanager
async def joined() -> AsyncIterator[tuple[Bus, Reader]]:
    """A bus, and the other end of its link."""
    with anyio.fail_after(BOUND), socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        url = f"uprotocol+tcp://127.0.0.1:{listener.getsockname()[1]}"
        async with connect(url, protocol=UProtocol(priorities=PRIORITIES)) as bus:
            sock, _ = listener.accept()
            with sock:
                sock.setblocking(False)
                yield bus, Reader(sock)
            await bus.aclose()


async def test_on_a_saturated_link_cs6_overtakes_all_cs0_that_still_waits() -> None:
    async with joined() as (bus, reader):
        sent = 0
        while bus.stats().queued < 300:  # what the system takes, it takes
            bus.publish_nowait("log.x", BODY)
            sent += 1
            await anyio.lowlevel.checkpoint()
        for _ in range(40):
            bus.publish_nowait("door.x", BODY)
        order = [await reader.next() for _ in range(sent + 40)]
    first = order.index("CS6")
    last = len(order) - 1 - order[::-1].index("CS6")
    assert last - first < 40 * 8 // 7 + 1  # one in eight is whoever has waited longest
    assert order[last:].count("CS0") > 280  # so many were published before them and leave after them
    if hasattr(socket, "TCP_NOTSENT_LOWAT"):
        assert first < 50  # 128 KiB in the kernel, where it would take 4 MiB by itself; and what is about to be written


async def test_under_a_flood_of_cs6_one_in_eight_is_cs0() -> None:
    async with joined() as (bus, reader):
        async with anyio.create_task_group() as group:

            async def flood() -> None:
                while True:
                    await bus.publish("door.x", BODY)

            for _ in range(4):
                group.start_soon(flood)
            await anyio.wait_all_tasks_blocked()  # the link takes nothing more
            for _ in range(20):
                group.start_soon(bus.publish, "log.x", 1)
            order: list[str] = []
            while order.count("CS0") < 20:
                order.append(await reader.next())
            group.cancel_scope.cancel()
    came = [place for place, priority in enumerate(order) if priority == "CS0"]
    # They wait for room, and behind what has waited longer; then nothing that comes later keeps them for long.
    assert came[-1] - came[0] <= 20 * 8
