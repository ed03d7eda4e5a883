"""Reads frames. `docs/reference/csb.md` describes the payloads of reserved actions."""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Iterator, Mapping
from functools import partial
from typing import Any, Final

import msgspec

from ...body import OCTETS
from ...errors import RemoteProtocolError
from ...limits import Limits
from ...message import Kind, Message
from ...plugins import FrameField
from ...plugins.hello import HELLO
from .._shared import fault_in_subject, remember
from . import wire
from .bodies import LAST_USER, RESULTS, WIRE_RULES, fill_error, payload_readers, refuse
from .wire import NO_TTL, NUMBERED

DEADLINE_WORD: Final = "deadline"  # Subject of a control message with the deadline of the request after it

_unpack: Final = wire.HEADER.unpack_from
_MORE: Final = struct.Struct(">HHI")
_REQUEST, _RESPONSE, _PUBLISH, _ITEM = Kind.REQUEST, Kind.RESPONSE, Kind.PUBLISH, Kind.ITEM
_RESERVED: Final = wire.FIRST_RESERVED
_OF_CHANNEL: Final = wire.ITEM
_OF_OURS: Final = wire.REQUEST_MORE
_BINARY_REQUEST: Final = wire.REQUEST << 4 | wire.BINARY
_BINARY_RESPONSE: Final = wire.RESPONSE << 4 | wire.BINARY
_CACHED: Final = 1024
_WORDS: Final = {number: word for word, number in wire.ENCODINGS.items()}


class CsbExtras(msgspec.Struct, gc=False, kw_only=True):
    headers: Any = None
    mode: Any = None
    n: Any = 0
    hops: Any = 0


_decode_extras: Final = msgspec.json.Decoder(CsbExtras).decode


