"""Writes messages as JSON objects by joining bytes, and groups them into payloads.

An error contains ErrorMessage, AdditionalDetails and Throwable for any peer, and code, reason and detail for polybus peers. The
Throwable is a RuntimeException, because every Errai client knows this class. It has no stack trace and reveals no more than an
error in other protocols.
"""

from __future__ import annotations

import binascii
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final

from attrs import frozen

from ...body import JSON, OCTETS, BodyFormat
from ...errors import Code, LocalProtocolError, Unsupported
from ...limits import Limits
from ...message import RELAYED, Kind, Message
from .._shared import milliseconds, opening_facts
from . import names
from .formats import ErraiFormat, Parts, PartsFormat, encoder_of
from .java import Numbering, json_text, quoted, throwable
from .names import ERRORS_SUFFIX, LOCAL_PREFIX, REPLY_SUFFIX, RPC_MARK, WIRE_RULES


def failure_parts(message: Message, marked: bool) -> bytes:
    """Write the parts of an error or a failed end, each preceded by a comma."""
    code = Code.UNKNOWN if message.code is None else message.code
    facts = message.attributes
    text, reason, detail = str(facts.get("text") or ""), facts.get("reason"), facts.get("detail")
    written = [b',"ErrorMessage":%b' % quoted(text)]
    if message.kind is Kind.ERROR:
        explained = f"{code.name} ({reason})" if reason else code.name
        written.append(b',"AdditionalDetails":%b' % quoted(explained))
        thrown = throwable(text or code.name, Numbering()) if marked else json_text({"message": text or code.name})
        written.append(b',"Throwable":%b' % thrown)
    written.append(b',"PolybusCode":%d' % code)
    if reason is not None:
        written.append(b',"PolybusReason":%b' % quoted(str(reason)))
    if detail is not None:
        written.append(b',"PolybusDetail":%b' % quoted(JSON.encode(detail).decode()))
    return b"".join(written)


_JSON_ONLY: Final = (JSON,)
_NO_PARTS: Final = names.PROTOCOL_PARTS | {RELAYED}

_REQUEST, _RESPONSE, _PUBLISH, _ITEM = Kind.REQUEST, Kind.RESPONSE, Kind.PUBLISH, Kind.ITEM


@frozen
class SubjectParts:
    to: bytes  # ``{"ToSubject":...``, of a remote procedure with its CommandType
    reply: bytes
    errors: bytes
    body: bytes


