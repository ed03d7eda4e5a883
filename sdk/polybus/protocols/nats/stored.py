"""Stored publications on this wire: who is given one, where it is acknowledged, and what the engine says.

The same for the streams of a cluster and for those of others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from attrs import evolve, frozen

from ...errors import RemoteProtocolError
from ...message import Kind, Message
from .checks import refuse
from .connection import NatsConnection
from .failures import ServerError
from .headers import (
    AGAIN,
    MESSAGE_ID,
    ONLY,
    HeaderBlock,
    raw_without_those_of_engine,
    without_those_of_engine,
    write_block,
)
from .operations import cut_delivery, write_named

ACKS: Final = "$JS.ACK."
"""The beginning of subjects where stored publications are acknowledged."""


@frozen
class ToEngine:
    """A question to the engine itself: its subject is one of the wire."""


@frozen
class ToStore:
    """A publication that the engine answers when it has stored it.

    Attributes:
        id: Of the publication: one that comes again under the same id is stored once. Empty for none.
        at: Its subject on the wire, where that is not the one of a publication.
        only: The one durable handler that it is for, where that is not all.
        again: It was sent before, and whoever listens may have heard it.
        block: Headers as they stand on the wire, in place of all that would be written; empty for none.
        until: Time from which on it is not sent again: the store may have forgotten its id.
    """

    id: str
    at: str = ""
    only: str = ""
    again: bool = False
    block: bytes = b""
    until: float = math.inf


@frozen
class ToReader:
    """A stored publication for a reader of its store, or a word of the engine to that reader.

    Attributes:
        reader: The number that the reader was subscribed by; 0 in a word for all of the consumer's.
        ack: Where it says what has become of the publication; of a word of the engine, where it may not say that, or empty.
        attempt: How often it has been given to a reader, this time included.
        number: Of the publication in its store.
        consumer: Whom the engine gave it to.
        place: Of this time among all that the consumer was given.
        status: Of a word of the engine; 0 for a publication.
        text: Beside the status.
        left: Publications that were asked for and do not come any more, where a word says so.
        only: The one durable handler that it is for; None where it is for all.
        fault: Why a publication cannot be read; empty where it can.
        block: Headers that cannot be read, as they stand on the wire; empty where they can, and where nothing has come of it.
    """

    reader: int
    ack: str = ""
    attempt: int = 1
    number: int = 0
    consumer: str = ""
    place: int = 0
    status: int = 0
    text: str = ""
    left: int | None = None
    only: str | None = None
    fault: str = ""
    block: bytes = b""


_HEAD: Final = "$JS"
_PULLS: Final = ".API.CONSUMER.MSG.NEXT."
"""Behind ``$JS``, or that and a domain, the subject where stored publications are asked for; stream and consumer follow."""
_DIGITS: Final = 20
"""Digits of a number of JetStream, which is one of 64 bits."""
_NOT_ALLOWED: Final = 403
"""The status of a word that a reader may not say what has become of its publications, or not ask for more."""


def api_of(domain: str) -> str:
    """The beginning of subjects where an engine is asked about streams, of its own domain or of another."""
    return f"{_HEAD}.{domain}.API." if domain else f"{_HEAD}.API."


def read_pull(subject: str) -> str:
    """Read the stream and the consumer that are asked for publications at a subject; empty where it is for anything else."""
    head, _, asked = subject.partition(_PULLS)
    return asked if head == _HEAD or (head.startswith(f"{_HEAD}.") and head.count(".") == 1) else ""


@frozen
class AckSubject:
    """The facts in the subject where a stored publication is acknowledged.

    Attributes:
        subject: That subject.
        stream: Where it is stored.
        consumer: Whom it was given to.
        attempt: How often it has been given to a reader, this time included.
        number: Of the publication in its store.
        place: Of this time among all that the consumer was given.
    """

    subject: str
    stream: str
    consumer: str
    attempt: int
    number: int
    place: int


def read_ack(reply: str | None) -> AckSubject:
    """Read the subject where a stored publication is acknowledged.

    That is ``$JS.ACK.<stream>.<consumer>.<attempt>.<number>.<place>.<...>``, of newer servers with a domain and an account
    before the stream (NATS documentation, "NATS JetStream wire API", ADR-15). May raise `RemoteProtocolError`: it is none.
    """
    tokens = (reply or "").split(".")
    at = 3 if len(tokens) == 9 else 5
    if reply is None or tokens[:2] != ["$JS", "ACK"] or len(tokens) < 9:
        raise refuse(f"{(reply or '')[:60]!r} is not where a stored publication is acknowledged", "malformed")
    numbers = tokens[at + 1 : at + 4]
    if not all(number.isascii() and number.isdigit() and len(number) <= _DIGITS for number in numbers):
        raise refuse(f"{reply[:60]!r} has no number of a publication", "malformed")
    attempt, number, place = map(int, numbers)
    return AckSubject(reply, tokens[at - 1], tokens[at], attempt, number, place)


def read_stored(payload: bytes) -> dict[str, Any] | None:
    """Read what a stream says of a publication; None where this is somebody else's answer.

    That is an object with the name of the stream and the number there, or with an error (NATS documentation, "NATS JetStream
    wire API", ``io.nats.jetstream.api.v1.pub_ack_response``).
    """
    try:
        said = msgspec.json.decode(payload)
    except (ValueError, RecursionError):
        return None
    if not isinstance(said, dict):
        return None
    number, error = said.get("seq"), said.get("error")
    if isinstance(error, dict) and isinstance(error.get("err_code"), int):
        return said
    stored = isinstance(said.get("stream"), str) and isinstance(number, int) and number > 0 and error is None
    return said if stored else None


def give(reader: int, reply: str | None, headers: HeaderBlock | None) -> ToReader:
    """Make the address of a stored publication. May raise `RemoteProtocolError`: nobody has given it.

    Headers that exceed this reader's limit make it one that cannot be read, with the block as it is: another reader can.
    """
    ack = read_ack(reply)
    only = None if headers is None else headers.only
    to = ToReader(reader, ack.subject, ack.attempt, ack.number, ack.consumer, ack.place, only=only)
    if headers is not None and headers.whole:
        return evolve(to, fault=headers.left_out, block=raw_without_those_of_engine(headers.whole))
    return to


def word_of_engine(reader: int, headers: HeaderBlock) -> Message:
    """Make a word of the engine to a reader: a status, and how much does not come any more of what was asked for."""
    fields: Mapping[str, str] = headers.fields or {}
    left = fields.get("Nats-Pending-Messages", "")
    pending = int(left) if left.isascii() and left.isdigit() and len(left) < 12 else None
    told = ToReader(reader, status=headers.status or 0, text=headers.text, left=pending)
    return Message(Kind.CONTROL, peer=told)


def give_unreadable(
    reader: int, fault: str, frame: bytes, read: Callable[[bytes], HeaderBlock]
) -> tuple[ToReader, HeaderBlock, bytes]:
    """Make the address of what cannot be read, with its headers and its payload: it would come again for ever.

    It is no fault of the engine's: what is stored does not go away by itself. May raise `RemoteProtocolError`, as `give`.
    """
    reply, block, payload = cut_delivery(frame)
    headers = read(block)
    to = give(reader, reply, headers)
    return evolve(to, fault=fault, block=raw_without_those_of_engine(block)), headers, payload


def read_refusal(error: ServerError) -> Message | None:
    """Make the word that the readers of a consumer may not do what they did; None where it is about anything else."""
    subject = error.refused or ""
    consumer = ""
    if asked := read_pull(subject):
        consumer = asked.rpartition(".")[2]
    elif subject.startswith(ACKS):
        try:
            consumer = read_ack(subject).consumer
        except RemoteProtocolError:
            return None
    if not consumer:
        return None
    return Message(Kind.CONTROL, peer=ToReader(0, subject, consumer=consumer, status=_NOT_ALLOWED, text=error.text))


def write_to_engine(
    connection: NatsConnection, names: str, to: ToEngine | ToStore, message: Message, payload: bytes, own: list[tuple[str, str]]
) -> bytes:
    """PUB or HPUB for what the engine itself answers: no deadline, which would be stored with a publication.

    May raise `LocalProtocolError`: a header of the application has no form on this wire.
    """
    if isinstance(to, ToEngine):
        own = []  # it reads what it is written as
    elif to.block:
        return write_named(names, to.block, payload)
    else:
        if to.id:
            own.append((MESSAGE_ID, to.id))
        if to.only:
            own.append((ONLY, to.only))
        if to.again:
            own.append((AGAIN, "1"))
    fields = without_those_of_engine(message.headers)
    block = write_block(fields, own, connection.limits.headers) if own or fields else b""
    return write_named(names, block, payload)
