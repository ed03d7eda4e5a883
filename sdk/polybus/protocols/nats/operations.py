"""Reads and writes the operations of NATS clients and servers.

An operation is one frame. It consists of a line and, for some verbs, headers and a payload. The line contains their lengths.
Verbs are case-insensitive, as for servers. A server silently drops a message if its subject has an empty token, and treats a
blank as the end of a subject, so both are rejected here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Final, TypeAlias

import msgspec
from attrs import define, field, frozen

from ...errors import EncodeError, LocalProtocolError, RemoteProtocolError, Unsupported
from ...limits import Limits
from ...plugins import FrameField
from ...subjects import is_pattern, wire_pattern
from .._shared import Memo, WireRules, remember, shown_text
from .headers import HeaderBlock, HeaderReader

RULES: Final = WireRules("nats")
refuse: Final = RULES.refuse

_BLANK: Final = re.compile(r"[\x00-\x20\x7f]")


def has_wildcard(name: str) -> bool:
    return ("*" in name or ">" in name) and any(token in ("*", ">") for token in name.split("."))


def is_answerable(reply: str) -> bool:
    """Return True if a reply subject does not begin with ``$``. Such subjects are commands to the server."""
    return not reply.startswith("$")


def fault_in_name(name: Any, limit: int, *, pattern: bool = False) -> str | None:
    """Return a description of the fault in a subject or pattern, or `None` if it is valid."""
    if type(name) is not str:
        return f"a subject must be a string here, not {type(name).__name__}"
    what = "pattern" if pattern else "subject"
    if _BLANK.search(name):
        return f"the {what} {name[:60]!r} has a blank or a control character, which ends a name on this wire"
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        return f"lone surrogate in the {what}"
    if size > limit:
        return f"a {what} of {size} bytes is longer than {limit} (limit: subject)"
    if not name or name[0] == "." or name[-1] == "." or ".." in name:
        dots = "a dot cannot be first, last or next to another dot"
        return f"the {what} {name[:60]!r} has an empty token, and servers drop it: {dots}"
    return None


def local_subject(name: Any, limit: int) -> str:
    fault = _fault_of_ours(name, limit, pattern=False)
    if fault is None and has_wildcard(name):
        fault = f"the subject {name[:60]!r} is a pattern to a NATS server: only subscriptions take wildcards"
    if fault is not None:
        raise LocalProtocolError(fault, protocol="nats")
    return str(name)


def local_pattern(name: Any, limit: int) -> str:
    """Convert a pattern to the server's syntax. Raises `Unsupported` if this is not possible."""
    fault = _fault_of_ours(name, limit, pattern=True)
    if fault is not None:
        raise LocalProtocolError(fault, protocol="nats")
    made = str(wire_pattern(name))
    if has_wildcard(made) != is_pattern(made):
        raise Unsupported(f"nats: {name!r} cannot be a NATS subscription: NATS has no URI patterns")
    return made


def _fault_of_ours(name: Any, limit: int, *, pattern: bool) -> str | None:
    if isinstance(name, int):
        raise Unsupported(f"nats: {name} is a number, but subjects are strings here: write {str(name)!r}")
    return fault_in_name(name, limit, pattern=pattern)


CRLF: Final = b"\r\n"
LINE: Final = 64 * 1024  # Bytes of a line. A message's line has at most 4 KiB; INFO names each server of its cluster.

_DIGITS: Final = 10


class _FirstWords(msgspec.Struct):
    tls_required: bool = False
    tls_available: bool = False


_first_words: Final = msgspec.json.Decoder(_FirstWords).decode


def words_of(line: bytes) -> list[bytes]:
    """Split a line at blanks and tabs only. A server accepts any other byte in a subject, including form feeds."""
    return [word for word in line.replace(b"\t", b" ").split(b" ") if word]


def announced(line: bytes) -> int | None:
    """Return how many bytes follow a line, without the final CRLF, or `None` if the operation consists only of the line."""
    first = line[:1].upper()
    if first not in b"MHP" or (first == b"P" and line[1:2].upper() != b"U"):
        return None
    size = line[max(line.rfind(b" "), line.rfind(b"\t")) + 1 :]
    if not size.isdigit() or len(size) > _DIGITS:
        raise ValueError(f"{line[:60]!r} does not end with a length")
    return int(size)


