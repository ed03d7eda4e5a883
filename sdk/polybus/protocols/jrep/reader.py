"""Reads payloads: arrays of objects that consist of message parts (document, "Payload Structure").

Ordinary messages use only a few parts, so a payload is first decoded in a single pass that rejects any other part. If that pass
fails, the payload is read message by message and part by part, so that a malformed message does not affect other messages.
"""

from __future__ import annotations

import binascii
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from ...body import JSON, OCTETS, BodyFormat, check_json, check_levels
from ...errors import BadRequest, BusError, Code, RemoteProtocolError
from ...limits import Limits
from ...message import Kind, Message
from .._shared import error_facts, fault_in_subject
from . import names
from .formats import ErraiFormat
from .java import JavaObject, JavaTypes, Portable
from .names import CONTROL_SUBJECTS, ERRORS_SUFFIX, LOCAL_PREFIX, REPLY_SUFFIX, WIRE_RULES, refuse, refuse_json
from .writer import payloads_of

_elements: Final = msgspec.json.Decoder(list[Raw]).decode
LONG: Final = 32 * 1024  # Maximum bytes of an array that is read in one turn, unless it has a single element
_MOST_MESSAGES: Final = 256  # Maximum number of elements; reading and handling them takes a few milliseconds


def cut(array: bytes, long: int = LONG) -> list[bytes]:
    """Split an array into arrays of at most `long` bytes. A single long element is an array on its own."""
    if len(array) <= long:
        return [array]
    return payloads_of([bytes(element) for element in _elements(array)], long, _MOST_MESSAGES) or [b"[]"]


