"""UBRE in binary frames (document UBRE, "Binary Message Format"). `docs/reference/ubre.md` lists the types.

The document does not define names and bodies. polybus writes a name as a string with NUL between its parts.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache, partial
from typing import Any, Final

import msgspec

from ...body import OCTETS, check_json, check_levels
from ...errors import EncodeError, LocalProtocolError, RemoteProtocolError, Unsupported
from ...limits import Limits
from ...message import Kind, Message
from ...plugins import FrameField
from .._shared import shown_text
from . import members
from .members import JSON_ONLY, NO_EXTRAS, OCTETS_ONLY, WIRE_RULES, ChannelMembers, refuse, refuse_json

HEADER: Final = struct.Struct(">BHI")
REST_OF_FRAME: Final = 0xFFFFFFFF

_FAIL_BY_HEX: Final = 0x63  # the document's table gives fail as "f", 102 and 0x63, which is 99
_REQUEST, _NOTIFY, _RESPONSE, _PUBLISH, _ITEM = Kind.REQUEST, Kind.NOTIFY, Kind.RESPONSE, Kind.PUBLISH, Kind.ITEM
_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder().decode
_decode_extras: Final = msgspec.json.Decoder(ChannelMembers).decode


class BinaryReader:
    def __init__(self, limits: Limits, raw: bool) -> None:
        self._limits = limits
        self._raw = raw
        # Shorter strings are within their limit at any number of bytes per character, and shorter JSON is not too deep.
        self._short_subject = limits.subject // 4
        self._short_id = limits.id // 4
        self._short_json = 2 * limits.depth
        self._readers: dict[int, Callable[[str, bytes | None], Message]] = {
            ord("R"): self._request,
            ord("s"): self._success,
            ord("P"): self._publish,
            ord("I"): partial(self._item, False),
            ord("i"): partial(self._item, True),
            ord("f"): self._fail,
            _FAIL_BY_HEX: self._fail,
            ord("S"): partial(self._interest, Kind.SUBSCRIBE),
            ord("U"): partial(self._interest, Kind.UNSUBSCRIBE),
            ord("C"): lambda name, body: Message(Kind.CANCEL, "", self._check_id(name)),
            ord("O"): partial(self._open, False),
            ord("o"): partial(self._open, True),
            ord("K"): lambda name, body: members.credit(*self._id_and_extras(name)),
            ord("E"): lambda name, body: members.end(*self._id_and_extras(name)),
        }

    def read(self, frame: bytes) -> Message:
        try:
            return self._read(frame)
        except RemoteProtocolError as error:
            error.frame = frame[:200]
            raise

    def _read(self, frame: bytes) -> Message:
        if len(frame) < 7:
            raise refuse(f"truncated header: {len(frame)} of 7 bytes", "short_frame")
        letter, name_length, body_length = HEADER.unpack_from(frame)
        start = 7 + name_length
        if body_length == REST_OF_FRAME:
            body_length = max(0, len(frame) - start)
            empty = b""
        else:
            empty = None
        if start + body_length != len(frame) or len(frame) > self._limits.message:
            self._refuse_length(len(frame), start, body_length)
        reader = self._readers.get(letter)
        if reader is None:
            raise refuse(f"no type {letter:#04x} in UBRE", "unknown_type")
        try:
            name = str(frame[7:start], "utf-8")
        except UnicodeDecodeError as error:
            reason = "invalid_subject" if letter in b"SUP" else "invalid_id"
            raise refuse("the name is not UTF-8", reason) from error
        return reader(name, frame[start:] if body_length else empty)

    def _refuse_length(self, size: int, start: int, body_length: int) -> None:
        limit = self._limits.message
        if body_length > limit or size > limit:
            raise WIRE_RULES.refuse_size(max(size, start + body_length), limit)
        if size < start + body_length:
            raise refuse(f"truncated frame: {size} of {start + body_length} bytes", "bad_length")
        raise refuse(f"{size - start - body_length} trailing bytes", "bad_length")

    def _request(self, name: str, body: bytes | None) -> Message:
        """Read ``id NUL subject [NUL extras]``, or an id and extras with ``"spec": true`` in the document's dialect."""
        id, named, rest = name.partition("\0")
        self._check_id(id)
        subject, more, text = rest.partition("\0")
        extras = self._extras(text, id) if more else NO_EXTRAS
        if not self._raw and (not named or extras.spec is True):
            subject, body = self._subject_in(body, id)
        if len(subject) > self._short_subject or not subject.isprintable():
            members.check_subject(subject, self._limits.subject, id, empty=True)
        message = Message(_REQUEST, subject, id)
        if more:
            message.ttl = WIRE_RULES.read_ttl(extras.ttl, "ttl", id)
            if extras.headers is not None:
                message.headers = WIRE_RULES.read_headers(extras.headers, self._limits.headers, id)
        return self._with_body(message, body, self._raw, id)

    def _subject_in(self, body: bytes | None, id: str) -> tuple[str, bytes | None]:
        if not body:
            return "", body
        if len(body) > self._short_json:
            try:
                check_levels(body, self._limits.depth + 1)  # before the parser, whose recursion would end Python in a browser
            except ValueError as error:
                raise refuse_json(error, id) from error
        found = members.named_in_body(body)
        return ("", body) if found is None else (found.subject, bytes(found.body))

    def _publish(self, name: str, body: bytes | None) -> Message:
        subject, more, text = name.partition("\0")
        if not 0 < len(subject) <= self._short_subject or not subject.isprintable():
            members.check_subject(subject, self._limits.subject)
        message = Message(_PUBLISH, subject)
        if more:
            message.headers = WIRE_RULES.read_headers(self._extras(text).headers, self._limits.headers)
        return self._with_body(message, body, self._raw)

    def _success(self, name: str, body: bytes | None) -> Message:
        id, more, text = name.partition("\0")
        message = Message(_RESPONSE, "", self._check_id(id))
        if more:
            message.headers = WIRE_RULES.read_headers(self._extras(text).headers, self._limits.headers)
        return self._with_body(message, body, self._raw)

    def _fail(self, name: str, body: bytes | None) -> Message:
        id, extras = self._id_and_extras(name)
        return members.error(id, self._fail_body(body), extras, self._limits)

    def _fail_body(self, body: bytes | None) -> Any:
        """Read the body of an error. Malformed JSON becomes the error message, because the request has failed in any case."""
        if not body:
            return None
        try:
            return str(body, "utf-8") if self._raw else self._value(body)
        except (RemoteProtocolError, UnicodeDecodeError):
            return str(body, "utf-8", "replace")

    def _interest(self, kind: Kind, name: str, body: bytes | None) -> Message:
        members.check_subject(name, self._limits.subject)
        return Message(kind, name)

    def _open(self, octets: bool, name: str, body: bytes | None) -> Message:
        id, _, rest = name.partition("\0")
        self._check_id(id)
        subject, _, text = rest.partition("\0")
        members.check_subject(subject, self._limits.subject, id, empty=True)
        return self._with_body(members.opening(id, subject, self._extras(text, id), self._limits), body, octets, id)

    def _item(self, octets: bool, name: str, body: bytes | None) -> Message:
        return self._with_body(Message(_ITEM, "", self._check_id(name)), body, octets)

    def _check_id(self, id: str) -> str:
        if not 0 < len(id) <= self._short_id or "\0" in id:
            members.check_id(id, self._limits.id)
            if "\0" in id:
                raise refuse("NUL in the id", "invalid_id")
        return id

    def _id_and_extras(self, name: str) -> tuple[str, ChannelMembers]:
        id, more, text = name.partition("\0")
        return self._check_id(id), self._extras(text) if more else NO_EXTRAS

    def _extras(self, text: str, answer_id: Any = None) -> ChannelMembers:
        try:
            if len(text) > self._short_json:
                check_json(text.encode(), self._limits.depth + 1)
            return _decode_extras(text)
        except (ValueError, RecursionError) as error:
            raise refuse_json(error, answer_id) from error

    def _with_body(self, message: Message, body: bytes | None, octets: bool, answer_id: Any = None) -> Message:
        if octets:
            if body is not None:
                message.raw = message.decoded = body
                message.format = OCTETS
        elif body:
            message.decoded = self._value(body, answer_id)
            message.raw = message.checked = body
        return message

    def _value(self, body: bytes, answer_id: Any = None) -> Any:
        try:
            if len(body) > self._short_json or not body.isascii():
                check_json(body, self._limits.depth)
            return _decode(body)
        except (ValueError, RecursionError) as error:
            raise refuse_json(error, answer_id) from error


