"""UBRE as JSON text (document UBRE, "JSON Message Format"; npm ubre 0.0.23).

Reading is in two steps. The first bytes of a frame foretell its verb, and the shape of that verb is decoded with unknown
members forbidden, so that this one pass also proves that there is exactly one verb. Frames that do not fit (members in another
order, unknown members, nonsense) are read again without haste. A body is cut out as bytes and decoded at once: cutting alone
would let numbers pass that no decoder takes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, Final, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from ...body import JSON, OCTETS, check_json
from ...errors import LocalProtocolError, RemoteProtocolError, Unsupported
from ...limits import Limits
from ...message import MISSING, Kind, Message
from .checks import check_id, check_subject, foul_json, read_headers, read_ttl, refuse
from .codec import UbreCodec, check_local_subject, unencodable
from .members import Extras, body_is_octets, credit, end, error, error_body, extras_of, opening

__all__ = ["JsonCodec"]

_BODY_FORMATS = (JSON,)
# The kinds of the hot path as plain names: an attribute of an enum class costs three times as much.
_REQUEST, _NOTIFY, _RESPONSE, _PUBLISH, _ITEM = Kind.REQUEST, Kind.NOTIFY, Kind.RESPONSE, Kind.PUBLISH, Kind.ITEM
_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder().decode


class _Subscribe(Struct, gc=False):
    subscribe: Any


class _Unsubscribe(Struct, gc=False):
    unsubscribe: Any


class _Publish(Struct, gc=False):
    publish: Any
    body: Raw = Raw()
    headers: Any = None


class _Request(Struct, gc=False):
    request: Any
    id: Any = UNSET
    body: Raw = Raw()
    ttl: Any = None
    headers: Any = None


class _Success(Struct, gc=False):
    success: Any
    body: Raw = Raw()
    headers: Any = None


class _Fail(Extras, gc=False, kw_only=True):
    fail: Any
    body: Any = None


class _Cancel(Struct, gc=False):
    cancel: Any


class _Open(Extras, gc=False, kw_only=True):
    open: Any
    subject: Any = None
    body: Raw = Raw()
    data: bytes | UnsetType = UNSET


class _Item(Struct, gc=False):
    item: Any
    body: Raw = Raw()
    data: bytes | UnsetType = UNSET


class _Credit(Extras, gc=False, kw_only=True):
    credit: Any


class _End(Extras, gc=False, kw_only=True):
    end: Any


class _SubjectInBody(Struct, gc=False, forbid_unknown_fields=True):
    """The body of a request in the document's dialect."""

    subject: str
    body: Raw = Raw()


_Reader: TypeAlias = tuple[Callable[[bytes], Any], Callable[[Any], Message]]
_members: Final = msgspec.json.Decoder(dict[str, Raw]).decode
_subject_in_body: Final = msgspec.json.Decoder(_SubjectInBody).decode


def _strict(shape: type[Struct]) -> Callable[[bytes], Any]:
    strict = msgspec.defstruct(shape.__name__, [], bases=(shape,), forbid_unknown_fields=True, gc=False)
    return msgspec.json.Decoder(strict).decode