class MessageWriter:
    def __init__(self, limits: Limits, values: BodyFormat, parts: PartsFormat) -> None:
        self._limits = limits
        self._values = values
        self._parts = parts
        self._formats: tuple[BodyFormat, ...] = (values, parts)
        self._names = lru_cache(1024)(lambda subject: _address_of(subject, limits.subject))
        self._rare: dict[Kind, Callable[[Message, Any, str], bytes]] = {
            Kind.NOTIFY: self._notify,
            Kind.ERROR: self._error,
            Kind.SUBSCRIBE: self._subscription,
            Kind.UNSUBSCRIBE: self._subscription,
            Kind.CANCEL: self._cancel,
            Kind.OPEN: self._open,
            Kind.CREDIT: self._credit,
            Kind.END: self._end,
            Kind.CONTROL: lambda message, id, bus: self.command(str(message.subject) or bus, message.attributes),
        }

    def write(self, message: Message, id: Any, bus: str = names.SERVER_BUS, ours: bool = True) -> bytes:
        """Write a message, or nothing for a local publication. The `id` of an answer is its destination, (ReplyTo, ErrorTo)."""
        kind = message.kind
        if kind is _REQUEST:
            return self._request(message, id, ours)
        if kind is _RESPONSE:
            return self._response(message, id)
        if kind is _PUBLISH or (kind is Kind.NOTIFY and not ours):
            if type(message.subject) is str and message.subject[:6] == LOCAL_PREFIX:
                return b""
            return self._with_body(self._names(message.subject), message, b"")
        if kind is _ITEM:
            return self._item(message, id)
        write = self._rare.get(kind)
        if write is None:
            raise Unsupported(f"J.REP cannot carry a {kind.value} message")
        return write(message, id, bus)

    # -- the usual -------------------------------------------------------------------------------------------------------

    def _addressed(self, message: Message, id: Any) -> tuple[SubjectParts, bytes]:
        """Write the subject and reply subjects of a request. The id of a received request already contains them."""
        address = self._names(message.subject)
        if type(id) is str:
            key = quoted(id)[1:-1]
            return address, b'%b%b%b%b:Errors:RPC"' % (address.reply, key, address.errors, key)
        if type(id) is not tuple or type(id[0]) is not str:
            raise LocalProtocolError(f"the id of a request must be a string, not {type(id).__name__}", protocol="jrep")
        error_to = b"" if id[1] is None else b',"ErrorTo":' + quoted(id[1])
        return address, b'%b,"ReplyTo":%b%b' % (address.to, quoted(id[0]), error_to)

    def _request(self, message: Message, id: Any, ours: bool) -> bytes:
        address, start = self._addressed(message, id)
        ttl = message.ttl
        tail = b"}"
        if ours and ttl is not None:
            tail = b',"PolybusTtl":%d}' % (ttl * 1000 + 0.5 if 0.0 <= ttl < 1e12 else milliseconds(ttl))
        if message.headers:
            tail = self._headers(message) + tail
        return b"".join((start, self._body(message, address.body), tail))

    def _answer_to(self, message: Message, id: Any, which: int) -> bytes:
        """Write the destination of an answer: the caller's subject, or the subject in the id of a received answer."""
        if type(id) is str:
            return _addressed(f"{message.subject}:{id}{(REPLY_SUFFIX, ERRORS_SUFFIX)[which]}")
        if type(id) is not tuple:
            raise LocalProtocolError(f"an answer must go to (ReplyTo, ErrorTo), not to {type(id).__name__}", protocol="jrep")
        return _addressed(id[which] if id[which] is not None else names.CLIENT_BUS_ERRORS)

    def _response(self, message: Message, id: Any) -> bytes:
        subject = message.subject
        name = b',"MethodReply":' if type(subject) is str and RPC_MARK in subject else b',"Value":'
        tail = self._headers(message) + b"}" if message.headers else b"}"
        return b"".join((self._answer_to(message, id, 0), self._body(message, name), tail))

    def _with_body(self, address: SubjectParts, message: Message, verb: bytes) -> bytes:
        tail = self._headers(message) if message.headers else b""
        body = self._body(message, address.body)
        if message.extras:
            tail = self._attributes(message, body) + tail
        return b"".join((address.to, body, verb, tail, b"}"))

    def _notify(self, message: Message, id: Any, bus: str) -> bytes:
        return self._with_body(self._names(message.subject), message, b',"PolybusVerb":"notify"')

    def _item(self, message: Message, id: Any) -> bytes:
        address, raw = self._names(message.subject), message.raw
        if raw is not None and message.format is JSON and (self._marked or b"EncodedType" in raw or b"\\u" in raw):
            message.encoded(_JSON_ONLY)  # unchanged, with no markers read or added
            body = b',"PolybusFrame":' + raw
        elif raw is not None and message.format is OCTETS:
            body = b',"PolybusFrame":"%b"' % binascii.b2a_base64(raw, newline=False)
        else:
            body = self._body(message, b',"Value":')
        return b"".join((address.to, b',"PolybusVerb":"item","PolybusId":', quoted(id), body, b"}"))

    # -- parts -----------------------------------------------------------------------------------------------------------

    def _body(self, message: Message, name: bytes) -> bytes:
        raw = message.raw
        if raw is None or raw is not message.checked or message.format is not self._values:
            if not message.has_body:
                return b""
            raw = message.encoded(self._formats, self._choose)
            assert raw is not None
            if message.format is self._parts:
                return b"" if raw == b"{}" else b"," + raw[1:-1]
        return name + raw

    def _choose(self, value: Any) -> BodyFormat:
        return self._parts if type(value) is Parts else self._values

    def _headers(self, message: Message) -> bytes:
        WIRE_RULES.check_local_headers(message.headers, self._limits.headers)
        return b',"PolybusHeaders":' + quoted(json_text(message.headers).decode())

    def _attributes(self, message: Message, body: bytes) -> bytes:
        own = {name: value for name, value in message.attributes.items() if name not in _NO_PARTS and value is not None}
        encode = encoder_of(self._values, body)
        return b"".join([b",%b:%b" % (quoted(name), encode(value)) for name, value in own.items()])

    # -- management and errors -------------------------------------------------------------------------------------------

    def command(self, bus: str, parts: Any) -> bytes:
        """Write a command to the peer's bus. Its parts are strings or lists of strings."""
        written, encode = [b'{"ToSubject":' + quoted(bus)], encoder_of(self._values)
        for name, value in parts.items():
            if name != "ToSubject":
                text = encode(value) if isinstance(value, (list, set, tuple)) else json_text(value)
                written.append(b"%b:%b" % (quoted(name), text))
        return b",".join(written) + b"}"

    def _subscription(self, message: Message, id: Any, bus: str) -> bytes:
        command = "RemoteSubscribe" if message.kind is Kind.SUBSCRIBE else "RemoteUnsubscribe"
        subject = names.service_of(names.check_local_subject(message.subject, self._limits.subject))
        return self.command(bus, {"CommandType": command, "Subject": subject, "PriorityProcessing": "1"})

    def _error(self, message: Message, id: Any, bus: str) -> bytes:
        return b"".join((self._answer_to(message, id, 1), failure_parts(message, self._marked), b"}"))

    @property
    def _marked(self) -> bool:
        return isinstance(self._values, ErraiFormat)

    # -- extensions ------------------------------------------------------------------------------------------------------

    def _cancel(self, message: Message, id: Any, bus: str) -> bytes:
        return self._addressed(message, id)[1] + b',"PolybusVerb":"cancel"}'

    def _extension(self, message: Message, verb: str, id: Any) -> bytes:
        return b'%b,"PolybusVerb":"%b","PolybusId":%b' % (self._names(message.subject).to, verb.encode(), quoted(id))

    def _open(self, message: Message, id: Any, bus: str) -> bytes:
        mode, credit, hops = opening_facts(message)
        start = self._extension(message, "open", id)
        facts = b',"PolybusMode":%b,"PolybusN":%d,"PolybusHops":%d' % (quoted(mode), credit, hops)
        ttl = b"" if message.ttl is None else b',"PolybusTtl":%d' % milliseconds(message.ttl)
        headers = self._headers(message) if message.headers else b""
        return b"".join((start, facts, ttl, headers, self._body(message, b',"Value":'), b"}"))

    def _credit(self, message: Message, id: Any, bus: str) -> bytes:
        return b'%b,"PolybusN":%d}' % (self._extension(message, "credit", id), message.attributes.get("credit", 0))

    def _end(self, message: Message, id: Any, bus: str) -> bytes:
        failed = failure_parts(message, self._marked) if message.code else b""  # None and OK are a clean end
        return b"%b%b}" % (self._extension(message, "end", id), failed)