class NatsCutter:
    """Splits one direction of a connection into operations. Skips payloads over the limit as they arrive.

    The operation's line is passed on, so that the reader rejects the message and the connection stays open.
    """

    __slots__ = ("_head", "_limit", "_missing", "_parts", "_plain", "_skipped", "_there", "broken")

    def __init__(self, limit: int, *, plain: bool) -> None:
        self._limit = limit
        self._plain = plain  # True on a connection without TLS until INFO arrives
        self._head = b""
        self._parts: list[bytes | bytearray] = []  # Parts of an incomplete operation
        self._there = self._missing = 0
        self._skipped = 0  # Bytes still to come of a skipped payload
        self.broken: RemoteProtocolError | None = None

    @property
    def partial(self) -> str:
        if self._missing:
            return f"{self._there} of {self._there + self._missing} bytes"
        if self._skipped:
            return f"{self._skipped} bytes of a payload over the limit are missing"
        return f"{len(self._head)} bytes of a line" if self._head else ""

    @property
    def arrived(self) -> int:
        return self._there + len(self._head) if not self._skipped else 1

    def feed(self, data: bytes) -> list[bytes]:
        frames: list[bytes] = []
        if self.broken is not None:
            return frames
        position = 0
        if self._missing:
            if len(data) < self._missing:
                self._keep(data)
                return frames
            position = self._missing
            self._parts.append(data[:position])
            frames.append(b"".join(self._parts))
            self._parts, self._there, self._missing = [], 0, 0
        elif self._skipped:
            position = min(self._skipped, len(data))
            self._skipped -= position
        elif self._head:
            data, self._head = self._head + data, b""
        try:
            self._cut(data, position, frames)
        except RemoteProtocolError as error:
            self.broken = error
        return frames

    def _cut(self, data: bytes, position: int, frames: list[bytes]) -> None:
        size, limit = len(data), self._limit
        while position < size:
            end = data.find(CRLF, position)
            if end < 0 or end - position > LINE:
                self._keep_line(data[position:])
                return
            after = end + 2
            # Nearly all are MSG or HMSG, whose line ends with a blank and the length.
            length = data[data.rfind(b" ", position, end) + 1 : end] if data[position] in b"MH" else b""
            if length.isdigit() and len(length) < _DIGITS:
                after += int(length) + 2
            else:
                after = self._end_of_other(data, position, end)
            if after - end > limit + 4:
                position = self._left_out(data, position, end, after, frames)
                continue
            if after > size:
                self._missing = after - position
                self._keep(data[position:])
                return
            frames.append(data[position:after])
            position = after

    def _end_of_other(self, data: bytes, position: int, end: int) -> int:
        """Return the end position of any operation. Raises `RemoteProtocolError` if the server requires TLS first."""
        try:
            length = announced(data[position:end])
        except ValueError as error:
            raise refuse(str(error), close_code=1002) from None
        if length is not None:
            return end + 4 + length
        if self._plain:
            self._check_first_words(data[position:end])
        return end + 2

    def _left_out(self, data: bytes, position: int, end: int, after: int, frames: list[bytes]) -> int:
        """Pass on only the line of an operation, because its payload is over the limit. Returns the position to continue at."""
        frames.append(data[position : end + 2])
        reached = max(end + 2, min(after, len(data)))
        self._skipped = after - reached
        return reached

    def _keep_line(self, rest: bytes) -> None:
        if len(rest) > LINE:
            raise refuse(f"a line of more than {LINE} bytes: is this a NATS server?", "too_large", close_code=1009)
        self._head = rest

    def _keep(self, data: bytes) -> None:
        """Store part of an operation. Small parts are joined so that one-byte slices do not cost an object each."""
        self._there += len(data)
        self._missing -= len(data)
        parts = self._parts
        if parts and isinstance(parts[-1], bytearray) and len(data) < 4096:
            parts[-1] += data
        else:
            parts.append(bytearray(data) if len(data) < 4096 else data)

    def _check_first_words(self, line: bytes) -> None:
        self._plain = False
        if line[:5].upper() == b"INFO ":
            try:
                required = _first_words(line[5:]).tls_required
            except (ValueError, RecursionError):
                return  # the session reports it
            if required:
                raise refuse("the server requires TLS: connect to nats+tls://", "tls_required", close_code=1002)


