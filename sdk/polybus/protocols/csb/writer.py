"""Writes frames. `docs/reference/csb.md` describes the payloads of reserved actions."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from ...body import JSON as JSON_FORMAT
from ...body import OCTETS, TEXT, BodyFormat
from ...errors import LocalProtocolError, Unsupported
from ...limits import Limits
from ...message import Kind, Message
from ...plugins.hello import HELLO
from .._shared import Memo, fault_in_subject, milliseconds, opening_facts
from . import wire
from .bodies import FORMATS, NUMBERS, WIRE_RULES, error_payload
from .reader import DEADLINE_WORD
from .wire import NO_TTL, NUMBERED

_REQUEST, _NOTIFY, _RESPONSE, _PUBLISH, _ITEM = Kind.REQUEST, Kind.NOTIFY, Kind.RESPONSE, Kind.PUBLISH, Kind.ITEM
_AS_REQUEST: Final = wire.REQUEST << 4
_AS_RESPONSE: Final = wire.RESPONSE << 4

_JSON_RESPONSE: Final = _AS_RESPONSE | wire.JSON

_pack: Final = wire.HEADER.pack
_pack_more: Final = struct.Struct(">BBHIHHI").pack
_pack_named: Final = struct.Struct(">BBHIH").pack
_encode: Final = msgspec.json.Encoder().encode
_CACHED: Final = 1024
_OF_CHANNELS: Final = {kind: action for action, kind in wire.CHANNEL_KINDS.items()}
_ACTIONS: Final = {Kind.SUBSCRIBE: wire.SUBSCRIBE, Kind.UNSUBSCRIBE: wire.UNSUBSCRIBE, **_OF_CHANNELS}
_ALL_IDS: Final = 1 << 48
_CONTROL: Final = {word: kind for kind, word in wire.CONTROL_WORDS.items()}


class CsbWriter:
    def __init__(self, limits: Limits, actions: Mapping[str, int]) -> None:
        self._limits = limits
        self._actions = actions
        self._names: Memo[str | int, tuple[int, bytes]] = Memo(self._name, _CACHED)

    # -- requests and publications ---------------------------------------------------------------------------------------

    def request(self, message: Message, number: int, ours: bool | None) -> tuple[bytes, int]:
        """Write a request or notification. Returns the frame and its action. `ours` is `None` until the peer is known."""
        subject, headers = message.subject, message.headers
        first, raw = self._body(message, _AS_REQUEST)
        if (ours or headers) and subject != HELLO:
            if headers and ours is False:
                raise Unsupported("this peer is not a polybus: CSB cannot carry headers")
            ttl = message.ttl
            if headers or ttl is not None:
                size, name = self._names[subject]
                more = self._headers(headers) if headers else b""
                wait = NO_TTL if ttl is None else int(ttl * 1000 + 0.5) if 0.0 <= ttl < 4e6 else _wait(ttl)
                head = _pack_more(first, 0, number, wire.REQUEST_MORE, size, len(more), wait)
                return b"".join((head, name, more, raw)), wire.REQUEST_MORE
        action = subject if type(subject) is int else self._actions.get(subject)  # type: ignore[arg-type]
        if action is not None:
            if not 0 <= action < wire.FIRST_RESERVED:
                text = f"action {action:#x}: actions are numbers from 0 to 0xfffeffff, those above are reserved"
                raise LocalProtocolError(text, protocol="csb")
            return _pack(first, 0, number, action) + raw, action
        if subject == HELLO:
            return _pack(first, 0, number, wire.HELLO) + raw, wire.HELLO
        size, name = self._names[subject]
        return _pack_named(first, 0, number, wire.REQUEST_NAMED, size) + name + raw, wire.REQUEST_NAMED

    def publish(self, message: Message, number: int = 0, *, bare: bool = False) -> bytes:
        """Write a publication, without headers if `bare` is set. Polybus peers do not answer a publication of number 0."""
        first, raw = self._body(message, _AS_REQUEST)
        size, name = self._filled_name(message)
        if message.headers and not bare:
            more = self._headers(message.headers)
            return b"".join((_pack_more(first, 0, 0, wire.PUBLISH_MORE, size, len(more), NO_TTL), name, more, raw))
        return _pack_named(first, 0, number, wire.PUBLISH, size) + name + raw

    def open(self, message: Message, number: int) -> bytes:
        first, raw = self._body(message, _AS_REQUEST)
        size, name = self._names[message.subject]
        members: dict[str, Any] = dict(zip(("mode", "n", "hops"), opening_facts(message), strict=True))
        if message.headers:
            self._headers(message.headers)
            members["headers"] = message.headers
        more = _encode(members)
        wait = NO_TTL if message.ttl is None else _wait(message.ttl)
        return b"".join((_pack_more(first, 0, number, wire.OPEN, size, len(more), wait), name, more, raw))

    # -- what belongs to a request ---------------------------------------------------------------------------------------

    def response(self, message: Message, id: int) -> bytes:
        first, raw = self._body(message, _AS_RESPONSE)
        return _pack(first, 0, id & 0xFFFF, id >> 16) + raw

    def error(self, message: Message, id: int) -> bytes:
        result, payload = error_payload(message)
        return _pack(_JSON_RESPONSE, result, id & 0xFFFF, id >> 16) + payload

    def acknowledged(self, id: int) -> bytes:
        """Write an empty Ok, which answers a subscription or a numbered publication."""
        return _pack(_AS_RESPONSE, 0, id & 0xFFFF, id >> 16)

    def cancel(self, number: int, action: int) -> bytes:
        return _pack(_AS_REQUEST, 0, number, wire.CANCEL) + wire.NUMBER.pack(action)

    def deadline(self, number: int, action: int, ttl: float) -> bytes:
        """Write the deadline of the next request as a separate message, for peers that may not run polybus."""
        payload = wire.NUMBER.pack(action) + wire.NUMBER.pack(_wait(ttl))
        return _pack(_AS_REQUEST, 0, number, wire.DEADLINE) + payload

    def of_channel(self, message: Message, id: int) -> bytes:
        side = _AS_REQUEST if id >= 0 else _AS_RESPONSE
        number = (id if id >= 0 else ~id) & 0xFFFF
        kind = message.kind
        result = 0
        if kind is _ITEM:
            first, payload = self._body(message, side)
        elif kind is Kind.CREDIT:
            first, payload = side, wire.NUMBER.pack(min(int(message.attributes.get("credit", 0)), 0xFFFFFFFF))
        elif message.code:
            result, payload = error_payload(message)
            first = side | wire.JSON
        else:
            first, payload = side, b""
        return _pack(first, result if id < 0 else 0, number, _ACTIONS[kind]) + payload

    def write(self, message: Message, id: Any) -> bytes:
        kind = message.kind
        if kind is _PUBLISH:
            return self.publish(message, 0 if id is None else _checked_id(id) & 0xFFFF)
        if kind is Kind.SUBSCRIBE or kind is Kind.UNSUBSCRIBE:
            size, name = self._filled_name(message)
            number = 0 if id is None else _checked_id(id) & 0xFFFF
            return _pack_named(_AS_REQUEST, 0, number, _ACTIONS[kind], size) + name
        if kind is Kind.CONTROL and message.subject == DEADLINE_WORD:
            number = _checked_id(id)
            return self.deadline(number & 0xFFFF, number >> 16, message.ttl or 0.0)
        if kind is Kind.CONTROL:
            word = _CONTROL.get(str(message.subject))
            if word is None:
                raise Unsupported(f"CSB has no control message {message.subject!r}")
            first, raw = self._body(message, word << 4)
            return _pack(first, 0, 0, 0) + raw
        number = _checked_id(id, -_ALL_IDS if kind in wire.CHANNEL_KINDS.values() else 0)
        if kind is _REQUEST or kind is _NOTIFY:
            return self.request(message, number & 0xFFFF, number >> 16 == wire.REQUEST_MORE or None)[0]
        if kind is _RESPONSE:
            return self.response(message, number)
        if kind is Kind.ERROR:
            return self.error(message, number)
        if kind is Kind.OPEN:
            return self.open(message, number & 0xFFFF)
        if kind is Kind.CANCEL:
            return self.cancel(number & 0xFFFF, number >> 16)
        if kind in _ACTIONS:
            return self.of_channel(message, number)
        raise Unsupported(f"CSB cannot carry a {kind.value} message")

    # -- parts -----------------------------------------------------------------------------------------------------------

    def _body(self, message: Message, side: int) -> tuple[int, bytes]:
        """Return the first byte and the payload. Empty bytes become base64, because an empty binary payload means no body."""
        raw = message.raw
        if raw and (raw is message.checked or message.format is OCTETS) and message.format in NUMBERS:
            return side | NUMBERS[message.format], raw
        if not message.has_body:
            return side, b""
        raw = message.encoded(FORMATS, choose_format)
        assert raw is not None
        have: BodyFormat = message.format if message.format in FORMATS else choose_format(message.body)
        if not raw and have is OCTETS:
            return side | wire.BASE64, b""
        return side | NUMBERS[have], raw

    def _filled_name(self, message: Message) -> tuple[int, bytes]:
        found = self._names[message.subject]
        if not found[0]:
            raise LocalProtocolError("the subject is empty", protocol="csb")
        return found

    def _name(self, subject: str | int) -> tuple[int, bytes]:
        """Return the length and the bytes of a subject. Numbers have a reserved length."""
        if type(subject) is int:
            if not 0 <= subject <= 0xFFFFFFFF:
                raise LocalProtocolError(f"action {subject}: an action must be a 32-bit number", protocol="csb")
            return NUMBERED, wire.NUMBER.pack(subject)
        fault = fault_in_subject(subject, min(self._limits.subject, NUMBERED - 1))
        if fault is not None:
            raise LocalProtocolError(fault, protocol="csb")
        action = self._actions.get(subject)  # type: ignore[arg-type]
        name = str(subject).encode()
        return (NUMBERED, wire.NUMBER.pack(action)) if action is not None else (len(name), name)

    def _headers(self, headers: dict[str, str]) -> bytes:
        WIRE_RULES.check_local_headers(headers, min(self._limits.headers, 0x8000))
        more = _encode({"headers": headers})
        if len(more) > 0xFFFF:
            raise LocalProtocolError(f"headers of {len(more)} bytes as JSON: CSB has room for 65535", protocol="csb")
        return more


def choose_format(value: Any) -> BodyFormat:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return OCTETS
    return TEXT if isinstance(value, str) else JSON_FORMAT


def _wait(ttl: float) -> int:
    """Convert seconds to 32-bit milliseconds. Longer deadlines are omitted."""
    return min(milliseconds(ttl), NO_TTL)


def _checked_id(id: Any, least: int = 0) -> int:
    if type(id) is not int or not least <= id < _ALL_IDS:
        raise LocalProtocolError(f"{id!r} is not an id: an id is action << 16 | message id", protocol="csb")
    return id
