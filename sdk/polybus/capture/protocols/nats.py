"""Recording and decoding of NATS frames, including stored publications and messages between cluster nodes.

A stored publication produces three kinds of exchange: the publication, which a stream confirms, each delivery, which a reader
acknowledges, and the dead letter after the last failure. Sources: NATS documentation, "NATS JetStream wire API Reference"
(acknowledgements, ``pub_ack_response``); for nodes of a cluster `polybus.protocols.nats.cluster.subjects`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from ...errors import Code, RemoteProtocolError
from ...message import Kind, Message
from ...plugins.tools import is_secret
from ...protocols.nats.cluster.subjects import REPLAY, node_word
from ...protocols.nats.codec import INBOX
from ...protocols.nats.headers import code_of_status
from ...protocols.nats.stored import ACKS, AckSubject, read_ack, read_pull, read_stored
from ..record.redact_search import MOST
from .shared import FIELDS, StoredFacts, plain_event, starred

PUBLICATION: Final = "publication"
DELIVERY: Final = "delivery"
DEAD_LETTER: Final = "dead letter"
_WORKING: Final = b"+WPI"
_SETTLED: Final[Mapping[bytes, tuple[Code, str]]] = {
    b"-NAK": (Code.ABORTED, "NAK"),
    b"+TERM": (Code.FAILED_PRECONDITION, "TERM"),
}
"""Acknowledgements that do not report success."""
_FULL: Final = "maximum "
"""First word of the answer from a full stream."""
_READER: Final = re.compile(r"_INBOX\.\w{20}\.j\.\d{1,20}", re.ASCII)
"""Subjects for answers to a client that requests publications from an external stream."""
_WORDS_OF_NODES: Final = ("c", "h", "j", "p", "t")
_DEAD: Final = ".dead."
_MOST: Final = 2**63 - 1
_MOST_ATTEMPTS: Final = 2**31 - 1
_DIGITS: Final = 19
_CONTROL, _HEARTBEAT, _PUBLISH, _REQUEST, _RESPONSE = "control", "heartbeat", "publish", "request", "response"
_ACKS, _INBOX = ACKS.encode(), INBOX.encode()
_SETTLING: Final = (b"+ACK", b"+NXT", b"-NAK", b"+TERM", b"+WPI")
_TEXTS: Final = (b"nats-service-error", b"polybus-text")
SUSPECT: Final = r"|^connect[ \t]"
"""Expression that finds suspicious frames, in addition to names. It matches every CONNECT."""
_CONNECT: Final = re.compile(rb"\s*connect\s", re.I)
_MEMBER: Final = re.compile(rb'"(?:pass|auth_token|jwt|sig)"\s*:\s*"((?:[^"\\]|\\.)*)"', re.I)
_WITH_HEADERS: Final = re.compile(rb"\s*h(?:pub|msg)\s[^\r\n]*?(\d{1,9})\s+\d+\r\n", re.I)
_HEADER: Final = re.compile(rb"(?<![!-9;-~])([!-9;-~]+):[ \t]*([^\r\n]+)")


class _Facts(NamedTuple):
    kind: str
    subject: str | None
    correlation_id: str | None = None
    code: int | None = None
    code_name: str | None = None
    stored: StoredFacts | None = None


_FACTS: Final = tuple(map(FIELDS.index, _Facts.__annotations__))


def without_body(frame: bytes, options: Mapping[str, Any], cut: bool) -> bytes:
    line, end, rest = frame.partition(b"\r\n")
    verb, *names = line.split()
    kind = verb.upper()
    if kind in (b"PUB", b"MSG"):
        said = _said_to_engine(names[0], rest[: int(names[-1])])
        return b" ".join((verb, *names[:-1], b"%d" % len(said))) + b"\r\n" + said + b"\r\n"
    if kind not in (b"HPUB", b"HMSG"):
        return line + end
    block = _told_by_nats(rest[: int(names[-2])])
    return b" ".join((verb, *names[:-2], b"%d" % len(block), b"%d" % len(block))) + b"\r\n" + block + b"\r\n"


def _said_to_engine(subject: bytes, payload: bytes) -> bytes:
    """Return an acknowledgement of a delivery or a stream's answer to a publication, and otherwise empty bytes."""
    if subject.startswith(_ACKS):
        return payload.partition(b" ")[0] if payload.startswith(_SETTLING) else b""
    is_answer = subject.startswith(_INBOX) or node_word(subject.decode("utf-8", "replace")) == "a"
    return payload if is_answer and engine_says(payload) is not None else b""


def _told_by_nats(block: bytes) -> bytes:
    lines = block.split(b"\r\n")
    return b"\r\n".join(line for line in lines if line.partition(b":")[0].lower() not in _TEXTS)


def blank(frame: bytes) -> bytes:
    """Blank secrets in CONNECT and headers. Returns the same object if nothing changes."""
    if _CONNECT.match(frame):
        frame = frame[:MOST]
        return starred(frame, (found.span(1) for found in _MEMBER.finditer(frame)))
    head = _WITH_HEADERS.match(frame)
    if head is None:
        return frame
    if int(head[1]) > MOST:
        frame = frame[: head.end() + MOST]
    lines = _HEADER.finditer(frame, head.end(), head.end() + int(head[1]))
    return starred(frame, (found.span(2) for found in lines if is_secret(found[1].decode("ascii"))))


def event(message: Message) -> list[Any]:
    row = plain_event(message)
    facts = _read(message)
    if facts is not None:
        for place, value in zip(_FACTS, facts, strict=True):
            row[place] = value
    return row