class CsbReader:
    """Reads frames without a client number. `names` maps action numbers to action names."""

    def __init__(self, limits: Limits, names: Mapping[int, str]) -> None:
        self._limits = limits
        self._names = names
        self._payloads = payload_readers(limits)
        # Subjects repeat, so they are cached by their bytes. Bounded.
        self._subjects: dict[bytes, str] = {}
        # By action; each takes encoding, id (``action << 16 | number``) and frame.
        self._reserved: dict[int, Callable[[int, int, bytes], Message]] = {
            wire.HELLO: partial(self._plain, HELLO),
            wire.SUBSCRIBE: partial(self._pattern, Kind.SUBSCRIBE),
            wire.UNSUBSCRIBE: partial(self._pattern, Kind.UNSUBSCRIBE),
            wire.PUBLISH: partial(self._with_subject, _PUBLISH),
            wire.REQUEST_NAMED: partial(self._with_subject, _REQUEST),
            wire.REQUEST_MORE: self._request_more,
            wire.PUBLISH_MORE: lambda encoding, id, frame: self._with_more(Message(_PUBLISH), encoding, frame, None)[0],
            wire.OPEN: self._open,
            wire.CANCEL: self._cancel,
            wire.DEADLINE: self._deadline,
        }

    def read(self, frame: bytes) -> Message:
        try:
            if len(frame) < 8:
                raise refuse(f"truncated header: {len(frame)} of 8 bytes", "short_frame")
            first, result, number, action = _unpack(frame)
            kind = first >> 4
            if kind == wire.REQUEST:
                if result:
                    answer_id = None if action in wire.UNANSWERED else action << 16 | number
                    raise refuse(f"result {result:#04x} on a request: it must be 0", "bad_code", answer_id)
                id = action << 16 | number
                if action >= _RESERVED:
                    if action == _OF_OURS:  # the request action of polybus peers
                        return self._request_more(first & 15, id, frame)
                    return self._extension(first & 15, id, action, frame)
                if first == _BINARY_REQUEST:
                    message = Message(_REQUEST, self._names.get(action, action), id, frame[8:] or None, OCTETS)
                    message.extras = {"encoding": "binary"}
                    return message
                return self._filled(Message(_REQUEST, self._names.get(action, action), id), first & 15, frame[8:], id)
            if first == _BINARY_RESPONSE and not result and action < _OF_CHANNEL:
                message = Message(_RESPONSE, "", action << 16 | number, frame[8:] or None, OCTETS)
                message.extras = {"encoding": "binary"}
                return message
            if kind == wire.RESPONSE:
                return self._response(first & 15, result, number, action, frame)
            return self._control(kind, first & 15, number, action, frame)
        except RemoteProtocolError as error:
            error.frame = frame[:200]
            raise

    def _body(
        self, encoding: int, data: bytes, answer_id: int | None, reply_id: int | None = None
    ) -> tuple[bytes | None, Any, Any]:
        try:
            return self._payloads[encoding](data)
        except KeyError:
            refused = refuse(f"no payload encoding {encoding:#x} in CSB", "bad_encoding")
        except RemoteProtocolError as error:
            refused = error
        refused.answer_id, refused.reply_id = answer_id, reply_id
        raise refused

    def _filled(
        self, message: Message, encoding: int, data: bytes, answer_id: int | None = None, reply_id: int | None = None
    ) -> Message:
        raw, message.format, value = self._body(encoding, data, answer_id, reply_id)
        message.extras = {"encoding": _WORDS[encoding]}
        if raw is not None:
            message.raw, message.decoded, message.checked = raw, value, raw
        return message

    # -- answers ---------------------------------------------------------------------------------------------------------

    def _response(self, encoding: int, result: int, number: int, action: int, frame: bytes) -> Message:
        id = action << 16 | number
        kind = wire.CHANNEL_KINDS.get(action)
        if kind is not None:
            return self._of_channel(kind, encoding, ~(wire.OPEN << 16 | number), frame)
        if result:
            message = Message(Kind.ERROR, "", id)
            fill_error(message, result, self._body(encoding, frame[8:], None, id)[2])
            return message
        return self._filled(Message(_RESPONSE, "", id), encoding, frame[8:], None, id)

    def _control(self, kind: int, encoding: int, number: int, action: int, frame: bytes) -> Message:
        word = wire.CONTROL_WORDS.get(kind)
        if word is None:
            raise refuse(f"kind {kind:#x} is not defined in CSB", "bad_kind")
        return self._filled(Message(Kind.CONTROL, word), encoding, frame[8:])

    # -- reserved actions ------------------------------------------------------------------------------------------------

    def _extension(self, encoding: int, id: int, action: int, frame: bytes) -> Message:
        kind = wire.CHANNEL_KINDS.get(action)
        if kind is not None:
            return self._of_channel(kind, encoding, wire.OPEN << 16 | id & 0xFFFF, frame)
        read = self._reserved.get(action)
        if read is None:  # perhaps of a later polybus: the bus answers that there is no handler
            return self._plain(action, encoding, id, frame)
        return read(encoding, id, frame)

    def _plain(self, subject: str | int, encoding: int, id: int, frame: bytes) -> Message:
        return self._filled(Message(_REQUEST, subject, id), encoding, frame[8:], id)

    def _pattern(self, kind: Kind, encoding: int, id: int, frame: bytes) -> Message:
        return Message(kind, self._subject(frame, id)[0], id)

    def _with_subject(self, kind: Kind, encoding: int, id: int, frame: bytes) -> Message:
        subject, end = self._subject(frame, id)
        return self._filled(Message(kind, subject, id), encoding, frame[end:], id)

    def _request_more(self, encoding: int, id: int, frame: bytes) -> Message:
        if len(frame) < 16:
            raise refuse("the payload is shorter than its lengths", "bad_length", id)
        size, more, ttl = _MORE.unpack_from(frame, 8)
        end = 16 + (size if size != NUMBERED else 4)
        known = self._subjects.get(frame[16:end]) if size != NUMBERED and end <= len(frame) else None
        subject = known if known is not None else self._checked_subject(frame, 16, size, id)
        seconds = None if ttl == NO_TTL else ttl / 1000
        if encoding:
            message = self._filled(Message(_REQUEST, subject, id, ttl=seconds), encoding, frame[end + more :], id)
        else:
            message = Message(_REQUEST, subject, id, frame[end + more :] or None, OCTETS, None, seconds)
            message.extras = {"encoding": "binary"}
        if more:
            message.headers = WIRE_RULES.read_headers(self._extras(frame, end, more, id).headers, self._limits.headers, id)
        return message

    def _open(self, encoding: int, id: int, frame: bytes) -> Message:
        message, extras = self._with_more(Message(Kind.OPEN, "", id), encoding, frame, id)
        message.attributes.update(WIRE_RULES.read_opening(extras.mode, extras.n, extras.hops, id, most=0xFFFFFFFF))
        return message

    def _with_more(self, message: Message, encoding: int, frame: bytes, id: int | None) -> tuple[Message, CsbExtras]:
        if len(frame) < 16:
            raise refuse("the payload is shorter than its lengths", "bad_length", id)
        size, more, ttl = _MORE.unpack_from(frame, 8)
        message.subject = self._checked_subject(frame, 16, size, id)
        end = 16 + (size if size != NUMBERED else 4)
        extras = self._extras(frame, end, more, id)
        message.headers = WIRE_RULES.read_headers(extras.headers, self._limits.headers, id)
        message.ttl = None if ttl == NO_TTL else ttl / 1000
        return self._filled(message, encoding, frame[end + more :], id), extras

    def _cancel(self, encoding: int, id: int, frame: bytes) -> Message:
        if len(frame) != 12:
            raise refuse("a cancel must contain the action of the request in four bytes")
        (action,) = wire.NUMBER.unpack_from(frame, 8)
        return Message(Kind.CANCEL, "", action << 16 | id & 0xFFFF)

    def _deadline(self, encoding: int, id: int, frame: bytes) -> Message:
        if len(frame) != 16:
            raise refuse("a deadline must contain the action of the request and the milliseconds, four bytes each")
        action, ttl = wire.NUMBER.unpack_from(frame, 8)[0], wire.NUMBER.unpack_from(frame, 12)[0]
        return Message(Kind.CONTROL, DEADLINE_WORD, action << 16 | id & 0xFFFF, ttl=ttl / 1000)

    def _of_channel(self, kind: Kind, encoding: int, id: int, frame: bytes) -> Message:
        """Read an item, credit or end. The opener sends these as requests, the other side as responses."""
        if kind is _ITEM and not encoding and len(frame) > 8:
            message = Message(_ITEM, "", id, frame[8:], OCTETS)
            message.extras = {"encoding": "binary"}
            return message
        message = Message(kind, "", id)
        if kind is _ITEM:
            return self._filled(message, encoding, frame[8:])
        if kind is Kind.CREDIT:
            credit = wire.NUMBER.unpack_from(frame, 8)[0] if len(frame) == 12 else 0
            if not credit:
                raise refuse("a credit must be a four-byte number above 0")
            message.attributes["credit"] = credit
        elif len(frame) > 8:
            _, _, value = self._payloads[wire.JSON](frame[8:])
            fill_error(message, frame[1] or None, value)
        return message

    # -- subjects and extras ---------------------------------------------------------------------------------------------

    def _subject(self, frame: bytes, id: int) -> tuple[str | int, int]:
        if len(frame) < 10:
            raise refuse("the payload is shorter than the length of its subject", "bad_length", id)
        size = frame[8] << 8 | frame[9]
        end = 10 + (size if size != NUMBERED else 4)
        if size != NUMBERED and end <= len(frame):
            known = self._subjects.get(frame[10:end])
            if known is not None:
                return known, end
        return self._checked_subject(frame, 10, size, id), end

    def _checked_subject(self, frame: bytes, start: int, size: int, id: int | None) -> str | int:
        if size == NUMBERED:
            if len(frame) < start + 4:
                raise refuse("the payload is shorter than its subject", "bad_length", id)
            action: int = wire.NUMBER.unpack_from(frame, start)[0]
            return self._names.get(action, action)
        text = frame[start : start + size]
        if len(text) < size:
            raise refuse(f"truncated subject: {len(text)} of {size} bytes", "bad_length", id)
        try:
            subject = str(text, "utf-8")
        except UnicodeDecodeError as error:
            raise refuse(f"the subject is not UTF-8 at byte {error.start}", "invalid_subject", id) from error
        fault = fault_in_subject(subject, self._limits.subject)
        if fault is not None:
            raise refuse(fault, "invalid_subject", id)
        if not subject:  # only a request may go to the handler of ""; not cached, because this depends on the action
            if id is None or id >> 16 in _NEVER_EMPTY:
                raise refuse("the subject is empty", "invalid_subject", id)
            return subject
        return remember(self._subjects, text, subject, _CACHED)

    def _extras(self, frame: bytes, start: int, size: int, id: int | None) -> CsbExtras:
        if not size:
            return _NOTHING
        text = frame[start : start + size]
        if len(text) < size:
            raise refuse(f"truncated extras: {len(text)} of {size} bytes", "bad_length", id)
        try:
            return _decode_extras(text)
        except (ValueError, RecursionError) as error:
            raise refuse(f"the extras are not a JSON object: {error}", "malformed", id) from error


