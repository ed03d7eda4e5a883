"""Writes UBRE as JSON text (document UBRE, "JSON Message Format"; npm ubre 0.0.23): bytes put together, nothing decoded."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any, Final

import msgspec

from ...body import JSON
from ...errors import LocalProtocolError, Unsupported
from ...limits import Limits
from ...message import Kind, Message
from .checks import WIRE_RULES, unencodable
from .members import JSON_ONLY, OCTETS_ONLY, body_is_octets, error_body, extras_of, with_subject

# The kinds of the hot path as plain names: an attribute of an enum class costs three times as much.
_REQUEST, _NOTIFY, _RESPONSE, _PUBLISH, _ITEM = Kind.REQUEST, Kind.NOTIFY, Kind.RESPONSE, Kind.PUBLISH, Kind.ITEM
_encode: Final = msgspec.json.Encoder().encode


class JsonWriter:
    """Makes JSON frames of messages; `spec` writes requests in the document's dialect."""

    def __init__(self, limits: Limits, spec: bool) -> None:
        self._limits = limits
        self._spec = spec
        self._quote = lru_cache(1024)(partial(_quoted_subject, limits.subject))

    def write(self, message: Message, id: Any) -> bytes:
        try:
            kind = message.kind
            if kind is _REQUEST or kind is _NOTIFY:
                return self._write_request(message, id)
            if kind is _RESPONSE:
                return self._with_body((b'{"success":', _encode(id) if type(id) is str else _quoted_id(id)), message)
            if kind is _PUBLISH:
                subject = message.subject
                return self._with_body((b'{"publish":', self._quote(subject) if subject else self._named(message)), message)
            return self._write_rare(kind, message, id)
        except UnicodeEncodeError as error:
            raise unencodable(error) from error

    def _write_request(self, message: Message, id: Any) -> bytes:
        if self._spec:
            return self._write_document(message, id)
        start = (b'{"request":', self._quote(message.subject), b',"id":', _encode(id) if type(id) is str else _quoted_id(id))
        ttl = message.ttl
        if ttl is None or message.headers is not None or not 0.0 <= ttl < 1e12:
            return self._with_body(start, message)
        raw = message.raw
        if raw is None or raw is not message.checked or message.format is not JSON:
            raw = message.encoded(JSON_ONLY)
        tail = b',"ttl":%d}' % (ttl * 1000 + 0.5)  # as `milliseconds` does; most requests have a deadline and no headers
        return b"".join((*start, tail)) if raw is None else b"".join((*start, b',"body":', raw, tail))

    def _with_body(self, start: tuple[bytes, ...], message: Message) -> bytes:
        raw = message.raw
        if raw is None or raw is not message.checked or message.format is not JSON:
            raw = message.encoded(JSON_ONLY)
        if message.headers is None and message.ttl is None:
            return b"".join((*start, b"}")) if raw is None else b"".join((*start, b',"body":', raw, b"}"))
        body = () if raw is None else (b',"body":', raw)
        return b"".join((*start, *body, self._rest(message)))

    def _rest(self, message: Message) -> bytes:
        """The further members and the closing brace."""
        extras = extras_of(message, self._limits)
        return b"," + extras[1:] if extras else b"}"

    def _write_document(self, message: Message, id: Any) -> bytes:
        body = with_subject(self._quote(message.subject), message.encoded(JSON_ONLY))
        inner = () if body is None else (b',"body":', body)
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
            return b',"data":' + _encode(message.encoded(OCTETS_ONLY))
        raw = message.encoded(JSON_ONLY)
        return b"" if raw is None else b',"body":' + raw

    def _named(self, message: Message) -> bytes:
        if not message.subject:
            raise LocalProtocolError("the subject is empty", protocol="ubre")
        return self._quote(message.subject)


def _quoted_subject(limit: int, subject: Any) -> bytes:
    return _encode(WIRE_RULES.check_local_subject(subject, limit))


def _quoted_id(id: Any) -> bytes:
    if type(id) is not str and type(id) is not int:
        raise LocalProtocolError(f"an id is text or a whole number, not {type(id).__name__}", protocol="ubre")
    return _encode(id)
