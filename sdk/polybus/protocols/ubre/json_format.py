"""UBRE as JSON text (document UBRE, "JSON Message Format"; npm ubre 0.0.23).

The first letter of a frame usually identifies its verb. The reader decodes the struct for this verb and forbids unknown
members, which also ensures that there is only one verb. A frame that is malformed, has unknown members or uses another order
takes a slower path. The structs check nothing else, so that errors can name the broken rule. A body is extracted as bytes and
also decoded immediately, because extracting it accepts numbers that decoders reject. The writer joins bytes and decodes
nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any, Final, TypeAlias

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from ...body import JSON, OCTETS, check_json, check_levels
from ...errors import LocalProtocolError, RemoteProtocolError, Unsupported
from ...limits import Limits
from ...message import Kind, Message
from ...speedups import native
from .._shared import MAX_INT, too_large
from . import members
from .members import JSON_ONLY, OCTETS_ONLY, WIRE_RULES, ChannelMembers, refuse, refuse_json

# The kinds of the hot path as plain names: an attribute of an enum class costs three times as much.
_REQUEST, _NOTIFY, _RESPONSE, _PUBLISH, _ITEM = Kind.REQUEST, Kind.NOTIFY, Kind.RESPONSE, Kind.PUBLISH, Kind.ITEM
_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder().decode
_members: Final = msgspec.json.Decoder(dict[str, Raw]).decode

ReadUsual: TypeAlias = Callable[[bytes, Mapping[Any, Any]], Message | None]
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
"""Members of each verb, from a base class or listed individually. The verb is a member, too."""


def _shape(verb: str, strict: bool) -> type[Struct]:
    bases, fields = _SHAPES[verb]
    return msgspec.defstruct(verb, [(verb, Any), *fields], bases=bases, forbid_unknown_fields=strict, gc=False)


_Request: Final[Any] = _shape("request", strict=False)


class JsonReader:
    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        # Shorter strings are within their limit at any number of bytes per character (at most four).
        self._short_subject = limits.subject // 4
        self._short_id = limits.id // 4
        # Shorter frames are neither too large nor too deep.
        self._short_frame = min(limits.message, 2 * limits.depth)
        readers: dict[str, Callable[[Any], Message]] = {
            "request": self._request,
            "success": self._success,
            "publish": self._publish,
            "item": lambda fields: self._with_data(Message(_ITEM, "", self._id(fields.item)), fields),
            "fail": lambda fields: members.error(self._id(fields.fail), fields.body, fields, limits),
            "subscribe": lambda fields: self._interest(Kind.SUBSCRIBE, fields.subscribe),
            "unsubscribe": lambda fields: self._interest(Kind.UNSUBSCRIBE, fields.unsubscribe),
            "cancel": lambda fields: Message(Kind.CANCEL, "", self._id(fields.cancel)),
            "open": self._open,
            "credit": lambda fields: members.credit(self._id(fields.credit), fields),
            "end": lambda fields: members.end(self._id(fields.end), fields),
        }
        self._by_verb: dict[str, _Reader] = {}
        # By the third byte of a frame, `{"r...`. The first verb above with a letter gets it.
        self._by_letter: dict[int, _Reader] = {}
        for verb, build in readers.items():
            self._by_verb[verb] = msgspec.json.Decoder(_shape(verb, strict=False)).decode, build
            self._by_letter.setdefault(ord(verb[0]), (msgspec.json.Decoder(_shape(verb, strict=True)).decode, build))
        self._usual = {letter: self._by_letter[letter] for letter in b"rsp"}

    def usual(self, frame: bytes, pending: Mapping[Any, Any]) -> Message | None:
        """Read a short request, publication, or response to a request in `pending`. Returns None for any other frame."""
        if not 2 < len(frame) <= self._short_frame or not frame.isascii() or (verb := self._usual.get(frame[2])) is None:
            return None
        decode, build = verb
        try:
            message = build(decode(frame))
            if (raw := message.raw) is not None:
                message.decoded = _decode(raw)
                message.checked = raw
        except (ValueError, RecursionError, RemoteProtocolError):
            return None
        return message if message.kind is not _RESPONSE or message.id in pending else None

    def read(self, frame: bytes) -> Message:
        try:
            long = len(frame) > self._short_frame
            if long or not frame.isascii():
                self._check(frame)
            try:
                decode, build = self._by_letter[frame[2]]
                fields = decode(frame)
            except (LookupError, ValueError, RecursionError):
                pass  # other members, another order, or malformed
            else:
                return self._with_body(build(fields), long)
            return self._with_body(self._read_any(frame), long)
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
        # The limit applies to bodies, which are checked again; the document's dialect adds at most two levels.
        check_json(frame, self._limits.depth + 2)

    def _with_body(self, message: Message, long: bool) -> Message:
        """Decode the JSON in `raw`, and check its depth if the frame is long."""
        raw = message.raw
        if raw is None or message.format is not JSON:
            return message
        try:
            message.decoded = _decode(raw)
            if long:
                check_levels(raw, self._limits.depth)
        except (ValueError, RecursionError) as error:
            kind, id = message.kind, message.id
            refused = refuse_json(error, id if kind is _REQUEST or kind is Kind.OPEN else None)
            refused.reply_id = id if kind is _RESPONSE else None
            raise refused from error
        message.checked = raw
        return message

    def _read_any(self, frame: bytes) -> Message:
        verbs = [name for name in _members(frame) if name in self._by_verb]
        if not verbs:
            raise refuse("no UBRE verb in the message", "unknown_type")
        if len(verbs) > 1:
            raise refuse(f"more than one verb: {', '.join(sorted(verbs))}", "ambiguous")
        decode, build = self._by_verb[verbs[0]]
        return build(decode(frame))

    def _request(self, fields: Any) -> Message:
        id = fields.id
        if id is UNSET:
            # The document's {"request": id, "body": {"subject", "body"}}; any other body is for the subject "".
            found = members.named_in_body(fields.body)
            named, body = ("", fields.body) if found is None else (found.subject, found.body)
            fields = _Request(named, fields.request, body, fields.ttl, fields.headers)
            id = fields.id
        if type(id) is not str or not 0 < len(id) <= self._short_id:
            members.check_id(id, self._limits.id)
        subject = fields.request
        if type(subject) is not str or len(subject) > self._short_subject or not subject.isprintable():
            members.check_subject(subject, self._limits.subject, id, empty=True)
        message = Message(_REQUEST, subject, id, bytes(fields.body) or None)
        ttl = fields.ttl
        if ttl is not None:
            message.ttl = ttl / 1000 if type(ttl) is int and 0 <= ttl <= MAX_INT else WIRE_RULES.read_ttl(ttl, "ttl", id)
        if fields.headers is not None:
            message.headers = WIRE_RULES.read_headers(fields.headers, self._limits.headers, id)
        return message

    def _publish(self, fields: Any) -> Message:
        subject = fields.publish
        if type(subject) is not str or not 0 < len(subject) <= self._short_subject or not subject.isprintable():
            members.check_subject(subject, self._limits.subject)
        message = Message(_PUBLISH, subject, None, bytes(fields.body) or None)
        if fields.headers is not None:
            message.headers = WIRE_RULES.read_headers(fields.headers, self._limits.headers)
        return message

    def _success(self, fields: Any) -> Message:
        id = fields.success
        if type(id) is not str or not 0 < len(id) <= self._short_id:
            members.check_id(id, self._limits.id)
        message = Message(_RESPONSE, "", id, bytes(fields.body) or None)
        if fields.headers is not None:
            try:
                message.headers = WIRE_RULES.read_headers(fields.headers, self._limits.headers)
            except RemoteProtocolError as error:
                error.reply_id = id
                raise
        return message

    def _open(self, fields: Any) -> Message:
        id = self._id(fields.open)
        members.check_subject(fields.subject, self._limits.subject, id, empty=True)
        return self._with_data(members.opening(id, fields.subject, fields, self._limits), fields, id)

    def _with_data(self, message: Message, fields: Any, answer_id: Any = None) -> Message:
        message.raw = bytes(fields.body) or None
        if fields.data is not UNSET:
            if message.raw is not None:
                raise refuse("both body and data", "ambiguous", answer_id)
            message.raw = message.decoded = fields.data
            message.format = OCTETS
        return message

    def _interest(self, kind: Kind, subject: Any) -> Message:
        members.check_subject(subject, self._limits.subject)
        return Message(kind, subject)

    def _id(self, id: Any) -> Any:
        if type(id) is not str or not 0 < len(id) <= self._short_id:
            members.check_id(id, self._limits.id)
        return id


_BLANKS: Final = (Message(_REQUEST), Message(_RESPONSE), Message(_PUBLISH))


def json_readers(limits: Limits) -> tuple[Callable[[bytes], Message], ReadUsual]:
    """Return a function that reads any frame, and a faster one that reads only ordinary frames."""
    twin = JsonReader(limits)
    if native is None:
        return twin.read, twin.usual
    sizes = (min(size, sys.maxsize) for size in (limits.message, limits.depth, limits.subject // 4, limits.id // 4))
    usual = native.Twin((_decode, None, None, None), _BLANKS, *sizes).usual

    def read(frame: bytes) -> Message:
        message: Message | None = usual(frame, None)  # a response to any request
        return twin.read(frame) if message is None else message

    return read, usual


class JsonWriter:
    """Writes JSON frames. If `spec` is set, requests use the document's dialect."""

    def __init__(self, limits: Limits, spec: bool) -> None:
        self._limits = limits
        self._spec = spec
        self.quote: Callable[[Any], bytes] = lru_cache(1024)(partial(_quoted_subject, limits.subject))
        if native is not None:
            in_python = self.publication, self.ask, self.tell, self.quote
            twin = native.Twin(in_python, (), min(limits.message, sys.maxsize), 0, 0, 0)
            self.publication, self.ask, self.tell = twin.publication, twin.ask, twin.tell  # type: ignore[method-assign]  # the same in C

    def write(self, message: Message, id: Any) -> bytes:
        try:
            kind = message.kind
            if kind is _PUBLISH:
                raw = message.raw
                if raw is not None and raw is message.checked and message.format is JSON:
                    if message.headers is None and message.ttl is None:
                        return self.publication(message.subject, raw)
                return self._with_body((b'{"publish":', self._named(message.subject)), message)
            if kind is _REQUEST or kind is _NOTIFY:
                return self._write_request(message, id)
            if kind is _RESPONSE:
                return self._with_body((b'{"success":', _quoted_id(id)), message)
            return self._write_rare(kind, message, id)
        except UnicodeEncodeError as error:
            raise members.unencodable(error) from error

    def _write_request(self, message: Message, id: Any) -> bytes:
        if self._spec:
            return self._write_document(message, id)
        ttl = message.ttl
        if ttl is None or message.headers is not None or not 0.0 <= ttl < 1e12:
            return self._with_body((b'{"request":', self.quote(message.subject), b',"id":', _quoted_id(id)), message)
        return self.ask(message.subject, id, message.encoded(JSON_ONLY), ttl)

    def ask(self, subject: Any, id: Any, raw: bytes | None, ttl: float) -> bytes:
        try:
            name, quoted = self.quote(subject), _encode(id) if type(id) is str else _quoted_id(id)
        except UnicodeEncodeError as error:
            raise members.unencodable(error) from error
        left = _encode(int(ttl * 1000 + 0.5))  # as in `milliseconds`
        body = b"" if raw is None else b',"body":' + raw
        return b"".join((b'{"request":', name, b',"id":', quoted, body, b',"ttl":', left, b"}"))  # faster than `%`

    def tell(self, id: Any, raw: bytes | None) -> bytes:
        try:
            quoted = _encode(id) if type(id) is str else _quoted_id(id)
        except UnicodeEncodeError as error:
            raise members.unencodable(error) from error
        body = b"" if raw is None else b',"body":' + raw
        frame = b"".join((b'{"success":', quoted, body, b"}"))
        if len(frame) > self._limits.message:
            raise too_large(len(frame), self._limits.message)
        return frame

    def publication(self, subject: Any, raw: bytes) -> bytes:
        try:
            name = self.quote(subject) if subject else self._named(subject)
        except UnicodeEncodeError as error:
            raise members.unencodable(error) from error
        return b"".join((b'{"publish":', name, b',"body":', raw, b"}"))

    def _with_body(self, start: tuple[bytes, ...], message: Message) -> bytes:
        raw = message.encoded(JSON_ONLY)
        if message.headers is None and message.ttl is None:
            return b"".join((*start, b"}")) if raw is None else b"".join((*start, b',"body":', raw, b"}"))
        body = () if raw is None else (b',"body":', raw)
        return b"".join((*start, *body, self._rest(message)))

    def _rest(self, message: Message) -> bytes:
        extras = members.extras_of(message, self._limits)
        return b"," + extras[1:] if extras else b"}"

    def _write_document(self, message: Message, id: Any) -> bytes:
        body = members.with_subject(self.quote(message.subject), message.encoded(JSON_ONLY))
        inner = () if body is None else (b',"body":', body)
        return b"".join((b'{"request":', _quoted_id(id), *inner, self._rest(message)))

    def _write_rare(self, kind: Kind, message: Message, id: Any) -> bytes:
        if kind is _ITEM:
            return b"".join((b'{"item":', _quoted_id(id), self._item_body(message), b"}"))
        if kind is Kind.ERROR:
            body = _encode(members.error_body(message))
            return b"".join((b'{"fail":', _quoted_id(id), b',"body":', body, self._rest(message)))
        if kind is Kind.SUBSCRIBE or kind is Kind.UNSUBSCRIBE:
            return b'{"%b":%b}' % (kind.value.encode(), self._named(message.subject))
        if kind is Kind.CANCEL:
            return b'{"cancel":%b}' % _quoted_id(id)
        if kind is Kind.CREDIT or kind is Kind.END:
            return b'{"%b":%b%b' % (kind.value.encode(), _quoted_id(id), self._rest(message))
        if kind is Kind.OPEN:
            start = (b'{"open":', _quoted_id(id), b',"subject":', self.quote(message.subject))
            return b"".join((*start, self._item_body(message), self._rest(message)))
        raise Unsupported(f"UBRE cannot carry a {kind.value} message")

    def _item_body(self, message: Message) -> bytes:
        if members.body_is_octets(message):
            return b',"data":' + _encode(message.encoded(OCTETS_ONLY))
        raw = message.encoded(JSON_ONLY)
        return b"" if raw is None else b',"body":' + raw

    def _named(self, subject: Any) -> bytes:
        if not subject:
            raise LocalProtocolError("the subject is empty", protocol="ubre")
        return self.quote(subject)


def _quoted_subject(limit: int, subject: Any) -> bytes:
    return _encode(WIRE_RULES.check_local_subject(subject, limit))


def _quoted_id(id: Any) -> bytes:
    if type(id) is not str and type(id) is not int:
        raise LocalProtocolError(f"an id must be a string or an integer, not {type(id).__name__}", protocol="ubre")
    return _encode(id)
