"""Payloads that have come over HTTP: read in pieces, because Errai's ends put all that waits into one, however much that is.

With the words in them that the transports of Errai read themselves: those with which a WebSocket is negotiated (notes 2.4).
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
from ...protocols.jrep.arrays import cut

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


class Intake:
    """Payloads that are still to be read, in order. A short payload is read at once, unless a long one is before it.

    Args:
        give: Takes a payload, or a piece of a long one.
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
        """Read a payload, or let it wait for its turn. Beyond `Limits.payload` nothing waits: it is read at once."""
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
        """Stop reading: it makes too much that waits to be written."""
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
        """Wait until all has been read, or until reading on waits for the client to fetch what it has made."""
        while self._unread and not self._full:
            await self._changed.wait()

    async def room(self, size: int) -> bool:
        """Wait until there is room for a payload of this size beside what has not been read; False where it takes too long."""
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
    """Cut a payload. What is no array stays whole: the session judges it, and tells the messages of a broken one apart."""
    if type(payload) is not bytes:
        return [payload]  # an `Offering` has more to it than bytes
    try:
        return cut(payload)
    except (ValueError, RecursionError):
        return [payload]
