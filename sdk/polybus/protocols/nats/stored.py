"""Stored publications in NATS: reader addresses, acknowledgements, and messages from the engine."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from attrs import evolve, frozen

from ...errors import RemoteProtocolError
from ...message import Kind, Message
from .headers import (
    AGAIN,
    MESSAGE_ID,
    ONLY,
    HeaderBlock,
    ServerError,
    raw_without_those_of_engine,
    without_those_of_engine,
    write_block,
)
from .operations import refuse, write_named

ACKS: Final = "$JS.ACK."


@frozen
class ToEngine:
    """Address of the engine itself. The message's subject is already in wire form."""


@frozen
class ToStore:
    """Address of a store. The engine sends a confirmation when it has stored the publication."""

    id: str  # Message id, stored once; empty for none
    at: str = ""  # Subject on the wire, if it is not the publication's own
    only: str = ""  # The one durable handler that it is for; empty for all
    again: bool = False  # It was sent before, and subscribers may have received it
    block: bytes = b""  # Header block to send in place of generated headers; empty for none
    until: float = math.inf  # No retries after this time: the store may have forgotten the id


@frozen
class ToReader:
    """Address of a stored publication, or of an engine message, for a reader."""

    reader: int  # Number of the reader's subscription; 0 in a message for all readers of the consumer
    ack: str = ""  # Subject for the acknowledgement; in a refusal the refused subject, or empty
    attempt: int = 1  # Delivery count, this delivery included
    number: int = 0  # Sequence number in the store
    consumer: str = ""
    place: int = 0  # Sequence number among the consumer's deliveries
    status: int = 0  # Of an engine message; 0 for a publication
    text: str = ""
    left: int | None = None  # Requested publications that will not come, if the engine gives a number
    only: str | None = None  # The one durable handler that it is for; None for all
    fault: str = ""  # Reason why the publication is unreadable; empty if readable
    block: bytes = b""  # Unreadable header block as received; empty if readable, or if it was discarded


_HEAD: Final = "$JS"
_PULLS: Final = ".API.CONSUMER.MSG.NEXT."
"""Middle part of a pull's subject. Before it comes ``$JS``, possibly with a domain, and after it the stream and consumer."""
_DIGITS: Final = 20
_NOT_ALLOWED: Final = 403  # Status for a reader that may not acknowledge or pull


def api_of(domain: str) -> str:
    return f"{_HEAD}.{domain}.API." if domain else f"{_HEAD}.API."


def read_pull(subject: str) -> str:
    head, _, asked = subject.partition(_PULLS)
    return asked if head == _HEAD or (head.startswith(f"{_HEAD}.") and head.count(".") == 1) else ""


@frozen
class AckSubject:
    subject: str
    stream: str
    consumer: str
    attempt: int  # Delivery count, this delivery included
    number: int  # Sequence number in the store
    place: int  # Sequence number among the consumer's deliveries


def read_ack(reply: str | None) -> AckSubject:
    """Parse an acknowledgement subject, ``$JS.ACK.<stream>.<consumer>.<attempt>.<number>.<place>.<...>``.

    Newer servers put a domain and an account before the stream (NATS documentation, "NATS JetStream wire API", ADR-15).
    """
    tokens = (reply or "").split(".")
    at = 3 if len(tokens) == 9 else 5
    if reply is None or tokens[:2] != ["$JS", "ACK"] or len(tokens) < 9:
        raise refuse(f"{(reply or '')[:60]!r} is not the acknowledgement subject of a stored publication", "malformed")
    numbers = tokens[at + 1 : at + 4]
    if not all(number.isascii() and number.isdigit() and len(number) <= _DIGITS for number in numbers):
        raise refuse(f"{reply[:60]!r} has no publication number", "malformed")
    attempt, number, place = map(int, numbers)
    return AckSubject(reply, tokens[at - 1], tokens[at], attempt, number, place)


def read_stored(payload: bytes) -> dict[str, Any] | None:
    """Read a stream's confirmation of a publication. Returns `None` if another client has answered.

    The confirmation is an object that contains the stream's name and a sequence number, or an error (NATS documentation, "NATS
    JetStream wire API", ``io.nats.jetstream.api.v1.pub_ack_response``).
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
    """Return the address of a stored publication.

    If the headers exceed this reader's limit, the address contains the original header block: another reader may accept it.
    """
    ack = read_ack(reply)
    only = None if headers is None else headers.only
    to = ToReader(reader, ack.subject, ack.attempt, ack.number, ack.consumer, ack.place, only=only)
    if headers is not None and headers.whole:
        return evolve(to, fault=headers.left_out, block=raw_without_those_of_engine(headers.whole))
    return to


def word_of_engine(reader: int, headers: HeaderBlock) -> Message:
    fields: Mapping[str, str] = headers.fields or {}
    left = fields.get("Nats-Pending-Messages", "")
    pending = int(left) if left.isascii() and left.isdigit() and len(left) < 12 else None
    told = ToReader(reader, status=headers.status or 0, text=headers.text, left=pending)
    return Message(Kind.CONTROL, peer=told)


def read_refusal(error: ServerError) -> Message | None:
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
    names: str, to: ToEngine | ToStore, message: Message, payload: bytes, own: list[tuple[str, str]], limit: int
) -> bytes:
    """Write a message that the engine answers. It has no deadline header, because the engine would store the header."""
    if isinstance(to, ToEngine):
        own = []  # the engine needs no description of the body
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
    block = write_block(fields, own, limit) if own or fields else b""
    return write_named(names, block, payload)