_STRUCTURE: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+("?)|[\[\]{},]', re.DOTALL)
_OPENED: Final = {b"]": b"[", b"}": b"{"}
_MOST_TOKENS: Final = 200_000  # Less than a tenth of a second, to bound the work on a malformed payload


def told_apart(frame: bytes) -> list[bytes] | None:
    """Split malformed JSON into elements if quotes and brackets still show where each element ends. Otherwise return `None`."""
    text, found, open_, start = frame.strip(), list[bytes](), list[bytes](), 1
    for number, token in enumerate(_STRUCTURE.finditer(text)):
        sign = token[0][:1]
        if number == _MOST_TOKENS or (sign == b'"' and not token[1]) or (not open_ and sign != b"["):
            return None
        if sign in (b"[", b"{"):
            open_.append(sign)
        elif sign in _OPENED and open_.pop() != _OPENED[sign]:
            return None
        if not open_ or (sign == b"," and len(open_) == 1):
            found.append(text[start : token.start()].strip())
            start = token.end()
            if not open_:
                return found if start == len(text) and text[:1] == b"[" and any(found) else None
    return None


def by_priority(messages: Sequence[Message | RemoteProtocolError]) -> Sequence[Message | RemoteProtocolError]:
    """Move messages with a priority to the front (document). A payload that contains commands keeps its order."""
    if any(isinstance(one, Message) and one.extras and "PriorityProcessing" in one.extras for one in messages):
        if not any(isinstance(one, Message) and one.kind is Kind.CONTROL for one in messages):
            return sorted(messages, key=_salience)
    return messages


def _salience(message: Message | RemoteProtocolError) -> bool:
    given = message.attributes.get("PriorityProcessing") if isinstance(message, Message) else None
    return given is None or float(given) == 0


_REQUEST, _RESPONSE, _PUBLISH, _ITEM = Kind.REQUEST, Kind.RESPONSE, Kind.PUBLISH, Kind.ITEM
_decode: Final = msgspec.json.Decoder().decode
_parts: Final = msgspec.json.Decoder(dict[str, Raw]).decode
_BROKEN: Final = 256 * 1024  # Maximum bytes of a malformed message to search for its reply subject; more takes too long
_ANSWERED: Final = re.compile(rb'"ToSubject"\s*:\s*"([\x20\x21\x23-\x5b\x5d-\x7e]*):(?:RespondTo|Errors):RPC"')


class _Asker(Struct, gc=False):
    ReplyTo: str | None = None
    ErrorTo: str | None = None


_asker: Final = msgspec.json.Decoder(_Asker).decode

_REPLY_LENGTH: Final = len(REPLY_SUFFIX)
_ERRORS_LENGTH: Final = len(ERRORS_SUFFIX)


class _Usual(Struct, gc=False, forbid_unknown_fields=True):
    ToSubject: str
    ReplyTo: str | None = None
    ErrorTo: str | None = None
    Value: Raw = Raw()
    PolybusTtl: int | None = None
    PolybusVerb: str | None = None
    PolybusId: str | None = None
    PolybusFrame: Raw = Raw()


_usual: Final = msgspec.json.Decoder(list[_Usual]).decode


class MessageReader:
    """Reads marked and plain values. `values` configures how marked values are read."""

    def __init__(self, limits: Limits, values: ErraiFormat) -> None:
        self._limits = limits
        self._values = values
        # A reply subject contains the requested subject and an id.
        self._longest = limits.subject + limits.id + len(REPLY_SUFFIX) + 1
        # A body with its markers is inside the array and the message.
        self._depth = values.depth + 2
        self._long = min(LONG, limits.message)
        self._short_frame = min(limits.message, 2 * self._depth)
        # Shorter strings are within their limit at any number of bytes per character.
        self._short = limits.subject // 4

    def read(self, frame: bytes) -> Sequence[Message | RemoteProtocolError]:
        """Return the messages of a payload, with errors in place of malformed ones. Raises an error if nothing is readable."""
        if len(frame) > self._long and len(parts := self.cut(frame)) > 1:
            return self._read_parts(parts)
        try:
            if len(frame) > self._short_frame or not frame.isascii():
                self._check(frame)
            if not self._values.strict:
                try:
                    return [self._message(parts) for parts in _usual(frame)]
                except (ValueError, RemoteProtocolError):
                    pass  # other parts, or malformed
            return self._read_each(frame)
        except RemoteProtocolError as error:
            error.frame = frame[:200]
            raise
        except (ValueError, RecursionError) as error:
            apart = told_apart(frame) if len(frame) <= self._long else None  # otherwise `cut` has tried it
            if apart is not None:
                return [self._read_safely(element, index, self._depth - 1) for index, element in enumerate(apart)]
            refused = refuse_json(error)
            if refused.reason != "too_deep":
                text = frame.strip()  # a long array here has a single element, or it would have been split
                refused.answer_id = _asker_of(text if text[:1] == b"{" else text[1:-1], self._longest)
            if isinstance(error, msgspec.ValidationError):
                refused.reason = "not_array"
            refused.frame = frame[:200]
            refused.reply_id = answered_by(frame) if frame.lstrip()[:1] == b"{" else None
            raise refused from error

    def cut(self, frame: bytes) -> list[bytes]:
        """Split a long payload, even malformed JSON, for separate event-loop iterations. Raises an error above the limit."""
        if len(frame) > self._limits.payload:
            text = f"a payload of {len(frame)} bytes is larger than {self._limits.payload} (limit: payload)"
            raise refuse(text, "too_large", close_code=1009)
        if len(frame) <= self._long:
            return [frame]
        try:
            check_levels(frame, self._depth)  # before the parser, whose recursion would end Python in a browser
            return cut(frame, self._long)
        except ValueError:
            apart = told_apart(frame)
            return [frame] if apart is None else payloads_of(apart, self._long, _MOST_MESSAGES)

    def _read_parts(self, parts: list[bytes]) -> Sequence[Message | RemoteProtocolError]:
        messages: list[Message | RemoteProtocolError] = []
        bad = 0
        for part in parts:
            try:
                read = self.read(part)
            except RemoteProtocolError as error:
                read = [error]
            messages += read
            bad += sum(isinstance(message, RemoteProtocolError) for message in read)
            if bad > self._limits.bad_messages:
                break
        return messages

    def _check(self, frame: bytes) -> None:
        if len(frame) > self._limits.message:  # a single message, or it would have been split
            text = frame.strip()
            message = text if text[:1] == b"{" else text[1:-1]
            if len(message) > self._limits.message:
                raise too_large(message, self._limits.message, self._longest)
        check_json(frame, self._depth)

    # -- the usual -------------------------------------------------------------------------------------------------------

    def _message(self, parts: _Usual) -> Message:
        subject = parts.ToSubject
        if not 0 < len(subject) <= self._short or not subject.isprintable() or subject in CONTROL_SUBJECTS:
            raise refuse("to be looked at")
        if subject[:6] == LOCAL_PREFIX or (parts.PolybusTtl is not None and parts.ReplyTo is None):
            raise refuse("to be looked at")
        if parts.PolybusVerb is not None or parts.PolybusId is not None:
            message = self._usual_item(parts)
            if raw := bytes(parts.PolybusFrame):
                message.raw, message.format = tunnelled(raw)
                return message
        elif (reply := parts.ReplyTo) is not None:
            message = self._usual_request(parts, reply)
        elif subject[-_REPLY_LENGTH:] == REPLY_SUFFIX:
            name, _, id = subject[:-_REPLY_LENGTH].rpartition(":")
            message = Message(_RESPONSE, name, id)
        elif subject[-_ERRORS_LENGTH:] == ERRORS_SUFFIX:
            raise refuse("to be looked at")
        else:
            message = Message(_PUBLISH, subject)
            if parts.ErrorTo is not None:
                message.extras = {"ErrorTo": parts.ErrorTo}
        raw = bytes(parts.Value)
        if raw:
            self._set_body(message, raw)
        return message

    def _usual_request(self, parts: _Usual, reply: str) -> Message:
        error = parts.ErrorTo
        if parts.ToSubject[-4:] == ":RPC":  # perhaps a response that asks for a response
            raise refuse("to be looked at")
        if not 0 < len(reply) <= self._short or (error is not None and not 0 < len(error) <= self._short):
            raise refuse("to be looked at")
        message = Message(_REQUEST, parts.ToSubject, (reply, error))
        message.reply_to = reply
        message.extras = {"ReplyTo": reply} if error is None else {"ReplyTo": reply, "ErrorTo": error}
        ttl = parts.PolybusTtl
        if ttl is not None:
            message.ttl = WIRE_RULES.read_ttl(ttl, "PolybusTtl")
        return message

    def _usual_item(self, parts: _Usual) -> Message:
        id = parts.PolybusId
        if parts.PolybusVerb != "item" or id is None or not 0 < len(id) <= self._limits.id // 4 or parts.ReplyTo is not None:
            raise refuse("to be looked at")
        return Message(_ITEM, parts.ToSubject, id)

    # -- message by message, part by part ------------------------------------------------------------------------------

    def _read_each(self, frame: bytes) -> list[Message | RemoteProtocolError]:
        text = frame.strip()
        if not text:
            return []  # activity, as for the real server (notes section 1.1)
        elements = [Raw(text)] if text[:1] == b"{" else _elements(text)
        return [self._read_safely(bytes(element), index) for index, element in enumerate(elements)]

    def _read_safely(self, raw: bytes, index: int, depth: int | None = None) -> Message | RemoteProtocolError:
        try:
            if depth is not None:
                try:
                    check_json(raw, depth)
                except ValueError as error:
                    raise refuse_json(error) from error
            return self._read_one(raw, index)
        except RemoteProtocolError as error:
            error.frame = raw[:200]
            error.reply_id = answered_by(raw)
            if error.answer_id is None and error.reason != "too_deep":
                error.answer_id = _asker_of(raw, self._longest)
            return error

    def _read_one(self, raw: bytes, index: int) -> Message:
        if raw[:1] != b"{":
            raise refuse(f"element {index} of the payload is not an object", "not_array")
        if len(raw) > self._limits.message:
            raise too_large(raw, self._limits.message, self._longest)
        if self._values.strict:
            _refuse_doubles(raw)
        try:
            parts = _parts(raw)
        except (ValueError, RecursionError) as error:
            raise refuse_json(error, _asker_of(raw, self._longest)) from error
        if len(parts) > names.MAX_PARTS:
            raise refuse(f"a message of {len(parts)} parts: at most {names.MAX_PARTS}", "too_large")
        parts.pop("SessionID", None)  # the connection identifies the session (notes section 1.1)
        return self._build(parts)

    def _build(self, parts: dict[str, Raw]) -> Message:
        texts = self._texts(parts, ("ToSubject", "ReplyTo", "ErrorTo", "CommandType", "PolybusVerb"))
        id = (texts["ReplyTo"], texts["ErrorTo"]) if texts["ReplyTo"] is not None else None
        subject = texts["ToSubject"]
        if subject is None:
            if texts["CommandType"] == "Associate":  # the bare object of a WebSocket negotiation (notes section 2.4)
                return Message(Kind.CONTROL, "", attributes=self._values_of(parts, None))
            raise refuse("no ToSubject", "missing_field", id)
        names.check_subject(subject, self._longest if subject.endswith(":RPC") else self._limits.subject, id)
        frame = parts.pop("PolybusFrame", None)
        values = self._values_of(parts, id)
        if "PriorityProcessing" in values:
            names.check_priority(values["PriorityProcessing"], id)
        if subject in CONTROL_SUBJECTS:
            return Message(Kind.CONTROL, subject, attributes=values)
        message = self._of_kind(subject, texts, values, id)
        for part in ("MethodReply", "MethodParms", "Value"):
            if part in parts:
                self._take_body(message, part, parts, values)
                break
        if frame is not None and message.kind is _ITEM:
            message.raw, message.format = tunnelled(bytes(frame))
        message.attributes.update(
            (name, value) for name, value in values.items() if name != "ToSubject" and not name.startswith("Polybus")
        )
        message.headers = names.read_headers(values.get("PolybusHeaders"), self._limits.headers, id)
        message.ttl = WIRE_RULES.read_ttl(values.get("PolybusTtl"), "PolybusTtl", id)
        return message

    def _texts(self, parts: dict[str, Raw], wanted: tuple[str, ...]) -> dict[str, str | None]:
        found: dict[str, str | None] = dict.fromkeys(wanted)
        for name in wanted:
            raw = parts.get(name)
            if raw is None:
                continue
            try:
                value = _decode(raw)
            except (ValueError, RecursionError) as error:
                raise refuse_json(error) from error
            if name == "ToSubject" and value is not None and type(value) is not str:
                raise refuse(f"ToSubject must be a string, not {type(value).__name__}", "invalid_subject")
            found[name] = names.text_of({name: value}, name, self._longest) or None
        return found

    def _values_of(self, parts: dict[str, Raw], id: Any) -> dict[str, Any]:
        """Convert all parts. Marked objects in the parts share one id space (notes section 1.4)."""
        reading, depth = self._values.reading(), self._values.depth
        try:
            return {name: reading.read(_decode(raw), depth) for name, raw in parts.items()}
        except (ValueError, RecursionError, BadRequest) as error:
            raise refuse_json(error, id) from error

    def _take_body(self, message: Message, part: str, parts: dict[str, Raw], values: dict[str, Any]) -> None:
        raw = bytes(parts[part])
        value = values.pop(part)
        if any(name != part and b"^ObjectID" in bytes(other) for name, other in parts.items()):
            message.decoded = value  # it may share ids with other parts, so it must be encoded again
        else:
            self._set_body(message, raw)
            message.decoded = value

    def _of_kind(self, subject: str, texts: dict[str, str | None], values: dict[str, Any], id: Any) -> Message:
        verb = texts["PolybusVerb"]
        if verb is not None:
            return self._extension(verb, subject, values, id)
        if subject.endswith(REPLY_SUFFIX):
            name, _, key = subject.removesuffix(REPLY_SUFFIX).rpartition(":")
            return Message(_RESPONSE, name, key)
        if subject.endswith(ERRORS_SUFFIX):
            name, _, key = subject.removesuffix(ERRORS_SUFFIX).rpartition(":")
            return failure_of(Kind.ERROR, name, key, values, self._values.types)
        command = texts["CommandType"]
        if command is not None and subject.endswith(":RPC"):
            subject = f"{subject}{names.RPC_MARK[4:]}{command}"
            names.check_subject(subject, self._limits.subject, id)
        message = Message(_PUBLISH if id is None else _REQUEST, subject, id)
        message.reply_to = texts["ReplyTo"]
        return message

    def _extension(self, verb: str, subject: str, values: dict[str, Any], id: Any) -> Message:
        if verb == "notify":
            return Message(Kind.NOTIFY, subject)
        if verb == "cancel":
            return Message(Kind.CANCEL, subject, id)
        key = names.text_of(values, "PolybusId", self._limits.id)
        if not key or len(key.encode()) > self._limits.id:
            raise refuse(f"PolybusId must have 1 to {self._limits.id} bytes (limit: id)", "invalid_id")
        if verb == "item":
            return Message(_ITEM, subject, key)
        if verb == "credit":
            amount = WIRE_RULES.read_count(values.get("PolybusN"), "PolybusN", reason="invalid_part", least=1)
            return Message(Kind.CREDIT, subject, key, attributes={"credit": amount})
        if verb == "end":
            code = values.get("PolybusCode")
            if code is None or code == Code.OK:
                return Message(Kind.END, subject, key)
            return failure_of(Kind.END, subject, key, values, self._values.types)
        if verb == "open":
            return self._open(subject, key, values)
        raise refuse(f"the verb {verb[:40]!r} is not known", "unknown_type")

    def _open(self, subject: str, key: str, values: dict[str, Any]) -> Message:
        mode, credit, hops = values.get("PolybusMode"), values.get("PolybusN", 0), values.get("PolybusHops", 0)
        facts = WIRE_RULES.read_opening(mode, credit, hops, reason="invalid_part")
        return Message(Kind.OPEN, subject, key, attributes=facts)

    def _set_body(self, message: Message, raw: bytes) -> None:
        try:
            node = _decode(raw)
            kind = type(node)
            if kind is not dict and kind is not list:
                message.decoded, message.raw, message.format = node, raw, self._values
                message.checked = raw
            elif kind is dict and "^EncodedType" in node:
                message.decoded = self._values.reading().read(node, self._values.depth)
                message.raw, message.format, message.checked = raw, self._values, raw
            elif b"EncodedType" in raw or b"\\u" in raw:  # inner markers may need outer ones when written again
                message.decoded = self._values.reading().read(node, self._values.depth)
            else:
                check_levels(raw, self._limits.depth)
                message.decoded, message.raw, message.format = node, raw, JSON
                message.checked = raw
        except (ValueError, RecursionError, BadRequest) as error:
            raise refuse_json(error, message.id if message.kind is _REQUEST else None) from error


# -- errors: a received Throwable gives the reason -------------------------------------------------------------------------

_EXPLAINED: Final = 1000
_CAUSES: Final = 16  # Maximum depth of causes, which may be circular


def failure_of(kind: Kind, subject: str, key: Any, values: dict[str, Any], types: JavaTypes) -> Message:
    """Create an error or a failed end. Without a polybus code, the code is UNKNOWN with facts from the Throwable."""
    number = values.get("PolybusCode")
    if type(number) is int and 1 <= number <= 16:
        code, facts = Code(number), _told(values)
    else:
        code, facts = Code.UNKNOWN, _thrown(values, types)
    return Message(kind, subject, key, code=code, attributes=facts)


def _told(values: dict[str, Any]) -> dict[str, Any]:
    text = values.get("ErrorMessage")
    text = text if type(text) is str else _message_of(values.get("Throwable"))
    return error_facts(text, values.get("PolybusReason"), _detail(values.get("PolybusDetail")))


def _thrown(values: dict[str, Any], types: JavaTypes) -> dict[str, Any]:
    """Return facts from a Throwable, because Errai uses the same ErrorMessage for all failures."""
    said, throwable, explained = values.get("ErrorMessage"), values.get("Throwable"), values.get("AdditionalDetails")
    said = said if type(said) is str else ""
    found = _described(throwable, types, _CAUSES)
    facts: dict[str, Any] = {"text": found.get("message") or said, "reason": found.pop("class", None), "detail": None}
    detail = {**found, "ErrorMessage": said, "AdditionalDetails": explained if type(explained) is str else ""}
    if found or explained:
        facts["detail"] = {name: value for name, value in detail.items() if value != ""}
    return facts


def _described(throwable: Any, types: JavaTypes, causes: int) -> dict[str, Any]:
    fields, name = _fields_of(throwable, types)
    if fields is None:
        return {}
    cause = _described(fields.get("cause"), types, causes - 1) if causes else {}
    own = {field: value for field, value in fields.items() if field not in ("message", "cause", "stackTrace")}
    described: dict[str, Any] = {"message": _message_of(fields), "cause": cause or None, "fields": own}
    return {"class": name, **described} if name is not None else described


def _fields_of(throwable: Any, types: JavaTypes) -> tuple[Mapping[str, Any] | None, str | None]:
    if isinstance(throwable, JavaObject):
        return throwable, throwable.type
    if isinstance(throwable, dict):
        return throwable, None
    known = types.of_class(type(throwable))
    if not isinstance(known, Portable):
        return None, None
    return {java: getattr(throwable, ours) for ours, java, _ in known.fields}, known.java


def _message_of(throwable: Any) -> str | None:
    found = throwable.get("message") if isinstance(throwable, Mapping) else None
    return found[:_EXPLAINED] if isinstance(found, str) else None


def _detail(text: Any) -> Any:
    if type(text) is not str:
        return None
    try:
        return msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return None


def answered_by(raw: bytes) -> str | None:
    """Return the local id that an unreadable message answers, without parsing the message."""
    found = _ANSWERED.search(raw)
    return None if found is None else found[1].decode().rpartition(":")[2]


def _asker_of(raw: bytes, limit: int) -> tuple[str, str | None] | None:
    reply, error = _names_in(raw)
    fit = [name for name in (reply, error) if type(name) is str and name and fault_in_subject(name, limit) is None]
    return (reply, error) if fit == [reply, error] else (reply, None) if fit == [reply] and error is None else None


def _names_in(raw: bytes) -> tuple[Any, Any]:
    """Return ReplyTo and ErrorTo, even if only Python accepts the JSON (NaN, half a surrogate pair)."""
    try:
        asker = _asker(raw)
        return asker.ReplyTo, asker.ErrorTo
    except msgspec.ValidationError:
        return None, None
    except (ValueError, RecursionError):
        pass
    try:
        parts = json.loads(raw, strict=False) if len(raw) <= _BROKEN else None
    except (ValueError, RecursionError):
        parts = None
    return (parts.get("ReplyTo"), parts.get("ErrorTo")) if type(parts) is dict else (None, None)


def too_large(message: bytes, limit: int, longest: int) -> RemoteProtocolError:
    """Return the error for one message that exceeds the limit. The rest of the payload is still read."""
    text = f"a message of {len(message)} bytes: the limit is {limit} (limit: message)"
    error = refuse(text, "too_large", _asker_of(message, longest))
    error.reply_id = answered_by(message)
    return error


def _refuse_doubles(raw: bytes) -> None:

    def once(pairs: list[tuple[str, Any]]) -> None:
        seen = set[str]()
        for name, _ in pairs:
            if name in seen:
                raise refuse(f"two members {name[:60]!r} in one object", "ambiguous")
            seen.add(name)

    try:
        json.loads(raw, object_pairs_hook=once)
    except (ValueError, RecursionError) as error:
        if isinstance(error, BusError):
            raise
        raise refuse_json(error) from error


def tunnelled(raw: bytes) -> tuple[bytes, BodyFormat]:
    if raw[:1] != b'"':
        return raw, JSON
    try:
        return binascii.a2b_base64(raw[1:-1], strict_mode=True), OCTETS
    except ValueError as error:
        raise refuse(f"PolybusFrame is not base64: {error}", "bad_encoding") from error