_MAX_NAME: Final = 0xFFFF


class BinaryWriter:
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
            raise members.unencodable(error) from error

    def _write_request(self, message: Message, id: Any) -> bytes:
        subject, name = self._subject_bytes(message.subject), _id_bytes(id)
        body = message.encoded(self._body_formats)
        if not self._spec:
            return self._frame(b"R", self._named(b"%b\0%b" % (name, subject), message), body)
        if not self._raw:
            body = members.with_subject(_encode(message.subject), body)
        elif subject:
            raise LocalProtocolError("dialect=spec with body=raw cannot carry a subject", protocol="ubre")
        extras = members.extras_of(message, self._limits, spec=True)
        more = extras != b'{"spec":true}'
        return self._frame(b"R", b"%b\0\0%b" % (name, extras) if more else name, body)

    def _write_rare(self, kind: Kind, message: Message, id: Any) -> bytes:
        if kind is Kind.ERROR:
            text = members.error_body(message)
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
        raise Unsupported(f"UBRE cannot carry a {kind.value} message")

    def _named(self, name: bytes, message: Message) -> bytes:
        if message.headers is None:
            ttl = message.ttl
            if ttl is None:
                return name
            if 0.0 <= ttl < 1e12 and message.kind is _REQUEST:  # as `extras_of`: most requests have only a deadline
                return b'%b\0{"ttl":%d}' % (name, ttl * 1000 + 0.5)
        return self._extended(name, message)

    def _extended(self, name: bytes, message: Message) -> bytes:
        extras = members.extras_of(message, self._limits)
        return b"%b\0%b" % (name, extras) if extras else name

    def _filled_subject(self, message: Message) -> bytes:
        if not message.subject:
            raise LocalProtocolError("the subject is empty", protocol="ubre")
        return self._subject_bytes(message.subject)

    def _self_described(self, letters: bytes, name: bytes, message: Message) -> bytes:
        """Write an item or open. The first letter is used for bytes, and the second for JSON."""
        if members.body_is_octets(message):
            return self._frame(letters[:1], name, message.encoded(OCTETS_ONLY))
        return self._frame(letters[1:], name, message.encoded(JSON_ONLY))

    def _frame(self, letter: bytes, name: bytes, body: bytes | None) -> bytes:
        if len(name) > _MAX_NAME:
            raise EncodeError(f"subject, headers and detail are {len(name)} bytes, but a binary name has room for {_MAX_NAME}")
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
        raise LocalProtocolError("an id must be an integer or a string without NUL", protocol="ubre")
    return id.encode()


