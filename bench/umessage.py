"""What a UMessage costs beside an event of the generation before, in protobuf: ``python -m bench.umessage``.

A request with a small body and its answer, through the sessions of both ends. Processor time of this process, the best of
several turns.
"""

from __future__ import annotations

import time
from typing import Any

from attrs import frozen

from polybus import Message
from polybus.message import Kind
from polybus.protocols import Up, UProtocol

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


def measured(asker: Any, asked: Any, turns: int = TURNS, rounds: int = ROUNDS) -> Cost:
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


def main() -> None:
    """Print the table."""
    costs = {name: measured(*ends) for name, ends in ENDS.items()}
    print(f"{'':12}{'write, us':>12}{'read, us':>12}")
    for name, cost in costs.items():
        print(f"{name:12}{cost.writing:12.2f}{cost.reading:12.2f}")
    new, old = costs["up"], costs["uprotocol"]
    print(f"{'of it':12}{new.writing / old.writing:12.2f}{new.reading / old.reading:12.2f}")


if __name__ == "__main__":
    main()
