"""Reads UBRE as JSON text (document UBRE, "JSON Message Format"; npm ubre 0.0.23).

Reading is in two steps. The first letter of a frame foretells its verb, and the shape of that verb is decoded with unknown
members forbidden, so that this one pass also proves that there is exactly one verb. Frames that do not fit (members in another
order, unknown members, nonsense) are read again without haste. A shape checks nothing else, so that a wrong type gets an error
that says which rule it breaks. A body is cut out as bytes and decoded at once: cutting alone would let numbers pass that no
decoder takes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from ...body import OCTETS, check_json, check_levels
from ...errors import RemoteProtocolError
from ...limits import Limits
from ...message import Kind, Message
from .._rules import MAX_INT
from .checks import WIRE_RULES, check_id, check_subject, read_ttl, refuse, refuse_json
from .members import ChannelMembers, credit, end, error, named_in_body, opening

# The kinds of the hot path as plain names: an attribute of an enum class costs three times as much.
_REQUEST, _RESPONSE, _PUBLISH, _ITEM = Kind.REQUEST, Kind.RESPONSE, Kind.PUBLISH, Kind.ITEM
_decode: Final = msgspec.json.Decoder().decode
_members: Final = msgspec.json.Decoder(dict[str, Raw]).decode

_Reader: TypeAlias = tuple[Callable[[bytes], Any], Callable[[Any], Message]]
_BODY, _HEADERS, _TTL = ("body", Raw, Raw()), ("headers", Any, None), ("ttl", Any, None)
_DATA: Final = ("data", bytes | UnsetType, UNSET)
_SHAPES: Final[Mapping[str, tuple[tuple[type[Struct], ...], list[Any]]]] = {
    "request": ((), [("id", Any, UNSET), _BODY, _TTL, _HEADERS]),
    "success": ((), [_BODY, _HEADERS]),
    "publish": ((), [_BODY, _HEADERS]),
    "item": ((), [_BODY, _DATA]),
    "fail": ((ChannelMembers,), [("body", Any, None)]),
    "subscribe": ((), []),
    "unsubscribe": ((), []),
    "cancel": ((), []),
    "open": ((ChannelMembers,), [("subject", Any, None), _BODY, _DATA]),
    "credit": ((ChannelMembers,), []),
    "end": ((ChannelMembers,), []),
}
"""Of each verb, which is a member too: the members beside it, by a base or one by one."""


def _shape(verb: str, strict: bool) -> type[Struct]:
    bases, members = _SHAPES[verb]
    return msgspec.defstruct(verb, [(verb, Any), *members], bases=bases, forbid_unknown_fields=strict, gc=False)


_Request: Final[Any] = _shape("request", strict=False)


class JsonReader:
    """Makes messages of JSON frames, in either dialect."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        # Shorter than this, text is within its limit however many bytes its characters have (at most four each).
        self._short_subject = limits.subject // 4
        self._short_id = limits.id // 4
        # Shorter than this, a frame can be neither too large nor too deep.
        self._short_frame = min(limits.message, 2 * limits.depth)
        readers: dict[str, Callable[[Any], Message]] = {
            "request": self._request,
            "success": self._success,
            "publish": self._publish,
            "item": lambda fields: self._with_body(Message(_ITEM, "", self._id(fields.item)), fields),
            "fail": lambda fields: error(self._id(fields.fail), fields.body, fields, limits),
            "subscribe": lambda fields: self._interest(Kind.SUBSCRIBE, fields.subscribe),
            "unsubscribe": lambda fields: self._interest(Kind.UNSUBSCRIBE, fields.unsubscribe),
            "cancel": lambda fields: Message(Kind.CANCEL, "", self._id(fields.cancel)),
            "open": self._open,
            "credit": lambda fields: credit(self._id(fields.credit), fields),
            "end": lambda fields: end(self._id(fields.end), fields),
        }
        self._by_verb: dict[str, _Reader] = {}
        # Keyed by the third byte of a frame, `{"r...`. Where two verbs share a letter, the first one above has it.
        self._by_letter: dict[int, _Reader] = {}
        for verb, build in readers.items():
            self._by_verb[verb] = msgspec.json.Decoder(_shape(verb, strict=False)).decode, build
            self._by_letter.setdefault(ord(verb[0]), (msgspec.json.Decoder(_shape(verb, strict=True)).decode, build))

    def read(self, frame: bytes) -> Message:
        try:
            long = len(frame) > self._short_frame
            if long or not frame.isascii():
                self._check(frame)
            try:
                decode, build = self._by_letter[frame[2]]
                fields = decode(frame)
            except (LookupError, ValueError, RecursionError):
                pass  # another member, another order or a mistake
            else:
                return self._with_checked_body(build(fields)) if long else build(fields)
            return self._with_checked_body(self._read_any(frame))
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
        # The limit is for bodies, which are looked at again; around them are at most two levels, in the document's dialect.
        check_json(frame, self._limits.depth + 2)

    def _with_checked_body(self, message: Message) -> Message:
        if message.checked is not None:
            try:
                check_levels(message.checked, self._limits.depth)
            except ValueError as error:
                kind, id = message.kind, message.id
                refused = refuse_json(error, id if kind is _REQUEST or kind is Kind.OPEN else None)
                refused.reply_id = id if kind is _RESPONSE else None
                raise refused from error
        return message

    def _read_any(self, frame: bytes) -> Message:
        members = _members(frame)
        verbs = [name for name in members if name in self._by_verb]
        if not verbs:
            raise refuse("no verb of UBRE in the message", "unknown_verb")
        if len(verbs) > 1:
            raise refuse(f"more than one verb: {', '.join(sorted(verbs))}", "ambiguous")
        decode, build = self._by_verb[verbs[0]]
        return build(decode(frame))

    def _request(self, fields: Any) -> Message:
        id = fields.id
        if id is UNSET:
            # The document's: {"request": id, "body": {"subject", "body"}}; any other body is for the subject "".
            found = named_in_body(fields.body)
            named, body = ("", fields.body) if found is None else (found.subject, found.body)
            fields = _Request(named, fields.request, body, fields.ttl, fields.headers)
            id = fields.id
        if type(id) is not str or not 0 < len(id) <= self._short_id:
            check_id(id, self._limits.id)
        subject = fields.request
        if type(subject) is not str or len(subject) > self._short_subject or not subject.isprintable():
            check_subject(subject, self._limits.subject, id, empty=True)
        message = Message(_REQUEST, subject, id)
        ttl = fields.ttl
        if ttl is not None:
            message.ttl = ttl / 1000 if type(ttl) is int and 0 <= ttl <= MAX_INT else read_ttl(ttl, id)
        if fields.headers is not None:
            message.headers = WIRE_RULES.read_headers(fields.headers, self._limits.headers, id)
        raw = bytes(fields.body)
        if raw:
            try:
                message.decoded = _decode(raw)
            except (ValueError, RecursionError) as error:
                raise refuse_json(error, id) from error
            message.raw = message.checked = raw
        return message

    def _publish(self, fields: Any) -> Message:
        subject = fields.publish
        if type(subject) is not str or not 0 < len(subject) <= self._short_subject or not subject.isprintable():
            check_subject(subject, self._limits.subject)
        message = Message(_PUBLISH, subject)
        if fields.headers is not None:
            message.headers = WIRE_RULES.read_headers(fields.headers, self._limits.headers)
        raw = bytes(fields.body)
        if raw:
            message.decoded = _decode(raw)
            message.raw = message.checked = raw
        return message

    def _success(self, fields: Any) -> Message:
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
                message.raw = message.checked = raw
        except (ValueError, RecursionError, RemoteProtocolError) as error:
            refused = error if isinstance(error, RemoteProtocolError) else refuse_json(error)
            refused.reply_id = id
            raise refused from error
        return message

    def _open(self, fields: Any) -> Message:
        id = self._id(fields.open)
        check_subject(fields.subject, self._limits.subject, id, empty=True)
        return self._with_body(opening(id, fields.subject, fields, self._limits), fields, id)

    def _with_body(self, message: Message, fields: Any, answer_id: Any = None) -> Message:
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
            message.raw = message.checked = raw
        return message

    def _interest(self, kind: Kind, subject: Any) -> Message:
        check_subject(subject, self._limits.subject)
        return Message(kind, subject)

    def _id(self, id: Any) -> Any:
        if type(id) is not str or not 0 < len(id) <= self._short_id:
            check_id(id, self._limits.id)
        return id