@frozen
class NatsFraming:
    tls_first: bool = False  # The connection starts with TLS (the server's ``handshake_first`` option)
    pack: Callable[[bytes], bytes] = field(default=bytes, init=False, eq=False, repr=False)  # A frame is sent unchanged
    gathers: ClassVar[bool] = True  # A server forwards the bytes it receives

    def cutter(self, limits: Limits, transport: str) -> NatsCutter:
        return NatsCutter(limits.message, plain=transport == "tcp")

    def plain_preface(self, data: bytes) -> int | None:
        if self.tls_first:
            return None
        end = data.find(CRLF)
        if end < 0:
            return 0
        line = data[:end]
        if line[:5].upper() != b"INFO ":
            usual = "a NATS server with INFO (with ?tls_first=true TLS comes first)"
            raise refuse(f"the server begins with {line[:40]!r}, {usual}")
        try:
            said = _first_words(line[5:])
        except (ValueError, RecursionError) as error:
            raise refuse(f"the INFO of the server is not JSON: {error}") from None
        if not (said.tls_required or said.tls_available):
            raise refuse("the server has no TLS: connect to nats+tcp://, or configure its certificate")
        return end + 2


PING: Final = b"PING\r\n"
PONG: Final = b"PONG\r\n"
INBOX_SID: Final = "1"  # Subscription to all answers; patterns and handlers have higher numbers

_MAX_SID: Final = 20
_INBOX_SID: Final = INBOX_SID.encode()
_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(dict[str, Any]).decode


@define(eq=False)
class NatsOperation:
    verb: str  # In upper case: ``MSG``, ``PUB``...; ``OK`` and ``ERR`` without their signs
    subject: str = ""
    sid: str = ""  # The client's id of a subscription
    reply: str | None = None
    headers: HeaderBlock | None = None
    payload: bytes = b""
    queue: str | None = None
    most: int | None = None  # For UNSUB: messages that are still delivered
    info: dict[str, Any] | None = None  # The JSON of INFO and CONNECT
    text: str = ""


_REMEMBERED: Final = 512

Delivery: TypeAlias = tuple[str, str, str | None, HeaderBlock | None, bytes]
"""Subject, sid, reply subject, headers and payload of a message."""