_NEVER_EMPTY: Final = (wire.SUBSCRIBE, wire.UNSUBSCRIBE, wire.PUBLISH)
_NOTHING: Final = CsbExtras()


def unwrap(frame: bytes) -> tuple[int, bytes]:
    if len(frame) < 4:
        raise refuse(f"truncated header: {len(frame)} of 12 bytes", "short_frame")
    return wire.CLIENT.unpack_from(frame)[0], frame[4:]


# -- for display ---------------------------------------------------------------------------------------------------------

_ACTION_NAMES: Final[Mapping[int, str]] = dict(
    enumerate(
        "hello/subscribe/unsubscribe/publish/request by name/request with extras/publish with extras/open/cancel/item/credit/"
        "end/deadline".split("/"),
        wire.HELLO,
    )
)
_SHOWN: Final = 200


def dissect(frame: bytes, wrapped: bool, names: Mapping[int, str]) -> Iterator[FrameField]:
    start = 0
    if wrapped:
        if len(frame) < 4:
            yield FrameField(0, len(frame), "client id", frame.hex(" "), "cut off: it has 4 bytes")
            return
        (client,) = wire.CLIENT.unpack_from(frame)
        yield FrameField(0, 4, "client id", str(client), "" if client else "the broker itself")
        start = 4
    if len(frame) - start < wire.HEADER_SIZE:
        note = f"cut off: a header has {wire.HEADER_SIZE} bytes"
        yield FrameField(start, len(frame) - start, "header", frame[start:].hex(" "), note)
        return
    first, result, number, action = wire.HEADER.unpack_from(frame, start)
    kind, encoding = first >> 4, first & 15
    yield FrameField(start, 1, "kind", f"{kind:#x}", wire.KIND_WORDS.get(kind, "not defined") + " (high four bits)")
    yield FrameField(start, 1, "encoding", f"{encoding:#x}", _WORDS.get(encoding, "not defined") + " (low four bits)")
    yield FrameField(start + 1, 1, "result code", f"{result:#04x}", _result_word(kind, result))
    yield FrameField(start + 2, 2, "message id", str(number))
    yield FrameField(start + 4, 4, "action id", f"{action:#010x}", _ACTION_NAMES.get(action) or names.get(action, ""))
    at = start + wire.HEADER_SIZE
    if kind == wire.REQUEST and action in wire.WITH_SUBJECT | wire.WITH_MORE:
        at = yield from _subject_fields(frame, at, action in wire.WITH_MORE)
        if at < 0:
            return
    if len(frame) > at:
        part, octets = frame[at : at + _SHOWN], encoding == wire.BINARY or encoding not in _WORDS
        shown = part.hex(" ") if octets else part.decode(errors="replace")
        yield FrameField(at, len(frame) - at, "payload", shown)


