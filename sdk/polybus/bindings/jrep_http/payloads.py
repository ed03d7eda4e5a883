"""Reads payloads over HTTP in pieces, because Errai puts all waiting messages into one payload of any size.

Also contains the messages that Errai's transports use to negotiate a WebSocket (notes, section 2.4).
"""

from __future__ import annotations

import json
import secrets
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final

import anyio
import anyio.lowlevel
import msgspec

from ...plugins import Host
from ...protocols.jrep.reader import cut

NOTHING: Final = b"[]"
MAX_WORD: Final = 4096
_KNOCK: Final = b"\xff]"
_each_message: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode
_EACH: Final = b'"ToSubject"'
"""A string that occurs in each message, and may also occur within strings."""
_MESSAGES: Final = 1024
"""Maximum messages per payload. Earlier versions of polybus reject more."""


class Offering(bytes):
    """A payload with the transport's offers to an associating client. The session adds the offers to FinishAssociation."""

    offers: Mapping[str, str]


def next_payload(queue: deque[bytes], limit: int) -> bytes:
    frame = queue.popleft()
    taken, size, messages = [frame[1:-1]], len(frame), frame.count(_EACH)
    while queue:
        size, messages = size + len(queue[0]), messages + queue[0].count(_EACH)
        if size > limit or messages > _MESSAGES:
            break
        taken.append(queue.popleft()[1:-1])
    return b"[%b]" % b",".join([inner for inner in taken if inner])


def said(payload: bytes) -> list[Mapping[str, Any]]:
    try:
        document = json.loads(payload)
    except (ValueError, RecursionError):
        return []
    messages = document if isinstance(document, list) else [document]
    return [message for message in messages if isinstance(message, dict)]


def command_in(payload: bytes, *commands: str) -> Mapping[str, Any] | None:
    """Return the first message that has one of these commands. The payload is parsed only if a command occurs in it."""
    if not any(command.encode() in payload for command in commands):
        return None
    return next((message for message in said(payload) if message.get("CommandType") in commands), None)


def complaint(text: str, reason: str) -> bytes:
    """Return a payload that reports an error to an Errai client, including the Throwable that the client expects."""
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
    return json.dumps([parts], separators=(",", ":")).encode()


def readable(payload: bytes) -> bytes:
    """Repair a payload of Errai's servlets.

    The servlets wake a stopped queue with a byte 0xFF, which ends up in the last answer. The servlet that uses Jetty's
    continuations starts an answer twice after a wait.
    """
    payload = payload.strip()
    if payload.endswith(_KNOCK):
        payload = payload.removesuffix(_KNOCK).rstrip(b", ") + b"]"
    while payload.startswith(NOTHING) and payload != NOTHING:
        payload = payload.removeprefix(NOTHING).lstrip()
    return payload or NOTHING


class Echo:
    """A request to ServerEchoService, which every server has (notes, section 2.3). It shows that a channel works and how much
    of the channel has been read.

    Since the request belongs to the transport, its answer is removed from delivered payloads.
    """

    def __init__(self) -> None:
        # Errai answers such a subject without a subscription.
        reply_to = f"ServerEchoService:{secrets.token_hex(12)}:RespondTo:RPC"
        self.question: bytes = word(ToSubject="ServerEchoService", ReplyTo=reply_to)
        self.heard: anyio.Event = anyio.Event()
        self._mark = reply_to.encode()

    def taken_from(self, payload: bytes) -> bytes:
        if self.heard.is_set() or self._mark not in payload:
            return payload
        self.heard.set()
        try:
            return b"[%b]" % b",".join([bytes(one) for one in _each_message(payload) if self._mark not in bytes(one)])
        except msgspec.DecodeError:
            return payload


class Intake:
    """Payloads waiting to be read, in order. A short payload is read immediately unless a long payload is ahead of it.

    `give` accepts a payload, or a piece of a long one.
    """

    def __init__(self, host: Host, give: Callable[[bytes], None]) -> None:
        self._host = host
        self._give = give
        self._unread: deque[bytes] = deque()
        self._bytes = 0
        self._reading = False
        self._full = False
        self._changed = anyio.Event()

    @property
    def size(self) -> int:
        return self._bytes

    def take(self, payload: bytes) -> None:
        """Read a payload or queue it. If more than `Limits.payload` bytes are waiting, the excess is read immediately."""
        pieces = _pieces(payload)
        if not self._unread and len(pieces) == 1:
            self._give(payload)
            return
        self._unread.extend(pieces)
        self._bytes += sum(map(len, pieces))
        while self._bytes > self._host.limits.payload and not self._full:
            self._read_one()
        if not self._reading:
            self._reading = True
            self._host.spawn(self._read)

    def pause(self) -> None:
        """Pause reading, because the payloads cause too much output."""
        self._full = True
        self._change()

    def resume(self) -> None:
        self._full = False
        self._change()

    def drop(self) -> None:
        self._unread.clear()
        self._bytes = 0
        self._full = False
        self._change()

    async def settled(self) -> None:
        """Wait until everything is read, or until reading is paused because the client has to fetch messages first."""
        while self._unread and not self._full:
            await self._changed.wait()

    async def room(self, size: int) -> bool:
        limits = self._host.limits
        with anyio.move_on_after(limits.frame_timeout):
            while self._unread and self._bytes + size > limits.payload:
                await self._changed.wait()
            return True
        return False

    async def _read(self) -> None:
        try:
            while self._unread:
                if self._full:
                    await self._changed.wait()
                else:
                    self._read_one()
                    await anyio.lowlevel.checkpoint()
        finally:
            self._reading = False

    def _read_one(self) -> None:
        piece = self._unread.popleft()
        self._bytes -= len(piece)
        self._give(piece)
        self._change()

    def _change(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()


def _pieces(payload: bytes) -> list[bytes]:
    """Split a payload. If it is not an array, it is not split, and the session decides whether it is valid."""
    if type(payload) is not bytes:
        return [payload]  # an `Offering` is more than its bytes
    try:
        return cut(payload)
    except (ValueError, RecursionError):
        return [payload]
