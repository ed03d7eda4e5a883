"""How long messages wait on a link that carries less than is asked of it: ``python -m bench.priorities``.

A uProtocol bus publishes over TCP to a peer that reads 1 MB a second: without end events of 1 KB with one priority, and every
20 ms one with another. Printed is the time from the call to the peer's read: the peer's pace makes it, not the machine.
What the peer's system has received cannot be overtaken any more: its buffer is kept small here, as on a narrow line.
"""

from __future__ import annotations

import json
import socket
import statistics
import time

import anyio
import attrs

from polybus import Bus, connect
from polybus.protocols import UProtocol

__all__ = ["main"]

PACE, PAUSE, COUNT = 1_000_000, 0.02, 150
SUBJECTS = {"CS0": "log.x", "CS6": "door.x"}
BODY = "x" * 700


@attrs.define
class Peer:
    """Reads at its pace, and notes who came when."""

    sock: socket.socket
    seen: list[tuple[str, float, float]] = attrs.field(factory=list)
    """Priority, when it was published, when it came."""

    async def read(self) -> None:
        """Until it is cancelled."""
        data, began, total = bytearray(), time.monotonic(), 0
        while True:
            await anyio.sleep(max(0.0, began + total / PACE - time.monotonic()))
            await anyio.wait_readable(self.sock)
            chunk = self.sock.recv(4096)
            total += len(chunk)
            data += chunk
            while len(data) >= 4 and len(data) >= (end := 4 + int.from_bytes(data[:4], "big")):
                event = json.loads(data[4:end])
                self.seen.append((event["priority"], float(event["traceparent"]), time.monotonic()))
                del data[:end]


async def publish(bus: Bus, subject: str) -> None:
    """One event, which says when it was made."""
    await bus.publish(subject, BODY, headers={"traceparent": str(time.monotonic())})


async def flood(bus: Bus, subject: str) -> None:
    """As fast as the link takes them."""
    while True:
        await publish(bus, subject)


async def waits(flooding: str, rare: str) -> tuple[list[float], int]:
    """Seconds that each of the rare ones waited; how many of the others came meanwhile."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    adapter = UProtocol(priorities={subject: name for name, subject in SUBJECTS.items()})
    with listener:
        async with connect(f"uprotocol+tcp://127.0.0.1:{listener.getsockname()[1]}", protocol=adapter) as bus:
            sock, _ = listener.accept()
            with sock:
                sock.setblocking(False)
                peer = Peer(sock)
                async with anyio.create_task_group() as group:
                    group.start_soon(peer.read)
                    group.start_soon(flood, bus, SUBJECTS[flooding])
                    await anyio.sleep(1)
                    for _ in range(COUNT):
                        group.start_soon(publish, bus, SUBJECTS[rare])
                        await anyio.sleep(PAUSE)
                    while sum(name == rare for name, _, _ in peer.seen) < COUNT:  # noqa: ASYNC110  # nothing tells
                        await anyio.sleep(0.1)
                    group.cancel_scope.cancel()
            await bus.aclose()
    found = [came - made for name, made, came in peer.seen if name == rare]
    return found, sum(name == flooding for name, _, _ in peer.seen)


def main() -> None:
    """Print the table."""
    for flooding, rare in (("CS0", "CS6"), ("CS6", "CS0")):
        found, others = anyio.run(waits, flooding, rare)
        middle, worst = statistics.median(found), max(found)
        print(
            f"flood of {flooding}, {COUNT} {rare}: median {middle:6.3f} s, worst {worst:6.3f} s, {others} {flooding} meanwhile"
        )


if __name__ == "__main__":
    main()