def _result_word(kind: int, result: int) -> str:
    if kind != wire.RESPONSE:
        return "" if not result else "must be 0 here"
    if not result:
        return "Ok"
    if result <= LAST_USER:
        return "of the application"
    known = RESULTS.get(result)
    return "reserved, not defined" if known is None else known[2].partition(":")[0]


def _subject_fields(frame: bytes, at: int, more: bool) -> Generator[FrameField, None, int]:
    """Yield the fields before the body. Returns the body's position, or -1 if the frame ends before the body."""
    sizes = (("subject length", 2), ("extras length", 2), ("ttl", 4)) if more else (("subject length", 2),)
    read = []
    for name, width in sizes:
        if len(frame) < at + width:
            yield FrameField(at, len(frame) - at, name, frame[at:].hex(" "), f"cut off: it has {width} bytes")
            return -1
        value = int.from_bytes(frame[at : at + width])
        note = ""
        if value == (NUMBERED if width == 2 else NO_TTL) and name != "extras length":
            note = "an action's number in 4 bytes" if width == 2 else "none"
        yield FrameField(at, width, name, str(value), note or ("milliseconds" if name == "ttl" else ""))
        read.append(value)
        at += width
    parts = [("subject", 4 if read[0] == NUMBERED else read[0]), *([("extras", read[1])] if more and read[1] else [])]
    for name, size in parts:
        part = frame[at : at + size]
        numbered = name == "subject" and read[0] == NUMBERED
        shown = f"{int.from_bytes(part):#010x}" if numbered else part[:_SHOWN].decode(errors="replace")
        yield FrameField(at, len(part), name, shown, "" if len(part) == size else f"cut off: it has {size} bytes")
        if len(part) < size:
            return -1
        at += size
    return at
