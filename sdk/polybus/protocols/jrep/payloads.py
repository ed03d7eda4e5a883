"""Payloads as a whole: the order of the messages in one that has come, and how those that go are put into few."""

from __future__ import annotations

from collections.abc import Sequence

from ...errors import RemoteProtocolError
from ...message import Kind, Message

__all__ = ["by_priority", "joined", "payloads_of"]


def by_priority(messages: Sequence[Message | RemoteProtocolError]) -> Sequence[Message | RemoteProtocolError]:
    """Of messages that come together, those with a salience first (document); commands keep their places."""
    if any(isinstance(one, Message) and one._attributes and "PriorityProcessing" in one._attributes for one in messages):
        if not any(isinstance(one, Message) and one.kind is Kind.CONTROL for one in messages):
            return sorted(messages, key=_salience)
    return messages


def _salience(message: Message | RemoteProtocolError) -> bool:
    """False comes first."""
    given = message.attributes.get("PriorityProcessing") if isinstance(message, Message) else None
    return given is None or float(given) == 0


def joined(documents: Sequence[bytes]) -> bytes:
    """One payload."""
    return b"[%b]" % b",".join(documents)


def payloads_of(documents: Sequence[bytes], limit: int, most: int) -> list[bytes]:
    """As few payloads as `limit` bytes and `most` messages for each allow."""
    payloads: list[list[bytes]] = []
    size = 0
    for document in documents:
        if not payloads or size + len(document) + 1 > limit or len(payloads[-1]) >= most:
            payloads.append([])
            size = 2
        payloads[-1].append(document)
        size += len(document) + 1
    return [joined(payload) for payload in payloads]
