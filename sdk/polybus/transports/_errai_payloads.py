"""What the transports of Errai read of payloads themselves: the few words with which a WebSocket is negotiated (notes 2.4)."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from typing import Any, Final

__all__ = ["MAX_WORD", "NOTHING", "Offering", "command_in", "next_payload", "said", "word"]

NOTHING: Final = b"[]"
MAX_WORD: Final = 4096
"""Bytes of a word of the negotiation, which is one message."""
_EACH: Final = b'"ToSubject"'
"""Stands in each message, and perhaps in texts besides."""
_MESSAGES: Final = 1024
"""Of one payload: more are refused by those who read it."""


class Offering(bytes):
    """A payload with what the transport has to offer to whoever associates: parts for the session's FinishAssociation."""

    offers: Mapping[str, str]


def next_payload(queue: deque[bytes], limit: int) -> bytes:
    """As many frames as one payload may hold, taken from the front of a queue; at least one."""
    frame = queue.popleft()
    taken, size, messages = [frame[1:-1]], len(frame), frame.count(_EACH)
    while queue:
        size, messages = size + len(queue[0]), messages + queue[0].count(_EACH)
        if size > limit or messages > _MESSAGES:
            break
        taken.append(queue.popleft()[1:-1])
    return b"[%b]" % b",".join([inner for inner in taken if inner])


def said(payload: bytes) -> list[Mapping[str, Any]]:
    """The messages of a payload, as plain JSON; none where it is not JSON."""
    try:
        document = json.loads(payload)
    except (ValueError, RecursionError):
        return []
    messages = document if isinstance(document, list) else [document]
    return [message for message in messages if isinstance(message, dict)]


def command_in(payload: bytes, *commands: str) -> Mapping[str, Any] | None:
    """The first message of a payload that has one of these commands. The payload is parsed only where the word occurs."""
    if not any(command.encode() in payload for command in commands):
        return None
    return next((message for message in said(payload) if message.get("CommandType") in commands), None)


def word(**parts: str) -> bytes:
    """A payload of one message."""
    return json.dumps([parts], separators=(",", ":")).encode()