def _address_of(subject: Any, limit: int) -> SubjectParts:
    name = quoted(names.check_local_subject(subject, limit))
    service = names.service_of(subject)
    if service == subject:
        to = b'{"ToSubject":' + name
    else:
        method = subject[len(service) + 1 :]
        to = b'{"ToSubject":%b,"CommandType":%b' % (quoted(service), quoted(method))
    body = b',"MethodParms":' if service != subject else b',"Value":'
    return SubjectParts(to, b'%b,"ReplyTo":%b:' % (to, name[:-1]), b':RespondTo:RPC","ErrorTo":%b:' % name[:-1], body)


def _addressed(subject: str) -> bytes:
    return b'{"ToSubject":' + quoted(subject)


def joined(documents: Sequence[bytes]) -> bytes:
    return b"[%b]" % b",".join(documents)


def payloads_of(documents: Sequence[bytes], limit: int, most: int) -> list[bytes]:
    """Group documents into as few payloads as possible, with at most `limit` bytes and `most` messages per payload."""
    payloads: list[list[bytes]] = []
    size = 0
    for document in documents:
        if not payloads or size + len(document) + 1 > limit or len(payloads[-1]) >= most:
            payloads.append([])
            size = 2
        payloads[-1].append(document)
        size += len(document) + 1
    return [joined(payload) for payload in payloads]
