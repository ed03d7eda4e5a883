"""Writes UBRE in binary frames (document UBRE, "Binary Message Format"). Types: `docs/reference/ubre.md`."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any, Final

import msgspec

from ...errors import EncodeError, LocalProtocolError, Unsupported
from ...limits import Limits
from ...message import Kind, Message
from .binary_reader import HEADER, REST_OF_FRAME
from .checks import WIRE_RULES, unencodable
from .members import JSON_ONLY, OCTETS_ONLY, body_is_octets, error_body, extras_of, with_subject

_MAX_NAME: Final = 0xFFFF
_REQUEST, _NOTIFY, _RESPONSE, _PUBLISH, _ITEM = Kind.REQUEST, Kind.NOTIFY, Kind.RESPONSE, Kind.PUBLISH, Kind.ITEM
_encode: Final = msgspec.json.Encoder().encode


class BinaryWriter:
    """Makes binary frames of messages.

    Args:
        limits: For subjects and headers.
        spec: Write requests in the document's dialect.
        raw: Ordinary bodies are bytes.
        to_the_end: Write -1 as the length of a body.
    """

    def __init__(self, limits: Limits, spec: bool, raw: bool, to_the_end: bool) -> None:
        self._limits = limits
        self._spec = spec
        self._raw = raw
        self._to_the_end = to_the_end
        self._body_formats = OCTETS_ONLY if raw else JSON_ONLY
        self._subject_bytes = lru_cache(1024)(partial(_encoded_subject, limits.subject))

    def write(self, message: Message, id: Any) -> bytes:
        try:
            kind = message.kind
            if kind is _REQUEST or kind is _NOTIFY:
                return self._write_request(message, id)
            if kind is _RESPONSE:
                return self._frame(b"s", self._named(_id_bytes(id), message), message.encoded(self._body_formats))
            if kind is _PUBLISH:
                name = self._named(self._filled_subject(message), message)
                return self._frame(b"P", name, message.encoded(self._body_formats))
            if kind is _ITEM:
                return self._self_described(b"iI", _id_bytes(id), message)
            return self._write_rare(kind, message, id)
        except UnicodeEncodeError as error:
            raise unencodable(error) from error

    def _write_request(self, message: Message, id: Any) -> bytes:
        subject, name = self._subject_bytes(message.subject), _id_bytes(id)
        body = message.encoded(self._body_formats)
        if not self._spec:
            return self._frame(b"R", self._named(b"%b\0%b" % (name, subject), message), body)
        if not self._raw:
            body = with_subject(_encode(message.subject), body)
        elif subject:
            raise LocalProtocolError("dialect=spec with body=raw has no place for a subject", protocol="ubre")
        extras = extras_of(message, self._limits, spec=True)
        more = extras != b'{"spec":true}'
        return self._frame(b"R", b"%b\0\0%b" % (name, extras) if more else name, body)

    def _write_rare(self, kind: Kind, message: Message, id: Any) -> bytes:
        if kind is Kind.ERROR:
            text = error_body(message)
            return self._frame(b"f", self._extended(_id_bytes(id), message), text.encode() if self._raw else _encode(text))
        if kind is Kind.SUBSCRIBE or kind is Kind.UNSUBSCRIBE:
            return self._frame(b"S" if kind is Kind.SUBSCRIBE else b"U", self._filled_subject(message), None)
        if kind is Kind.CANCEL:
            return self._frame(b"C", _id_bytes(id), None)
        if kind is Kind.CREDIT or kind is Kind.END:
            return self._frame(b"K" if kind is Kind.CREDIT else b"E", self._extended(_id_bytes(id), message), None)
        if kind is Kind.OPEN:
            name = self._extended(b"%b\0%b" % (_id_bytes(id), self._subject_bytes(message.subject)), message)
            return self._self_described(b"oO", name, message)
        raise Unsupported(f"UBRE has no form for a {kind.value} message")

    def _named(self, name: bytes, message: Message) -> bytes:
        """The name of a request, answer or publication with the extras behind it, where there are any."""
        if message.headers is None:
            ttl = message.ttl
            if ttl is None:
                return name
            if 0.0 <= ttl < 1e12 and message.kind is _REQUEST:  # as `extras_of` does: most requests have a deadline alone
                return b'%b\0{"ttl":%d}' % (name, ttl * 1000 + 0.5)
        return self._extended(name, message)

    def _extended(self, name: bytes, message: Message) -> bytes:
        extras = extras_of(message, self._limits)
        return b"%b\0%b" % (name, extras) if extras else name

    def _filled_subject(self, message: Message) -> bytes:
        if not message.subject:
            raise LocalProtocolError("the subject is empty", protocol="ubre")
        return self._subject_bytes(message.subject)

    def _self_described(self, letters: bytes, name: bytes, message: Message) -> bytes:
        """An item or open, under the first letter when its body is bytes, under the second when it is JSON."""
        if body_is_octets(message):
            return self._frame(letters[:1], name, message.encoded(OCTETS_ONLY))
        return self._frame(letters[1:], name, message.encoded(JSON_ONLY))

    def _frame(self, letter: bytes, name: bytes, body: bytes | None) -> bytes:
        if len(name) > _MAX_NAME:
            raise EncodeError(f"subject, headers and detail are {len(name)} bytes, and a binary name holds {_MAX_NAME}")
        if body is None:
            return b"".join((HEADER.pack(letter[0], len(name), 0), name))
        length = REST_OF_FRAME if self._to_the_end or not body else len(body)
        return b"".join((HEADER.pack(letter[0], len(name), length), name, body))


def _encoded_subject(limit: int, subject: Any) -> bytes:
    return WIRE_RULES.check_local_subject(subject, limit).encode()


def _id_bytes(id: Any) -> bytes:
    if type(id) is int:
        return b"%d" % id
    if type(id) is not str or not id or "\0" in id:
        raise LocalProtocolError("an id is a whole number or text without NUL", protocol="ubre")
    return id.encode()