class OperationReader:
    __slots__ = ("_known_blocks", "_last_reply", "_limit", "_names", "_sids", "_starts", "headers")

    def __init__(self, limits: Limits) -> None:
        self._limit = limits.subject
        self._names: Memo[bytes, str] = Memo(self._checked_name)
        self._sids: Memo[bytes, str] = Memo(_sid)
        self._starts: dict[bytes, tuple[str, str, str | None]] = {}
        """Subject, sid and reply by the lines of messages without headers, up to the size. They repeat, sizes may not."""
        self._last_reply: bytes | None = None  # A node's publications have all the same one, and each request its own
        self.headers: Final = HeaderReader(limits.headers)
        self._known_blocks = self.headers.known

    def read(self, frame: bytes) -> NatsOperation:
        """Read a frame. If the stream is broken, and not only this message, the `RemoteProtocolError` has a `close_code`."""
        end = frame.find(CRLF)
        if end < 0:
            raise _out_of_step(f"no line: {frame[:60]!r}", "bad_length")
        line = frame[:end]
        verb, *tokens = words_of(line) or [b""]
        kind = verb.upper()
        if kind in _DELIVERIES:
            return NatsOperation(kind.decode(), *self._delivery(tokens, frame, end, *_DELIVERIES[kind]))
        read = _READERS.get(kind)
        if read is None:
            raise _out_of_step(f"{line[:60]!r} is not a NATS operation", "unknown_type")
        if len(frame) != end + 2:
            raise _out_of_step(f"{len(frame) - end - 2} bytes follow the line {line[:60]!r}")
        return read(self, tokens, line)

    def delivery(self, frame: bytes) -> Delivery:
        end = frame.find(CRLF)
        line, rest = frame[:end], frame[end + 2 : -2]
        start, _, size = line.rpartition(b" ")
        known = self._starts.get(start)
        if known is not None and size == b"%d" % len(rest) and frame[-2:] == CRLF:
            return *known, None, rest
        parts = line.split(b" ")
        # Fast path for well-formed lines with cached names; the rest is checked in full.
        if parts[-1] == b"%d" % len(rest) and frame[-2:] == CRLF and b"" not in parts and b"\t" not in line:
            reply = head = None
            if len(parts) == 4 and parts[0] == b"MSG":
                _, name, sid, _ = parts
            elif len(parts) == 6 and parts[0] == b"HMSG":
                _, name, sid, reply, head, _ = parts
            elif len(parts) == 5:
                verb, name, sid, middle, _ = parts
                reply, head = (middle, None) if verb == b"MSG" else (None, middle)
            else:
                return self._unusual_delivery(frame, end)
            limit, block = self._limit, None
            if head is not None and head.isdigit() and len(head) < _DIGITS and (length := int(head)) <= len(rest):
                block = self._known_blocks.get(rest[:length])
                rest = rest[length:]
            if (head is None or block is not None) and len(name) <= limit and (reply is None or len(reply) <= limit):
                number = self._sids[sid]
                try:
                    # The subject of an answer is not seen again.
                    subject = name.decode() if number == INBOX_SID else self._names[name]
                    answer = None if reply is None else reply.decode()
                    if head is None and number != INBOX_SID:
                        if reply is None or reply == self._last_reply:
                            remember(self._starts, start, (subject, number, answer), _REMEMBERED)
                        self._last_reply = reply
                    return subject, number, answer, block, rest
                except UnicodeDecodeError:
                    pass  # reported below
        return self._unusual_delivery(frame, end)

    def _unusual_delivery(self, frame: bytes, end: int) -> Delivery:
        verb, *tokens = words_of(frame[:end])
        return self._delivery(tokens, frame, end, *_DELIVERIES[verb.upper()])

    def _delivery(self, tokens: list[bytes], frame: bytes, end: int, lengths: int, with_sid: bool) -> Delivery:
        """Read MSG, HMSG, PUB or HPUB: the subject, the sid (if from a server), an optional reply subject, and the lengths."""
        names = tokens[: len(tokens) - lengths]
        least = 2 if with_sid else 1
        if not least <= len(names) <= least + 1:
            raise _out_of_step(f"{frame[:end][:60]!r} has too few or too many parts")
        # Each answer has its own subject, so caching it is useless.
        subject = self._reply(names[0]) if with_sid and names[1] == _INBOX_SID else self._names[names[0]]
        reply = self._reply(names[least]) if len(names) > least else None
        sid = _sid(names[1]) if with_sid else ""
        total, head = _length(tokens[-1]), _length(tokens[-2]) if lengths == 2 else 0
        start = end + 2
        if len(frame) == start and total:
            raise refuse(f"a payload of {total} bytes is over the limit (limit: message)", "too_large", reply)
        if len(frame) - start != total + 2 or frame[-2:] != CRLF:
            raise _out_of_step(f"no line end after the {total} bytes that {frame[:end][:60]!r} announces", "bad_length")
        if lengths == 1:
            return subject, sid, reply, None, frame[start:-2]
        if head > total:
            raise _out_of_step(f"headers of {head} bytes in a message of {total}")
        return subject, sid, reply, self.headers.read(frame[start : start + head]), frame[start + head : -2]

    def _reply(self, data: bytes) -> str:
        """Decode a reply subject. It cannot contain a blank and is only used for sending, so other faults are harmless."""
        if len(data) > self._limit:
            raise refuse(f"a subject of {len(data)} bytes is longer than {self._limit} (limit: subject)", "invalid_subject")
        try:
            return data.decode()
        except UnicodeDecodeError:
            return self._checked_name(data)

    def _subscription(self, tokens: list[bytes], line: bytes) -> NatsOperation:
        if not 2 <= len(tokens) <= 3:
            raise _out_of_step(f"{line[:60]!r}: SUB has a subject, perhaps a queue, and a sid")
        queue = self._names[tokens[1]] if len(tokens) == 3 else None
        return NatsOperation("SUB", self._checked_name(tokens[0], pattern=True), _sid(tokens[-1]), queue=queue)

    def _unsubscription(self, tokens: list[bytes], line: bytes) -> NatsOperation:
        if not 1 <= len(tokens) <= 2:
            raise _out_of_step(f"{line[:60]!r}: UNSUB has a sid, and perhaps a number")
        return NatsOperation("UNSUB", sid=_sid(tokens[0]), most=_length(tokens[1]) if len(tokens) == 2 else None)

    def _checked_name(self, data: bytes, *, pattern: bool = False) -> str:
        try:
            name = data.decode()
        except UnicodeDecodeError as error:
            raise refuse(f"the subject is not UTF-8 at byte {error.start}", "invalid_subject") from error
        fault = fault_in_name(name, self._limit, pattern=pattern)
        if fault is not None:
            raise refuse(fault, "invalid_subject")
        return name