# -- for display ---------------------------------------------------------------------------------------------------------

_LETTERS: Final[Mapping[str, tuple[str, str]]] = {
    "S": ("subscribe", "subject"),
    "U": ("unsubscribe", "subject"),
    "P": ("publish", "subject"),
    "R": ("request", "id"),
    "s": ("success", "id"),
    "f": ("fail", "id"),
    "c": ("fail, as the document's table writes it in hex", "id"),
    "C": ("cancel", "id"),
    "O": ("open, the body is JSON", "id"),
    "o": ("open, the body is bytes", "id"),
    "I": ("item, the body is JSON", "id"),
    "i": ("item, the body is bytes", "id"),
    "K": ("credit", "id"),
    "E": ("end", "id"),
}


def dissect(frame: bytes) -> Iterator[FrameField]:
    if frame[:1] in (b"{", b" ", b"\t", b"\r", b"\n"):
        return
    if len(frame) < HEADER.size:
        yield FrameField(0, len(frame), "header", frame.hex(" "), f"cut off: a header has {HEADER.size} bytes")
        return
    letter, name_length, body_length = HEADER.unpack_from(frame)
    kind, first = _LETTERS.get(chr(letter), ("unknown", "name"))
    yield FrameField(0, 1, "type", f"{letter:#04x} {chr(letter)!r}" if 32 < letter < 127 else f"{letter:#04x}", kind)
    there = len(frame) - HEADER.size
    short = f"cut off: {there} bytes follow the header" if name_length > there else ""
    yield FrameField(1, 2, "name length", str(name_length), short)
    rest = max(0, there - name_length)
    yield FrameField(3, 4, "body length", *_shown_length(body_length, rest))
    yield from _shown_name(frame[HEADER.size : HEADER.size + name_length], first)
    start = HEADER.size + name_length
    size = rest if body_length == REST_OF_FRAME else min(body_length, rest)
    if size:
        yield FrameField(start, size, "body", shown_text(frame[start : start + size]))
    if rest > size:
        yield FrameField(start + size, rest - size, "trailing", frame[start + size :][:32].hex(" "), "extra bytes")


def _shown_length(announced: int, there: int) -> tuple[str, str]:
    if announced == REST_OF_FRAME:
        return "-1", f"the rest of the frame: {there} bytes"
    return str(announced), f"cut off: {there} bytes are there" if announced > there else ""


def _shown_name(name: bytes, first: str) -> Iterator[FrameField]:
    offset = HEADER.size
    for index, part in enumerate(name.split(b"\0", 2)):
        if index and (index == 2 or part[:1] == b"{"):
            yield FrameField(offset, len(part), "extras", shown_text(part), "further members")
        elif index == 0 or part:
            yield FrameField(offset, len(part), "subject" if index else first, shown_text(part))
        offset += len(part) + 1
