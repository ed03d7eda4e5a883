"""Reads UBRE in binary frames (document UBRE, "Binary Message Format"). `docs/reference/ubre.md` has the table of types.

The document leaves the form of names and bodies open; here a name is text, with parts divided by NUL where it needs any.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import msgspec

from ...body import OCTETS, check_json
from ...errors import RemoteProtocolError
from ...limits import Limits
from ...message import Kind, Message
from .checks import WIRE_RULES, check_id, check_subject, read_ttl, refuse, refuse_json
from .members import NO_EXTRAS, ChannelMembers, credit, end, error, named_in_body, opening

HEADER: Final = struct.Struct(">BHI")
REST_OF_FRAME: Final = 0xFFFFFFFF
"""The body length -1."""

_FAIL_BY_HEX: Final = 0x63  # the document's table gives fail as "f", 102 and 0x63, which is 99
_REQUEST, _RESPONSE, _PUBLISH, _ITEM = Kind.REQUEST, Kind.RESPONSE, Kind.PUBLISH, Kind.ITEM
_decode: Final = msgspec.json.Decoder().decode
_decode_extras: Final = msgspec.json.Decoder(ChannelMembers).decode


class BinaryReader:
    """Makes messages of binary frames, in either dialect; `raw` says that ordinary bodies are bytes."""

    def __init__(self, limits: Limits, raw: bool) -> None:
        self._limits = limits
        self._raw = raw
        # Shorter than this, text is within its limit however many bytes its characters have, and JSON is not too deep.
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
            ord("K"): lambda name, body: credit(*self._id_and_extras(name)),
            ord("E"): lambda name, body: end(*self._id_and_extras(name)),
        }

    def read(self, frame: bytes) -> Message:
        try:
            return self._read(frame)
        except RemoteProtocolError as error:
            error.frame = frame[:200]
            raise

    def _read(self, frame: bytes) -> Message:
        if len(frame) < 7:
            raise refuse(f"{len(frame)} of the 7 bytes of a header", "truncated")
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
            raise refuse(f"no type {letter:#04x} in UBRE", "unknown_verb")
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
            raise refuse(f"{size} of the {start + body_length} bytes that the header announces", "truncated")
        raise refuse(f"{size - start - body_length} trailing bytes")

    def _request(self, name: str, body: bytes | None) -> Message:
        """``id NUL subject [NUL extras]``; a bare id, or ``"spec": true`` in the extras, is the document's dialect."""
        id, named, rest = name.partition("\0")
        self._check_id(id)
        subject, more, text = rest.partition("\0")
        extras = self._extras(text, id) if more else NO_EXTRAS
        if not self._raw and (not named or extras.spec is True):
            subject, body = self._subject_in(body, id)
        if len(subject) > self._short_subject or not subject.isprintable():
            check_subject(subject, self._limits.subject, id, empty=True)
        message = Message(_REQUEST, subject, id)
        if more:
            message.ttl = read_ttl(extras.ttl, id)
            if extras.headers is not None:
                message.headers = WIRE_RULES.read_headers(extras.headers, self._limits.headers, id)
        return self._with_body(message, body, self._raw, id)

    def _subject_in(self, body: bytes | None, answer_id: str) -> tuple[str, bytes | None]:
        if body:
            self._value(body, answer_id, around=1)
            found = named_in_body(body)
            if found is not None:
                return found.subject, bytes(found.body)
        return "", body

    def _publish(self, name: str, body: bytes | None) -> Message:
        subject, more, text = name.partition("\0")
        if not 0 < len(subject) <= self._short_subject or not subject.isprintable():
            check_subject(subject, self._limits.subject)
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
        return error(id, self._fail_body(body), extras, self._limits)

    def _fail_body(self, body: bytes | None) -> Any:
        """Read an error. The request has failed whatever the peer says: what is no JSON is taken as text."""
        if not body:
            return None
        try:
            return str(body, "utf-8") if self._raw else self._value(body)
        except (RemoteProtocolError, UnicodeDecodeError):
            return str(body, "utf-8", "replace")

    def _interest(self, kind: Kind, name: str, body: bytes | None) -> Message:
        check_subject(name, self._limits.subject)
        return Message(kind, name)

    def _open(self, octets: bool, name: str, body: bytes | None) -> Message:
        id, _, rest = name.partition("\0")
        self._check_id(id)
        subject, _, text = rest.partition("\0")
        check_subject(subject, self._limits.subject, id, empty=True)
        return self._with_body(opening(id, subject, self._extras(text, id), self._limits), body, octets, id)

    def _item(self, octets: bool, name: str, body: bytes | None) -> Message:
        return self._with_body(Message(_ITEM, "", self._check_id(name)), body, octets)

    def _check_id(self, id: str) -> str:
        if not 0 < len(id) <= self._short_id or "\0" in id:
            check_id(id, self._limits.id)
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

    def _value(self, body: bytes, answer_id: Any = None, around: int = 0) -> Any:
        """Read JSON; `around` are the levels of what the document's dialect wraps around a body."""
        try:
            if len(body) > self._short_json or not body.isascii():
                check_json(body, self._limits.depth + around)
            return _decode(body)
        except (ValueError, RecursionError) as error:
            raise refuse_json(error, answer_id) from error