def _read(message: Message) -> _Facts | None:
    subject, reply = str(message.subject), message.reply_to
    if message.kind is Kind.RESPONSE:
        return _answer(message)
    if message.kind is Kind.ERROR and _READER.fullmatch(str(message.id)):  # a status of the engine, not an answer
        return _Facts(_CONTROL, str(message.id))
    if message.kind not in (Kind.PUBLISH, Kind.REQUEST):
        return None
    if subject.startswith(ACKS):
        return _settlement(subject, message.raw or b"")
    if reply is not None and reply.startswith(ACKS):
        return _delivery(subject, reply)
    if read_pull(subject) or node_word(subject) in _WORDS_OF_NODES:
        return _Facts(_CONTROL, subject)
    word = None if reply is None else node_word(reply)
    if word == "a":
        return _of_node(message, subject, str(reply))
    if word in ("h", "p"):  # a node's greeting, or a publication without an answer
        return _Facts(_CONTROL if word == "h" else _PUBLISH, subject)
    return None


def _of_node(message: Message, subject: str, reply: str) -> _Facts | None:
    if node_word(subject) == "y":
        return _Facts(_HEARTBEAT, subject)
    came = "sid" in message.attributes
    if subject.partition(".")[2].startswith("p."):  # subscribers of a publication do not see the answer
        return _Facts(_PUBLISH, subject) if came else _Facts(_REQUEST, subject, reply, stored=StoredFacts(PUBLICATION))
    if _DEAD in subject and not came and (letter := _dead_letter(subject, message.headers or {})) is not None:
        return _Facts(_REQUEST, subject, reply, stored=letter)
    return None


def _dead_letter(subject: str, headers: Mapping[str, str]) -> StoredFacts | None:
    durable, origin = headers.get("Polybus-Durable"), headers.get("Polybus-Origin", "")
    store, _, number = origin.partition(" ")
    if durable is None or not subject.partition(".")[2].startswith(f"dead.{durable}."):
        return None
    attempts = _number(_MOST_ATTEMPTS, headers.get("Polybus-Attempts", ""))
    return StoredFacts(DEAD_LETTER, store, _number(_MOST, number), durable, attempts, headers.get("Polybus-Death"))


def _delivery(subject: str, reply: str) -> _Facts | None:
    try:
        ack = read_ack(reply)
    except RemoteProtocolError:
        return None
    stored = _given(ack)
    if ack.consumer.startswith(REPLAY):  # a replay acknowledges nothing
        return _Facts(_PUBLISH, subject, stored=stored)
    return _Facts(_REQUEST, subject, reply, stored=stored)


def _settlement(subject: str, said: bytes) -> _Facts | None:
    try:
        ack = read_ack(subject)
    except RemoteProtocolError:
        return None
    # Each has its own subject, which repeats the columns.
    short = f"{ACKS}{ack.stream}.{ack.consumer}"
    word, _, rest = said.partition(b" ")
    if word == _WORKING:
        return _Facts(_CONTROL, short, stored=_given(ack))
    code, name = _SETTLED.get(word, (Code.OK, Code.OK.name))
    reason = rest.decode("utf-8", "replace") if code is Code.FAILED_PRECONDITION and rest else None
    return _Facts(_RESPONSE, short, subject, int(code), name, _given(ack, reason))


def _given(ack: AckSubject, reason: str | None = None) -> StoredFacts:
    return StoredFacts(
        DELIVERY, ack.stream, _up_to(_MOST, ack.number), ack.consumer, _up_to(_MOST_ATTEMPTS, ack.attempt), reason
    )


def _answer(message: Message) -> _Facts | None:
    said = engine_says(message.raw or b"")
    if said is None:
        return None
    key, error = str(message.id), said.get("error")
    store = str(said["stream"]) if isinstance(said.get("stream"), str) and said["stream"] else None
    if error is None:
        stored = StoredFacts(PUBLICATION, store, _up_to(_MOST, said["seq"]))
        return _Facts(_RESPONSE, None, key, 0, "DUPLICATE" if said.get("duplicate") is True else Code.OK.name, stored)
    text = str(error.get("description") or "")
    code = Code.RESOURCE_EXHAUSTED if text.startswith(_FULL) else code_of_status(error.get("code"))
    refused = StoredFacts(PUBLICATION, store, reason=text) if "type" not in said else None
    return _Facts(_RESPONSE, None, key, int(code), code.name, refused)


_ABOUT: Final = frozenset(("stream", "seq", "domain", "duplicate", "error", "batch", "count", "val"))
_LONGEST: Final = 2000


def engine_says(payload: bytes) -> dict[str, Any] | None:
    """Parse a stream's answer to a publication, or an error of the engine. Returns `None` for other answers."""
    if not payload.startswith(b"{") or len(payload) > _LONGEST:
        return None
    said = read_stored(payload)
    if said is None or said.keys() <= _ABOUT:
        return said
    kind = said.get("type")
    return said if isinstance(kind, str) and kind.startswith("io.nats.jetstream.api.") and "error" in said else None


def _number(most: int, text: str) -> int | None:
    return _up_to(most, int(text)) if text.isascii() and text.isdigit() and len(text) <= _DIGITS else None


def _up_to(most: int, number: Any) -> int | None:
    """Return a number limited to its column's range, because any program may have written it."""
    return number if type(number) is int and 0 <= number <= most else None
