"""Converts messages to ``cloudevents`` objects and back. The rest of polybus does not use these objects, because they alter
attributes.

The conversion itself leaves most attributes unchanged. It does not add a time, and numbers stay numbers. A hash becomes base64
because the package cannot write bytes, and numbers that the package reads from headers are strings.
"""

from __future__ import annotations

import base64
import datetime
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from ...body import OCTETS, BodyFormat
from ...errors import LocalProtocolError, RemoteProtocolError
from ...limits import Limits
from ...message import Kind, Message
from .._protobuf import ANY
from .._uprotocol import IdFactory, id_time_ms
from .adapter import DEFAULT_ENTITY, UProtocol, UProtocolCodec
from .events import OCTET_STREAM, PROTOBUF, Envelope, format_of, from_text, hash_of
from .names import UProtocolNames
from .rules import MAX_INTEGER, Leniency, refuse

if TYPE_CHECKING:
    from cloudevents.core.base import BaseCloudEvent

_LIMITS: Final = Limits()
_ENVELOPES: Final = {leniency: Envelope(_LIMITS, leniency, local=None) for leniency in Leniency}
_NUMBERS: Final = frozenset({"ttl", "plevel", "commstatus", "permission_level", "credit", "hops"})
_SOURCE_IS_METHOD: Final = frozenset({Kind.RESPONSE, Kind.ERROR})


def to_cloudevent(message: Message, *, entity: str = DEFAULT_ENTITY) -> BaseCloudEvent:
    """Convert a message to an event.

    Missing parts are generated: an id with the current time, addresses that belong to `entity`, and ``time`` from the id.

    Raises:
        EncodeError: If the body cannot be encoded.
        LocalProtocolError: If the message breaks a rule of uProtocol (for example a request without a ttl) or of the package.
        Unsupported: If this kind of message cannot be an event.
        ValueError: If the entity is invalid.
    """
    from cloudevents.core.exceptions import CloudEventValidationError
    from cloudevents.core.v1.event import CloudEvent

    # An entity without authority, so that local addresses are allowed.
    attributes, raw, _ = attributes_of(message, UProtocol(entity="/local/1").codec(), entity)
    made = id_time_ms(attributes["id"])
    try:
        if "time" in attributes:
            attributes["time"] = datetime.datetime.fromisoformat(attributes["time"])
        elif made is not None:
            # The package's constructor would invent a time.
            attributes["time"] = datetime.datetime.fromtimestamp(made / 1000, datetime.UTC)
    except (ValueError, OverflowError, TypeError) as error:
        where = "time" if "time" in attributes else "the time of the id"
        raise LocalProtocolError(f"{where} is not a date that Python supports: {error}", protocol="uprotocol") from error
    attributes = {name: base64.b64encode(v).decode() if isinstance(v, bytes) else v for name, v in attributes.items()}
    try:
        return CloudEvent(attributes, raw)
    except CloudEventValidationError as error:
        text = "; ".join(f"{name}: {', '.join(map(str, found))}" for name, found in error.errors.items())
        raise LocalProtocolError(f"the cloudevents package rejects it: {text}", protocol="uprotocol") from error


def attributes_of(
    message: Message, codec: UProtocolCodec, entity: str = DEFAULT_ENTITY
) -> tuple[dict[str, Any], bytes | None, BodyFormat]:
    """Check an event and return its attributes and data. Raises the same errors as `to_cloudevent`."""
    attributes, raw, format = codec.parts(_addressed(message, UProtocolNames(entity, None, _LIMITS.subject)))
    if raw is not None:
        attributes.setdefault("datacontenttype", PROTOBUF if format is ANY else OCTET_STREAM)
        if format is OCTETS:
            attributes.setdefault("dataschema", codec.schema)
    codec.check(attributes, raw is not None, format is ANY)
    return attributes, raw, format


def _addressed(message: Message, names: UProtocolNames) -> Message:
    facts, kind, subject = dict(message.attributes), message.kind, message.subject
    answers = f"{names.entity}/rpc.response"
    known = kind is Kind.REQUEST and isinstance(message.id, str) and len(message.id) == 36
    facts.setdefault("id", message.id if known else IdFactory().next())
    if kind is Kind.REQUEST:
        facts.setdefault("source", answers)
        if "sink" not in facts:
            facts["sink"] = names.method(subject)
        facts.setdefault("priority", "CS4")
    elif kind in _SOURCE_IS_METHOD:
        if "source" not in facts:
            facts["source"] = names.method(subject)
        facts.setdefault("sink", answers)
    elif "source" not in facts:
        facts["source"] = names.topic(subject)
    if kind is Kind.NOTIFY:
        facts.setdefault("sink", names.entity)
    if message.ttl is not None and "ttl" not in facts:
        facts["ttl"] = max(1, round(message.ttl * 1000))
    made = Message(kind, subject, message.id, message.raw, message.format, message.headers, attributes=facts, code=message.code)
    made.decoded, made.checked = message.decoded, message.checked
    return made


def from_cloudevent(event: BaseCloudEvent, *, mode: str = "document", entity: str = DEFAULT_ENTITY) -> Message:
    """Convert an event to a message, using a mode of `UProtocol`.

    Addresses that belong to `entity` become plain subjects, which reverses `to_cloudevent`.

    Raises:
        RemoteProtocolError: If the event is not a uProtocol event. The message names the broken rule.
        ValueError: If the mode or the entity is invalid.
    """
    leniency = Leniency.of(mode)
    data = event.get_data()
    attributes = {name: _plain(name, value, leniency) for name, value in event.get_attributes().items()}
    raw: bytes | None
    try:
        if data is None or isinstance(data, bytes):
            raw = data
        else:
            raw = data.encode() if isinstance(data, str) else msgspec.json.encode(data)
    except (TypeError, ValueError, RecursionError) as error:
        raise refuse(f"the data of the event cannot be written: {error}") from error
    return named(message_of(attributes, raw, leniency), entity)


def named(message: Message, entity: str) -> Message:
    if isinstance(message.subject, str) and "/" in message.subject:
        found = UProtocolNames(entity, None, _LIMITS.subject).subject(message.subject)
        if "/" not in found:
            message.subject = found
    return message


def message_of(attributes: Mapping[str, Any], raw: bytes | None, leniency: Leniency) -> Message:
    content = attributes.get("datacontenttype")
    format = format_of(content if isinstance(content, str) else None)
    if raw is not None:
        raw = from_text(raw, format, _LIMITS.depth)
    try:
        return _ENVELOPES[leniency].examined(dict(attributes), raw, format)
    except (ValueError, RecursionError) as error:
        raise RemoteProtocolError(f"not an event: {error}", protocol="uprotocol") from error


def _plain(name: str, value: Any, leniency: Leniency) -> Any:
    if isinstance(value, datetime.datetime):
        return value.isoformat().replace("+00:00", "Z")
    return typed(name, value, leniency) if isinstance(value, str) else value


def typed(name: str, text: str, leniency: Leniency) -> Any:
    if name in _NUMBERS and text.isascii() and text.isdigit() and len(text) < 11 and int(text) <= MAX_INTEGER:
        return int(text)
    return hash_of(text, leniency) if name == "hash" else text
