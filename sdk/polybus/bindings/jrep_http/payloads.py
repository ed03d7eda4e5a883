"""Words in payloads that the transports of Errai read themselves: those with which a WebSocket is negotiated (notes 2.4)."""

from __future__ import annotations

import json
import secrets
from collections import deque
from collections.abc import Mapping
from typing import Any, Final

import anyio
import msgspec

NOTHING: Final = b"[]"
MAX_WORD: Final = 4096
"""Bytes of a word of the negotiation, which is one message."""
_KNOCK: Final = b"\xff]"
_each_message: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode
_EACH: Final = b'"ToSubject"'
"""Stands in each message, and perhaps in texts besides."""
_MESSAGES: Final = 1024
"""Of one payload: more are refused by earlier versions of polybus."""


class Offering(bytes):
    """A payload with what the transport has to offer to a client that associates: parts for the session's FinishAssociation."""

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


def complaint(text: str, reason: str) -> bytes:
    """A payload that tells an Errai client what was wrong, with the Throwable that it looks for."""
    thrown = {
        "^EncodedType": "java.lang.RuntimeException",
        "^ObjectID": "1",
        "stackTrace": {"^EncodedType": "[Ljava.lang.StackTraceElement;", "^ObjectID": "2", "^Value": []},
        "message": text,
        "cause": None,
    }
    parts = {"ToSubject": "ClientBusErrors", "ErrorMessage": text, "AdditionalDetails": reason, "Throwable": thrown}
    return json.dumps([parts], separators=(",", ":")).encode()


def word(**parts: str) -> bytes:
    """A payload of one message."""
    return json.dumps([parts], separators=(",", ":")).encode()


def readable(payload: bytes) -> bytes:
    """One payload of what Errai's servlets write where that is not quite one.

    A queue that is stopped gets a byte 0xFF, so that who waits wakes up, and that byte ends up in the last answer. The servlet
    with Jetty's continuations begins the answer twice when it had to wait.
    """
    payload = payload.strip()
    if payload.endswith(_KNOCK):
        payload = payload.removesuffix(_KNOCK).rstrip(b", ") + b"]"
    while payload.startswith(NOTHING) and payload != NOTHING:
        payload = payload.removeprefix(NOTHING).lstrip()
    return payload or NOTHING


class Echo:
    """A question to ServerEchoService, which every server has (notes 2.3): it shows that a way carries, and how far it is read.

    It is the transport's own, so its answer is taken out of what is delivered.
    """

    def __init__(self) -> None:
        # Answers to such a subject come without a subscription.
        reply_to = f"ServerEchoService:{secrets.token_hex(12)}:RespondTo:RPC"
        self.question: bytes = word(ToSubject="ServerEchoService", ReplyTo=reply_to)
        self.heard: anyio.Event = anyio.Event()
        self._mark = reply_to.encode()

    def taken_from(self, payload: bytes) -> bytes:
        """A payload without the answer."""
        if self.heard.is_set() or self._mark not in payload:
            return payload
        self.heard.set()
        try:
            return b"[%b]" % b",".join([bytes(one) for one in _each_message(payload) if self._mark not in bytes(one)])
        except msgspec.DecodeError:
            return payload
