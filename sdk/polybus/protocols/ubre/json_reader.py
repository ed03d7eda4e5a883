"""Reads UBRE as JSON text (document UBRE, "JSON Message Format"; npm ubre 0.0.23).

Reading is in two steps. The first letter of a frame foretells its verb, and the shape of that verb is decoded with unknown
members forbidden, so that this one pass also proves that there is exactly one verb. Frames that do not fit (members in another
order, unknown members, nonsense) are read again without haste. A body is cut out as bytes and decoded at once: cutting alone
would let numbers pass that no decoder takes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import msgspec
from msgspec import UNSET, Raw, Struct

from ...body import OCTETS, check_json
from ...errors import RemoteProtocolError
from ...limits import Limits
from ...message import Kind, Message
from . import json_shapes as shapes
from .checks import WIRE_RULES, check_id, check_subject, read_ttl, refuse, refuse_json
from .document import named_in_body
from .members import credit, end, error, opening

# The kinds of the hot path as plain names: an attribute of an enum class costs three times as much.
_REQUEST, _RESPONSE, _PUBLISH, _ITEM = Kind.REQUEST, Kind.RESPONSE, Kind.PUBLISH, Kind.ITEM
_decode: Final = msgspec.json.Decoder().decode
_members: Final = msgspec.json.Decoder(dict[str, Raw]).decode

_Reader: TypeAlias = tuple[Callable[[bytes], Any], Callable[[Any], Message]]


def _strict(shape: type[Struct]) -> Callable[[bytes], Any]:
    strict = msgspec.defstruct(shape.__name__, [], bases=(shape,), forbid_unknown_fields=True, gc=False)
    return msgspec.json.Decoder(strict).decode


class JsonReader:
    """Makes messages of JSON frames, in either dialect."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        # Shorter than this, text is within its limit however many bytes its characters have (at most four each).
        self._short_subject = limits.subject // 4
        self._short_id = limits.id // 4
        # Shorter than this, a frame can be neither too large nor too deep.
        self._short_frame = min(limits.message, 2 * limits.depth)
        readers: list[tuple[type[Struct], Callable[[Any], Message]]] = [
            (shapes.RequestShape, self._request),
            (shapes.SuccessShape, self._success),
            (shapes.PublishShape, self._publish),
            (shapes.ItemShape, self._item),
            (shapes.FailShape, lambda fields: error(self._id(fields.fail), fields.body, fields, limits)),
            (shapes.SubscribeShape, lambda fields: self._interest(Kind.SUBSCRIBE, fields.subscribe)),
            (shapes.UnsubscribeShape, lambda fields: self._interest(Kind.UNSUBSCRIBE, fields.unsubscribe)),
            (shapes.CancelShape, lambda fields: Message(Kind.CANCEL, "", self._id(fields.cancel))),
            (shapes.OpenShape, self._open),
            (shapes.CreditShape, lambda fields: credit(self._id(fields.credit), fields)),
            (shapes.EndShape, lambda fields: end(self._id(fields.end), fields)),
        ]
        self._by_verb: dict[str, _Reader] = {}
        # Keyed by the third byte of a frame, `{"r...`. Where two verbs share a letter, the first one above has it.
        self._by_letter: dict[int, _Reader] = {}
        for shape, build in readers:
            verb = shape.__name__.removesuffix("Shape").lower()
            self._by_verb[verb] = msgspec.json.Decoder(shape).decode, build
            self._by_letter.setdefault(ord(verb[0]), (_strict(shape), build))

    def read(self, frame: bytes) -> Message:
        try:
            if len(frame) > self._short_frame or not frame.isascii():
                self._check(frame)
            try:
                decode, build = self._by_letter[frame[2]]
                fields = decode(frame)
            except (LookupError, ValueError, RecursionError):
                pass  # another member, another order or a mistake
            else:
                return build(fields)
            return self._read_any(frame)
        except RemoteProtocolError as error:
            error.frame = frame[:200]
            raise
        except (ValueError, RecursionError) as error:
            refused = refuse_json(error)
            refused.frame = frame[:200]
            raise refused from error

    def _check(self, frame: bytes) -> None:
        if len(frame) > self._limits.message:
            raise WIRE_RULES.refuse_size(len(frame), self._limits.message)
        # The limit is for bodies; around them are at most two levels, in the document's dialect.
        check_json(frame, self._limits.depth + 2)

    def _read_any(self, frame: bytes) -> Message:
        members = _members(frame)
        verbs = [name for name in members if name in self._by_verb]
        if not verbs:
            raise refuse("no verb of UBRE in the message", "unknown_verb")
        if len(verbs) > 1:
            raise refuse(f"more than one verb: {', '.join(sorted(verbs))}", "ambiguous")
        decode, build = self._by_verb[verbs[0]]
        return build(decode(frame))

    def _request(self, fields: shapes.RequestShape) -> Message:
        id = fields.id
        if id is UNSET:
            return self._request_of_the_document(fields)
        if type(id) is not str or not 0 < len(id) <= self._short_id:
            check_id(id, self._limits.id)
        subject = fields.request
        if type(subject) is not str or len(subject) > self._short_subject or not subject.isprintable():
            check_subject(subject, self._limits.subject, id, empty=True)
        message = Message(_REQUEST, subject, id)
        if fields.ttl is not None:
            message.ttl = read_ttl(fields.ttl, id)
        if fields.headers is not None:
            message.headers = WIRE_RULES.read_headers(fields.headers, self._limits.headers, id)
        raw = bytes(fields.body)
        if raw:
            try:
                message.decoded = _decode(raw)
            except (ValueError, RecursionError) as error:
                raise refuse_json(error, id) from error
            message.raw = raw
        return message

    def _request_of_the_document(self, fields: shapes.RequestShape) -> Message:
        """``{"request": id, "body": {"subject": ..., "body": ...}}``; any other body is for the subject ``""``."""
        found = named_in_body(fields.body)
        subject, body = ("", fields.body) if found is None else (found.subject, found.body)
        return self._request(shapes.RequestShape(subject, fields.request, body, fields.ttl, fields.headers))

    def _publish(self, fields: shapes.PublishShape) -> Message:
        subject = fields.publish
        if type(subject) is not str or not 0 < len(subject) <= self._short_subject or not subject.isprintable():
            check_subject(subject, self._limits.subject)
        message = Message(_PUBLISH, subject)
        if fields.headers is not None:
            message.headers = WIRE_RULES.read_headers(fields.headers, self._limits.headers)
        raw = bytes(fields.body)
        if raw:
            message.decoded = _decode(raw)
            message.raw = raw
        return message

    def _success(self, fields: shapes.SuccessShape) -> Message:
        id = fields.success
        if type(id) is not str or not 0 < len(id) <= self._short_id:
            check_id(id, self._limits.id)
        message = Message(_RESPONSE, "", id)
        try:
            if fields.headers is not None:
                message.headers = WIRE_RULES.read_headers(fields.headers, self._limits.headers)
            raw = bytes(fields.body)
            if raw:
                message.decoded = _decode(raw)
                message.raw = raw
        except (ValueError, RecursionError, RemoteProtocolError) as error:
            refused = error if isinstance(error, RemoteProtocolError) else refuse_json(error)
            refused.reply_id = id
            raise refused from error
        return message

    def _item(self, fields: shapes.ItemShape) -> Message:
        message = Message(_ITEM, "", self._id(fields.item))
        self._add_body(message, fields)
        return message

    def _open(self, fields: shapes.OpenShape) -> Message:
        id = self._id(fields.open)
        check_subject(fields.subject, self._limits.subject, id, empty=True)
        message = opening(id, fields.subject, fields, self._limits)
        self._add_body(message, fields, id)
        return message

    def _add_body(self, message: Message, fields: shapes.ItemShape | shapes.OpenShape, answer_id: Any = None) -> None:
        raw = bytes(fields.body)
        if fields.data is not UNSET:
            if raw:
                raise refuse("both body and data", "ambiguous", answer_id)
            message.raw = message.decoded = fields.data
            message.format = OCTETS
        elif raw:
            try:
                message.decoded = _decode(raw)
            except (ValueError, RecursionError) as error:
                raise refuse_json(error, answer_id) from error
            message.raw = raw

    def _interest(self, kind: Kind, subject: Any) -> Message:
        check_subject(subject, self._limits.subject)
        return Message(kind, subject)

    def _id(self, id: Any) -> Any:
        if type(id) is not str or not 0 < len(id) <= self._short_id:
            check_id(id, self._limits.id)
        return id