_DELIVERIES: Final = {b"MSG": (1, True), b"HMSG": (2, True), b"PUB": (1, False), b"HPUB": (2, False)}
"""The number of lengths in each operation with a payload, and whether the operation has a sid."""
_READERS: Final[Mapping[bytes, Callable[[OperationReader, list[bytes], bytes], NatsOperation]]] = {
    b"SUB": OperationReader._subscription,
    b"UNSUB": OperationReader._unsubscription,
    b"INFO": lambda reader, tokens, line: _read_json("INFO", line),
    b"CONNECT": lambda reader, tokens, line: _read_json("CONNECT", line),
    b"PING": lambda reader, tokens, line: NatsOperation("PING"),
    b"PONG": lambda reader, tokens, line: NatsOperation("PONG"),
    b"+OK": lambda reader, tokens, line: NatsOperation("OK"),
    b"-ERR": lambda reader, tokens, line: NatsOperation(
        "ERR", text=line.strip()[4:].decode("utf-8", "replace").strip().strip("'")
    ),
}


def _read_json(verb: str, line: bytes) -> NatsOperation:
    try:
        return NatsOperation(verb, info=_decode(line.lstrip()[len(verb) :]))
    except (ValueError, RecursionError) as error:
        raise _out_of_step(f"{verb} is not followed by a JSON object: {error}") from error


def _out_of_step(text: str, reason: str = "malformed") -> RemoteProtocolError:
    """Return the error for a line that no server sends. The reader has lost the framing."""
    return refuse(text, reason, close_code=1002)


def _sid(data: bytes) -> str:
    if len(data) > _MAX_SID or not data.isalnum():
        raise _out_of_step(f"{data[:40]!r} is not a sid")
    return data.decode()


def _length(data: bytes) -> int:
    if len(data) > _MAX_SID or not data.isdigit():
        raise _out_of_step(f"{data[:40]!r} is not a length")
    return int(data)


def cut_delivery(frame: bytes) -> tuple[str | None, bytes, bytes]:
    """Split MSG or HMSG, which may be malformed, into reply subject, headers and payload.

    If the payload was skipped because of its size, headers and payload are empty.
    """
    line, _, rest = frame.partition(CRLF)
    verb, *tokens = words_of(line)
    lengths = 2 if verb.upper() == b"HMSG" else 1
    head = int(tokens[-2]) if lengths == 2 and len(tokens) > 3 and tokens[-2].isdigit() else 0
    reply = tokens[2].decode("utf-8", "replace") if len(tokens) - lengths == 3 else None
    return reply, rest[:head], rest[head : -len(CRLF)]


def write_publication(subject: str, reply: str | None, block: bytes, payload: bytes) -> bytes:
    return write_named(f"{subject} {reply}" if reply else subject, block, payload)


def write_named(names: str, block: bytes, payload: bytes) -> bytes:
    if not block:
        return b"PUB %b %d\r\n%b\r\n" % (names.encode(), len(payload), payload)
    return b"HPUB %b %d %d\r\n%b%b\r\n" % (names.encode(), len(block), len(block) + len(payload), block, payload)


def write_message(subject: str, sid: str, reply: str | None, block: bytes, payload: bytes) -> bytes:
    to = f"{subject} {sid} {reply}".encode() if reply else f"{subject} {sid}".encode()
    if not block:
        return b"MSG %b %d\r\n%b\r\n" % (to, len(payload), payload)
    return b"HMSG %b %d %d\r\n%b%b\r\n" % (to, len(block), len(block) + len(payload), block, payload)