class JsonCodec(UbreCodec):
    """JSON text frames. Pure; it holds a bounded cache of quoted subjects only."""

    reads: frozenset[Literal["text", "binary"]] = frozenset(("text",))
    writes: Literal["text", "binary"] = "text"
    formats = (JSON, OCTETS)

    def __init__(self, limits: Limits, dialect: str) -> None:
        self.limits = limits
        self._spec = dialect == "spec"
        self._quote = lru_cache(1024)(partial(_quoted_subject, limits.subject))
        # Shorter than this, text is within its limit however many bytes its characters have (at most four each).
        self._short_subject = limits.subject // 4
        self._short_id = limits.id // 4
        # Shorter than this, a frame can be neither too large nor too deep.
        self._short_frame = min(limits.message, 2 * limits.depth)
        shapes: list[tuple[type[Struct], Callable[[Any], Message]]] = [
            (_Request, self._request),
            (_Success, self._success),
            (_Publish, self._publish),
            (_Item, self._item),
            (_Fail, self._fail),
            (_Subscribe, self._subscribe),
            (_Unsubscribe, self._unsubscribe),
            (_Cancel, lambda fields: Message(Kind.CANCEL, "", self._id(fields.cancel))),
            (_Open, self._open),
            (_Credit, lambda fields: credit(self._id(fields.credit), fields)),
            (_End, lambda fields: end(self._id(fields.end), fields)),
        ]
        verbs = [shape.__name__[1:].lower() for shape, _ in shapes]
        self._by_start: dict[bytes, _Reader] = {
            f'{{"{verb}'.encode()[:5]: (_strict(shape), build)
            for verb, (shape, build) in zip(verbs, shapes, strict=True)
        }
        self._by_verb: dict[str, _Reader] = {
            verb: (msgspec.json.Decoder(shape).decode, build)
            for verb, (shape, build) in zip(verbs, shapes, strict=True)
        }

    # -- reading -----------------------------------------------------------------------------------------------------------

    def read(self, frame: bytes) -> Message:
        try:
            if len(frame) > self._short_frame or not frame.isascii():
                self._check(frame)
            reader = self._by_start.get(frame[:5])
            if reader is not None:
                try:
                    fields = reader[0](frame)
                except (ValueError, RecursionError):
                    pass  # Another member or a mistake: reading without haste tells.
                else:
                    return reader[1](fields)
            return self._read_any(frame)
        except RemoteProtocolError as error:
            error.frame = frame[:200]
            raise

    def _check(self, frame: bytes) -> None:
        if len(frame) > self.limits.message:
            text = f"a frame of {len(frame)} bytes is larger than {self.limits.message} (limit: message)"
            raise refuse(text, "too_large", close_code=1009)
        try:
            # The limit is for bodies; around them are at most two levels, in the document's dialect.
            check_json(frame, self.limits.depth + 2)
        except ValueError as error:
            raise foul_json(error) from error

    def _read_any(self, frame: bytes) -> Message:
        try:
            members = _members(frame)
        except (ValueError, RecursionError) as error:
            raise foul_json(error) from error
        verbs = [name for name in members if name in self._by_verb]
        if not verbs:
            raise refuse("no verb of UBRE in the message", "unknown_verb")
        if len(verbs) > 1:
            raise refuse(f"more than one verb: {', '.join(sorted(verbs))}", "ambiguous")
        decode, build = self._by_verb[verbs[0]]
        try:
            fields = decode(frame)
        except (ValueError, RecursionError) as error:
            raise foul_json(error) from error
        return build(fields)

    def _request(self, fields: _Request) -> Message:
        id = fields.id
        if id is UNSET:
            return self._request_of_the_document(fields)
        if type(id) is not str or not id or len(id) > self._short_id:
            check_id(id, self.limits.id)
        subject = fields.request
        if type(subject) is not str or len(subject) > self._short_subject or not subject.isprintable():
            check_subject(subject, self.limits.subject, id, empty=True)
        ttl = headers = None
        if fields.ttl is not None or fields.headers is not None:
            ttl = read_ttl(fields.ttl, id)
            headers = read_headers(fields.headers, self.limits.headers, id)
        raw = bytes(fields.body)
        if not raw:
            return Message(_REQUEST, subject, id, None, JSON, headers, ttl)
        try:
            body = _decode(raw)
        except (ValueError, RecursionError) as error:
            raise foul_json(error, id) from error
        return Message(_REQUEST, subject, id, raw, JSON, headers, ttl, None, None, None, None, body)

    def _request_of_the_document(self, fields: _Request) -> Message:
        """``{"request": id, "body": {"subject": ..., "body": ...}}``; any other body is for the subject ``""``."""
        try:
            inner = _subject_in_body(fields.body)
        except (ValueError, RecursionError):
            named = _Request("", fields.request, fields.body, fields.ttl, fields.headers)
        else:
            named = _Request(inner.subject, fields.request, inner.body, fields.ttl, fields.headers)
        return self._request(named)

    def _publish(self, fields: _Publish) -> Message:
        subject = fields.publish
        if (
            type(subject) is not str
            or not subject
            or len(subject) > self._short_subject
            or not subject.isprintable()
        ):
            check_subject(subject, self.limits.subject)
        headers = fields.headers
        if headers is not None:
            headers = read_headers(headers, self.limits.headers)
        raw = bytes(fields.body)
        if not raw:
            return Message(_PUBLISH, subject, None, None, JSON, headers)
        try:
            body = _decode(raw)
        except (ValueError, RecursionError) as error:
            raise foul_json(error) from error
        return Message(_PUBLISH, subject, None, raw, JSON, headers, None, None, None, None, None, body)

    def _success(self, fields: _Success) -> Message:
        id = fields.success
        if type(id) is not str or not id or len(id) > self._short_id:
            check_id(id, self.limits.id)
        headers = fields.headers
        if headers is not None:
            headers = read_headers(headers, self.limits.headers)
        raw = bytes(fields.body)
        if not raw:
            return Message(_RESPONSE, "", id, None, JSON, headers)
        try:
            body = _decode(raw)
        except (ValueError, RecursionError) as error:
            raise foul_json(error) from error
        return Message(_RESPONSE, "", id, raw, JSON, headers, None, None, None, None, None, body)

    def _item(self, fields: _Item) -> Message:
        message = Message(_ITEM, "", self._id(fields.item))
        self._add_body(message, fields)
        return message

    def _open(self, fields: _Open) -> Message:
        id = self._id(fields.open)
        check_subject(fields.subject, self.limits.subject, id, empty=True)
        message = opening(id, fields.subject, fields, self.limits)
        self._add_body(message, fields, id)
        return message

    def _add_body(self, message: Message, fields: _Item | _Open, answer_id: Any = None) -> None:
        raw = bytes(fields.body)
        if fields.data is not UNSET:
            if raw:
                raise refuse("both body and data", "ambiguous", answer_id)
            message.raw = message._value = fields.data
            message.format = OCTETS
        elif raw:
            try:
                message._value = _decode(raw)
            except (ValueError, RecursionError) as error:
                raise foul_json(error, answer_id) from error
            message.raw = raw

    def _fail(self, fields: _Fail) -> Message:
        return error(self._id(fields.fail), fields.body, fields, self.limits)

    def _subscribe(self, fields: _Subscribe) -> Message:
        check_subject(fields.subscribe, self.limits.subject)
        return Message(Kind.SUBSCRIBE, fields.subscribe)

    def _unsubscribe(self, fields: _Unsubscribe) -> Message:
        check_subject(fields.unsubscribe, self.limits.subject)
        return Message(Kind.UNSUBSCRIBE, fields.unsubscribe)

    def _id(self, id: Any) -> Any:
        if type(id) is not str or not id or len(id) > self._short_id:
            check_id(id, self.limits.id)
        return id

    # -- writing -----------------------------------------------------------------------------------------------------------

    def write(self, message: Message, id: Any) -> bytes:
        try:
            kind = message.kind
            if kind is _REQUEST or kind is _NOTIFY:
                start = (b'{"request":', self._quote(message.subject), b',"id":', _quoted_id(id))
                return self._write_document(message, id) if self._spec else self._with_body(start, message)
            if kind is _RESPONSE:
                return self._with_body((b'{"success":', _quoted_id(id)), message)
            if kind is _PUBLISH:
                return self._with_body((b'{"publish":', self._named(message)), message)
            return self._write_rare(kind, message, id)
        except UnicodeEncodeError as error:
            raise unencodable(error) from error

    def _with_body(self, start: tuple[bytes, ...], message: Message) -> bytes:
        raw = message.raw
        if raw is None or message.format is not JSON:
            raw = message.encoded(_BODY_FORMATS)
        if message.headers is None and message.ttl is None:
            return b"".join((*start, b"}")) if raw is None else b"".join((*start, b',"body":', raw, b"}"))
        body = () if raw is None else (b',"body":', raw)
        return b"".join((*start, *body, self._rest(message)))

    def _rest(self, message: Message) -> bytes:
        """The further members and the closing brace."""
        extras = extras_of(message, self.limits)
        return b"," + extras[1:] if extras else b"}"

    def _write_document(self, message: Message, id: Any) -> bytes:
        """In the document's dialect. To the subject ``""`` the body goes as it is, unless it would be mistaken for more."""
        raw = message.encoded(_BODY_FORMATS)
        inner = [] if raw is None else [b',"body":', raw]
        if message.subject or b'"subject"' in (raw or b"") or b"\\" in (raw or b""):
            inner = [b',"body":{"subject":', self._quote(message.subject), *inner, b"}"]
        return b"".join((b'{"request":', _quoted_id(id), *inner, self._rest(message)))

    def _write_rare(self, kind: Kind, message: Message, id: Any) -> bytes:
        if kind is _ITEM:
            return b"".join((b'{"item":', _quoted_id(id), self._item_body(message), b"}"))
        if kind is Kind.ERROR:
            body = _encode(error_body(message))
            return b"".join((b'{"fail":', _quoted_id(id), b',"body":', body, self._rest(message)))
        if kind is Kind.SUBSCRIBE or kind is Kind.UNSUBSCRIBE:
            return b'{"%b":%b}' % (kind.value.encode(), self._named(message))
        if kind is Kind.CANCEL:
            return b'{"cancel":%b}' % _quoted_id(id)
        if kind is Kind.CREDIT or kind is Kind.END:
            return b'{"%b":%b%b' % (kind.value.encode(), _quoted_id(id), self._rest(message))
        if kind is Kind.OPEN:
            start = (b'{"open":', _quoted_id(id), b',"subject":', self._quote(message.subject))
            return b"".join((*start, self._item_body(message), self._rest(message)))
        raise Unsupported(f"UBRE has no form for a {kind.value} message")

    def _item_body(self, message: Message) -> bytes:
        if body_is_octets(message):
            return b',"data":' + _encode(message.encoded((OCTETS,)))
        raw = message.encoded(_BODY_FORMATS)
        return b"" if raw is None else b',"body":' + raw

    def _named(self, message: Message) -> bytes:
        if not message.subject:
            raise LocalProtocolError("the subject is empty", protocol="ubre")
        return self._quote(message.subject)


def _quoted_subject(limit: int, subject: Any) -> bytes:
    return _encode(check_local_subject(subject, limit))


def _quoted_id(id: Any) -> bytes:
    if type(id) is not str and type(id) is not int:
        raise LocalProtocolError(f"an id is text or a whole number, not {type(id).__name__}", protocol="ubre")
    return _encode(id)
