"""Converts between operations and messages, without a connection.

Only the session knows which subscription a message belongs to. This module treats a message with a reply subject as a request,
and a message to an inbox as an answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal

import msgspec
from attrs import field, frozen

from ...body import JSON, OCTETS, BodyFormat, check_json
from ...errors import BusError, Code, LocalProtocolError, RemoteProtocolError, Unsupported
from ...limits import Limits
from ...message import Kind, Message
from .._shared import Memo, milliseconds
from .cluster.subjects import node_word
from .headers import BODY, TTL, HeaderBlock, error_fields, error_message, is_failure, write_block
from .operations import NatsOperation, OperationReader, fault_in_name, local_subject, write_publication

_decode: Final = msgspec.json.Decoder().decode
_DEADLINES: Final = 64
INBOX: Final = "_INBOX."
LEFT_OUT: Final = "left_out"  # Attribute of a message with unreadable headers: the reason they were left out
HAVE_IT: Final = 102  # Status of a cluster node's receipt for a request
_ANSWERS: Final = "a"  # Subject token for answers to a node of a cluster
_OPENS: Final = "open "
_CHANNELS: Final = {"item": Kind.ITEM, "credit": Kind.CREDIT, "end": Kind.END}
_BINARY: Final[frozenset[Literal["text", "binary"]]] = frozenset(("binary",))
_JSON_BEGINS: Final = frozenset(b'{["-0123456789tfn \t\r\n')


def _deadline_block(ttl: float) -> bytes:
    return b"NATS/1.0\r\n%b: %d\r\n\r\n" % (TTL.encode(), milliseconds(ttl))


@frozen(eq=False, kw_only=True)
class NatsCodec:
    """Codec with one operation per frame. `encode` writes only messages, because subscriptions belong to a session."""

    limits: Limits
    queue: str
    reader: OperationReader = field(init=False)
    formats: tuple[BodyFormat, ...] = (JSON, OCTETS)
    reads: frozenset[Literal["text", "binary"]] = _BINARY
    writes: Literal["text", "binary"] = "binary"
    deadlines: Memo[float, bytes] = field(factory=lambda: Memo(_deadline_block, _DEADLINES), init=False)
    """Header blocks by timeout in seconds. Most programs use the same few timeouts."""

    subjects: Memo[str | int, str] = field(init=False)
    """Checked subjects for `write_named`. Raises `LocalProtocolError` or `Unsupported` for others."""
    _shallow: int = field(init=False)
    """Size in bytes up to which JSON cannot be nested too deeply."""

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "reader", OperationReader(self.limits))
        object.__setattr__(self, "_shallow", 2 * self.limits.depth)
        object.__setattr__(self, "subjects", Memo(lambda name: local_subject(name, self.limits.subject)))

    def format_for(self, value: Any, subject: str | int) -> BodyFormat:
        return OCTETS if isinstance(value, (bytes, bytearray, memoryview)) else JSON

    # -- reading ---------------------------------------------------------------------------------------------------------

    def decode(self, frame: bytes) -> Sequence[Message | RemoteProtocolError]:
        operation = self.reader.read(frame)
        if operation.verb in ("MSG", "HMSG", "PUB", "HPUB"):
            return [self._delivered(operation)]
        facts: dict[str, Any] = {}
        if operation.sid:
            facts["sid"] = operation.sid
        if operation.verb == "SUB":
            if operation.queue is not None:
                facts |= {"handler": True, "queue": operation.queue}
            return [Message(Kind.SUBSCRIBE, operation.subject, attributes=facts)]
        if operation.verb == "UNSUB":
            if operation.most is not None:
                facts["most"] = operation.most
            return [Message(Kind.UNSUBSCRIBE, attributes=facts)]
        if operation.verb == "ERR":
            facts["text"] = operation.text
        told = Message(Kind.CONTROL, operation.verb, attributes=facts)
        if operation.info is not None:
            told.decoded = operation.info
        return [told]

    def _delivered(self, operation: NatsOperation) -> Message:
        headers, payload = operation.headers, operation.payload
        if operation.subject.startswith(INBOX) or (operation.reply is None and node_word(operation.subject) == _ANSWERS):
            return self._answer(operation.subject, headers, payload)
        kind = Kind.PUBLISH if operation.reply is None else Kind.REQUEST
        if headers is not None and headers.kind is not None and headers.kind.startswith(_OPENS) and kind is Kind.REQUEST:
            kind = Kind.OPEN
        message = self.message(kind, operation.subject, operation.reply, headers, payload, operation.reply)
        if operation.sid:
            message.attributes["sid"] = operation.sid
        return message

    def _answer(self, subject: str, headers: HeaderBlock | None, payload: bytes) -> Message:
        """Read an answer. In a cluster, it may also be a receipt or an item, credit or end of a channel."""
        if headers is None:
            return self.message(Kind.RESPONSE, "", subject, None, payload)
        if headers.status == HAVE_IT and headers.error is None:
            return Message(Kind.CONTROL, subject, attributes={"taken": headers.text})
        word = _CHANNELS.get((headers.kind or "").partition(" ")[0])
        if word is Kind.CREDIT:
            return Message(word, "", subject)
        if is_failure(headers):
            message = error_message(subject, headers, payload)
            message.kind = Kind.END if word is Kind.END else Kind.ERROR
            return message
        return self.message(word or Kind.RESPONSE, "", subject, headers, payload)

    def message(
        self,
        kind: Kind,
        subject: str | int,
        id: Any,
        headers: HeaderBlock | None,
        payload: bytes,
        reply_to: str | None = None,
        peer: Any = None,
    ) -> Message:
        """Create an incoming message. If the payload parses as JSON, the body is JSON, otherwise bytes."""
        ttl = fields = facts = None
        octets = False
        if headers is not None:
            ttl, octets = headers.ttl, headers.octets
            if headers.fields is not None:
                fields = dict(headers.fields)
            if headers.left_out:
                facts = {LEFT_OUT: headers.left_out}
        if not payload:
            raw = payload if octets else None
            return Message(kind, subject, id, raw, OCTETS, fields, ttl, None, reply_to, facts, peer)
        if not octets and payload[0] in _JSON_BEGINS:
            try:
                if len(payload) > self._shallow:
                    check_json(payload, self.limits.depth)
                value = _decode(payload)
            except (ValueError, RecursionError, BusError):  # msgspec's errors are ValueErrors
                pass
            else:
                found = Message(kind, subject, id, payload, JSON, fields, ttl, None, reply_to, facts, peer, value)
                found.checked = payload
                return found
        return Message(kind, subject, id, payload, OCTETS, fields, ttl, None, reply_to, facts, peer)

    # -- writing ---------------------------------------------------------------------------------------------------------

    def encode(self, messages: Sequence[Message]) -> bytes:
        if len(messages) != 1:
            raise Unsupported(f"a NATS operation carries one message, not {len(messages)}")
        (message,) = messages
        if message.kind is Kind.REQUEST:
            return self.request(message, self._inbox(message.id))
        if message.kind in (Kind.RESPONSE, Kind.ERROR):
            return self.answer(message, self._inbox(message.id))
        return self.publication(message)

    def publication(self, message: Message, mark: Sequence[tuple[str, str]] = ()) -> bytes:
        if message.kind not in (Kind.PUBLISH, Kind.NOTIFY):
            text = "streams, channels and cancelling need a polybus protocol"
            raise Unsupported(f"NATS carries publications, requests and answers, not {message.kind.value}: {text}")
        payload, own = self.payload(message)
        own += mark
        block = write_block(message.headers, own, self.limits.headers) if own or message.headers else b""
        return write_publication(self.subjects[message.subject], None, block, payload)

    def request(self, message: Message, inbox: str, *, headers: bool = True) -> bytes:
        subject = self.subjects[message.subject]
        payload, own = self.payload(message)
        if not headers:
            own = []
        elif message.ttl is not None:
            if not own and not message.headers:
                return write_publication(subject, inbox, self.deadlines[message.ttl], payload)
            own.append((TTL, str(milliseconds(message.ttl))))
        block = write_block(message.headers, own, self.limits.headers) if own or message.headers else b""
        return write_publication(subject, inbox, block, payload)

    def answer(self, message: Message, inbox: str, mark: Sequence[tuple[str, str]] = ()) -> bytes:
        if message.kind is Kind.RESPONSE:
            payload, own = self.payload(message)
        else:
            payload, own = failure(message)
        own += mark
        block = write_block(message.headers, own, self.limits.headers) if own or message.headers else b""
        return write_publication(inbox, None, block, payload)

    def payload(self, message: Message) -> tuple[bytes, list[tuple[str, str]]]:
        raw = message.raw
        if raw is not None and raw is message.checked and message.format is JSON:
            return raw, []
        raw = message.encoded(self.formats, lambda value: self.format_for(value, ""))
        if raw is None:
            return b"", []
        if raw and raw[0] not in _JSON_BEGINS:
            return raw, []
        format = message.format if message.format in self.formats else self.format_for(message.body, "")
        return raw, [(BODY, "bytes")] if format is OCTETS else []

    def _inbox(self, id: Any) -> str:
        if (fault := fault_in_name(id, self.limits.subject)) is not None:
            raise LocalProtocolError(f"the id of a request is the subject of its answers: {fault}", protocol="nats")
        return str(id)


def failure(message: Message) -> tuple[bytes, list[tuple[str, str]]]:
    code = Code.UNKNOWN if message.code is None or message.code is Code.OK else message.code
    said = message.attributes
    reason, detail = said.get("reason"), said.get("detail")
    fields = error_fields(int(code), str(said.get("text") or ""), None if reason is None else str(reason))
    return b"" if detail is None else JSON.encode(detail), fields
