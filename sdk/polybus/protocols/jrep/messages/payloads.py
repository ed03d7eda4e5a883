"""Payloads as a whole: the messages in one that has come and their order, and how those that go are put into few."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from ....errors import RemoteProtocolError
from ....message import Kind, Message

_STRUCTURE: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+("?)|[\[\]{},]', re.DOTALL)
_OPENED: Final = {b"]": b"[", b"}": b"{"}
_MOST_TOKENS: Final = 200_000
"""Less than a tenth of a second's: who breaks a payload shall not have it read for long."""


def told_apart(frame: bytes) -> list[bytes] | None:
    """The elements of a payload that is no JSON, where quotes and brackets still say where each ends; else None."""
    text, found, open_, start = frame.strip(), list[bytes](), list[bytes](), 1
    for number, token in enumerate(_STRUCTURE.finditer(text)):
        sign = token[0][:1]
        if number == _MOST_TOKENS or (sign == b'"' and not token[1]) or (not open_ and sign != b"["):
            return None
        if sign in (b"[", b"{"):
            open_.append(sign)
        elif sign in _OPENED and open_.pop() != _OPENED[sign]:
            return None
        if not open_ or (sign == b"," and len(open_) == 1):
            found.append(text[start : token.start()].strip())
            start = token.end()
            if not open_:
                return found if start == len(text) and text[:1] == b"[" and any(found) else None
    return None


def by_priority(messages: Sequence[Message | RemoteProtocolError]) -> Sequence[Message | RemoteProtocolError]:
    """Of messages that come together, those with a salience first (document); commands keep their places."""
    if any(isinstance(one, Message) and one.extras and "PriorityProcessing" in one.extras for one in messages):
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
