"""What a UMessage costs beside an event of the generation before, in protobuf: ``python -m bench.umessage``.

A request with a small body and its answer, through the sessions of both ends. Processor time of this process, the best of
several turns, in which the two take turns as well. Then what it costs to know which requests a fabric has brought before.
"""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Sequence
from typing import Any

from attrs import frozen

from polybus import Message
from polybus.message import Kind
from polybus.protocols import Up, UProtocol
from polybus.protocols.up.session import REMEMBERED, Accounts

__all__ = ["main", "measured"]

TURNS, ROUNDS = 3000, 9
BODY = {"position": 50, "door": "front_left", "ok": True}
NAMES = {"UpdateDoor": 0xB}
ENDS: dict[str, tuple[Any, Any]] = {
    "up": (Up(entity="//a/1/1", peer="//b/2/1", names=NAMES), Up(entity="//b/2/1", peer="//a/1/1", names=NAMES)),
    "uprotocol": (
        UProtocol(format="protobuf", entity="//a.v/hmi.app/1", peer="//b.v/body.access/1"),
        UProtocol(format="protobuf", entity="//b.v/body.access/1", peer="//a.v/hmi.app/1"),
    ),
}


@frozen
class Cost:
    """Microseconds of one message."""

    writing: float
    reading: float


@frozen
class Memory:
    """What requests cost whose ids are known: nanoseconds of one while it runs, and while it is remembered; bytes of all."""

    counted: float
    remembered: float
    size: int


def measured(asker: Any, asked: Any, turns: int = TURNS, rounds: int = 1) -> Cost:
    """The cost of a message between two adapters."""
    client, server = asker.session("client"), asked.session("server")
    writing, reading = list[float](), list[float]()
    for _ in range(rounds):
        client.events(), server.events()
        start = time.process_time()
        frames = [_sent(client, Message(Kind.REQUEST, "UpdateDoor", ttl=5.0)) for _ in range(turns)]
        written = time.process_time()
        came = [_received(server, frame) for frame in frames]
        read = time.process_time()
        answers = [_sent(server, Message(Kind.RESPONSE, "", message.id)) for message in came]
        answered = time.process_time()
        for frame in answers:
            _received(client, frame)
        end = time.process_time()
        writing.append((written - start + answered - read) / 2 / turns * 1e6)
        reading.append((read - written + end - answered) / 2 / turns * 1e6)
    return Cost(min(writing), min(reading))


def _sent(session: Any, message: Message) -> bytes:
    message.format = session.codec.format_for(BODY, message.subject)
    message.raw = message.format.encode(BODY)
    session.send(message, 0.0)
    (frame,) = session.frames_to_send()
    return bytes(frame)


def _received(session: Any, frame: bytes) -> Any:
    session.receive(frame, 0.0)
    (message,) = session.events()
    return message


def remembering(count: int = 4 * REMEMBERED, rounds: int = ROUNDS) -> Memory:
    """The cost of knowing requests: those that run alone, as on a connection, and those that were answered, as on a fabric."""
    requests = [b"\x09%016d\x11//device1/403AB/3/0" % number for number in range(count)]
    costs = [min(_counted(requests, remembered) for _ in range(rounds)) for remembered in (0, REMEMBERED)]
    accounts = Accounts(count, REMEMBERED)
    tracemalloc.start()
    for request in requests[: 2 * REMEMBERED - 1]:  # the most that are known
        accounts.admit(copy := bytes(bytearray(request)), "device1")  # which nobody else keeps
        accounts.settle(copy)
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return Memory(*costs, size)


def _counted(requests: Sequence[bytes], remembered: int) -> float:
    accounts = Accounts(len(requests), remembered)
    fresh = [bytes(bytearray(request)) for request in requests]  # the hash of bytes is kept with them
    start = time.process_time()
    for request in fresh:
        accounts.is_known(request)
        accounts.admit(request, "device1")
        accounts.settle(request)
    return (time.process_time() - start) / len(requests) * 1e9


def main() -> None:
    """Print the tables."""
    rounds = [{name: measured(*ends) for name, ends in ENDS.items()} for _ in range(ROUNDS)]
    costs = {name: Cost(*(min(getattr(one[name], what) for one in rounds) for what in ("writing", "reading"))) for name in ENDS}
    print(f"{'':12}{'write, us':>12}{'read, us':>12}")
    for name, cost in costs.items():
        print(f"{name:12}{cost.writing:12.2f}{cost.reading:12.2f}")
    new, old = costs["up"], costs["uprotocol"]
    print(f"{'of it':12}{new.writing / old.writing:12.2f}{new.reading / old.reading:12.2f}")
    known = remembering()
    print(f"requests that run: {known.counted:.0f} ns each; with those that were answered: {known.remembered:.0f} ns, ", end="")
    print(f"and {known.size / 2**20:.1f} MiB for a fabric")


if __name__ == "__main__":
    main()