def write_subscription(subject: str, queue: str | None, sid: str) -> bytes:
    return f"SUB {subject} {queue} {sid}\r\n".encode() if queue else f"SUB {subject} {sid}\r\n".encode()


def write_unsubscription(sid: str) -> bytes:
    return f"UNSUB {sid}\r\n".encode()


def write_json(verb: str, members: Mapping[str, Any]) -> bytes:
    try:
        return b"%b %b\r\n" % (verb.encode(), _encode(members))
    except (TypeError, ValueError, RecursionError) as error:
        raise EncodeError(f"{verb}: {error}") from None


def write_error(text: str) -> bytes:
    return f"-ERR '{' '.join(text.split())}'\r\n".encode("utf-8", "replace")


# -- for display ---------------------------------------------------------------------------------------------------------

_PARTS: Final[Mapping[str, tuple[tuple[str, ...], ...]]] = {
    "MSG": (("subject", "sid", "size"), ("subject", "sid", "reply to", "size")),
    "HMSG": (("subject", "sid", "headers' size", "size"), ("subject", "sid", "reply to", "headers' size", "size")),
    "PUB": (("subject", "size"), ("subject", "reply to", "size")),
    "HPUB": (("subject", "headers' size", "size"), ("subject", "reply to", "headers' size", "size")),
    "SUB": (("subject", "sid"), ("subject", "queue", "sid")),
    "UNSUB": (("sid",), ("sid", "messages")),
}


def dissect(frame: bytes) -> Iterator[FrameField]:
    end = frame.find(CRLF)
    line = frame if end < 0 else frame[:end]
    if not line:
        return
    verb, *_ = line.split(None, 1) or [line]
    name = verb.decode("utf-8", "replace").upper()
    start = line.find(verb)
    yield FrameField(start, len(verb), "operation", name, "cut off: the line has no end" if end < 0 else "")
    rest = start + len(verb)
    forms = _PARTS.get(name)
    if forms is None:
        if line[rest:].strip():
            yield FrameField(rest, len(line) - rest, "text", shown_text(line[rest:].strip()))
    else:
        yield from _line_fields(line, rest, forms)
    if end >= 0:
        yield from _payload_fields(frame, end, name)


def _line_fields(line: bytes, start: int, forms: tuple[tuple[str, ...], ...]) -> Iterator[FrameField]:
    tokens = words_of(line[start:])
    names = next((form for form in forms if len(form) == len(tokens)), None)
    for index, token in enumerate(tokens):
        start = line.find(token, start)
        note = f"{len(tokens)} parts where there are {' or '.join(str(len(form)) for form in forms)}" if names is None else ""
        yield FrameField(start, len(token), "part" if names is None else names[index], shown_text(token), note)
        start += len(token)


def _payload_fields(frame: bytes, end: int, name: str) -> Iterator[FrameField]:
    start = end + 2
    try:
        size = announced(frame[:end])
    except ValueError:
        size = None
    if size is None:
        if len(frame) > start:
            yield FrameField(start, len(frame) - start, "trailing", shown_text(frame[start:]), "extra bytes")
        return
    there = frame[start : start + size]
    head = _headers_size(frame[:end], len(there)) if name[:1] == "H" else 0
    if head:
        yield from _header_fields(there[:head], start)
    note = f"cut off: {len(there)} of {size} bytes" if len(there) < size else ""
    if len(there) > head or note:
        yield FrameField(start + head, len(there) - head, "payload", shown_text(there[head:]), note)
    trailing = frame[start + size + 2 :]
    if trailing:
        yield FrameField(start + size + 2, len(trailing), "trailing", shown_text(trailing), "extra bytes")


def _headers_size(line: bytes, most: int) -> int:
    tokens = words_of(line)
    given = tokens[-2] if len(tokens) > 1 else b""
    return min(int(given), most) if given.isdigit() and len(given) < 11 else 0


def _header_fields(block: bytes, start: int) -> Iterator[FrameField]:
    for line in block.split(CRLF):
        if line:
            yield FrameField(start, len(line), "header", shown_text(line))
        start += len(line) + 2
