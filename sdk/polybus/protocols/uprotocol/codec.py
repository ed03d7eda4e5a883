"""A codec: a reader and a writer of events. The options of the protocol choose which."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, Protocol

from attrs import field, frozen

from ...body import OCTETS, BodyFormat
from ...errors import LocalProtocolError, RemoteProtocolError, Unsupported
from ...message import Kind, Message
from .bodies import ANY
from .envelope import ReturnAddress
from .events import EventMessage
from .extensions import BY_KIND, extension_attributes
from .headers import write_headers
from .rules import PRIORITIES, TYPES, Facts, violations
from .status import write_status

__all__ = ["FORMATS", "UProtocolCodec", "Writer", "error_body", "written_body"]

FORMATS: Final[tuple[BodyFormat, ...]] = (ANY, OCTETS)
_TYPES: Final = {
    Kind.PUBLISH: "pub.v1",
    Kind.NOTIFY: "pub.v1",
    Kind.REQUEST: "req.v1",
    Kind.RESPONSE: "res.v1",
    Kind.ERROR: "res.v1",
}
_HEAD: Final = ("specversion", "type", "source", "sink", "priority", "id", "ttl", "reqid", "datacontenttype")
_NOT_WRITTEN: Final = frozenset((*_HEAD, "text", "reason", "detail", "mode", "credit", "hops", "undelivered"))
_LEVELS: Final = {name: level for level, name in enumerate(PRIORITIES)}
_USUAL_LEVEL: Final = {Kind.PUBLISH: 1, Kind.NOTIFY: 1}
_CONTROL_LEVEL: Final = 4


class Writer(Protocol):
    """What writes one format."""

    @property
    def head(self) -> Callable[[str, str, str | None, str | None], bytes]: ...

    def write(
        self,
        head: bytes,
        id: str,
        ttl: int | None,
        reqid: str | None,
        extra: Mapping[str, Any] | None,
        raw: bytes | None,
        format: BodyFormat,
    ) -> bytes: ...

    def batch(self, frames: Sequence[bytes]) -> bytes: ...


@frozen(eq=False, kw_only=True)
class UProtocolCodec:
    """Events to messages and back. Of what is read, `Message.attributes` has all attributes, and the subject is an address.

    Attributes:
        read: The message of a frame. Raises `RemoteProtocolError`, nothing else.
        read_batch: The messages of a batch.
        writer: Makes events.
        reads: Kinds of frames that are read.
        writes: The kind of frames that are written.
        local: Entities without authority that may be written; None for all.
        headers_limit: `Limits.headers`.
        schema: ``dataschema`` of bytes.
        level_of: The priority of a subject, where one was set for it.
    """

    read: Callable[[bytes], EventMessage]
    read_batch: Callable[[bytes], Sequence[EventMessage | RemoteProtocolError]]
    writer: Writer
    reads: frozenset[Literal["text", "binary"]]
    writes: Literal["text", "binary"]
    local: frozenset[str] | None = frozenset()
    headers_limit: int = 16 * 1024
    schema: str = ""
    level_of: Callable[[str | int], str | None] = field(default=lambda subject: None)
    formats: tuple[BodyFormat, ...] = FORMATS

    def format_for(self, value: Any, subject: str | int) -> BodyFormat:
        """Bytes go as they are, everything else in a ``google.protobuf.Any``."""
        return ANY if type(value) is dict or not isinstance(value, (bytes, bytearray, memoryview)) else OCTETS

    def urgency(self, message: Message) -> int:
        """How urgent a message is, where some must wait: 0 (CS0) to 6 (CS6)."""
        name = message.attributes.get("priority") or self.level_of(message.subject)
        if name is None and isinstance(message.id, ReturnAddress):  # an answer, as urgent as its question
            name = message.id.event.priority
        return _LEVELS.get(str(name), _USUAL_LEVEL.get(message.kind, _CONTROL_LEVEL))

    def decode(self, frame: bytes) -> Sequence[Message | RemoteProtocolError]:
        """The message of an event, or those of a JSON batch.

        Raises:
            RemoteProtocolError: It is none, or a bad one.
        """
        if self.writes == "text" and frame[:1] == b"[":
            return self.read_batch(frame)
        return [self.read(frame)]

    def encode(self, messages: Sequence[Message]) -> bytes:
        """The event of one message, or a batch of several. Ids, source and sink stand in `Message.attributes`.

        Raises:
            EncodeError: A body does not fit the wire.
            LocalProtocolError: An attribute is missing or breaks a rule of the document.
            Unsupported: The wire has no form for this kind of message.
        """
        frames = [self._encode(message) for message in messages]
        return frames[0] if len(frames) == 1 else self.writer.batch(frames)

    def _encode(self, message: Message) -> bytes:
        attributes, raw, format = self.parts(message)
        self.check(attributes, raw is not None, format is ANY)
        return self.event(attributes, raw, format)

    def event(self, attributes: Mapping[str, Any], raw: bytes | None, format: BodyFormat) -> bytes:
        """The event of attributes and data that were checked."""
        head = self.writer.head(attributes["type"], attributes["source"], attributes.get("sink"), attributes.get("priority"))
        rest = {name: value for name, value in attributes.items() if name not in _HEAD}
        return self.writer.write(
            head, attributes["id"], attributes.get("ttl"), attributes.get("reqid"), rest or None, raw, format
        )

    def parts(self, message: Message) -> tuple[dict[str, Any], bytes | None, BodyFormat]:
        """All attributes, and the data; not checked.

        Raises:
            EncodeError, LocalProtocolError, Unsupported: As `encode`.
        """
        kind, given = message.kind, message.attributes
        attributes: dict[str, Any] = {"specversion": "1.0"}
        data: bytes | None = None
        if kind in BY_KIND:
            more, data = extension_attributes(message)
            attributes.update(more)
        elif kind in _TYPES:
            attributes["type"] = given.get("type", _TYPES[kind])
        else:
            raise Unsupported(f"uProtocol has no form for a {kind.value} message")
        attributes.update((name, given[name]) for name in _HEAD if name in given and name not in ("type", "datacontenttype"))
        attributes.update((name, value) for name, value in given.items() if name not in _NOT_WRITTEN)
        if kind in (Kind.RESPONSE, Kind.ERROR):
            attributes.setdefault("reqid", message.id)
        elif kind in (Kind.REQUEST, Kind.OPEN) and isinstance(message.id, str):
            attributes.setdefault("id", message.id)
        if message.headers:
            attributes.update(write_headers(message.headers, self.headers_limit))
        if kind is Kind.ERROR:
            data = error_body(message)
        raw, format = (data, ANY) if data is not None else written_body(message)
        return attributes, raw, format

    def check(self, attributes: dict[str, Any], has_data: bool, is_any: bool) -> None:
        """What is written keeps all rules of the document.

        Raises:
            LocalProtocolError: It does not.
        """
        name = attributes.get("type", "")
        kind = TYPES.get(name, "extension" if name.startswith("polybus.") else "")
        if kind == "publish" and attributes.get("sink") is not None:
            kind = "notification"
        # Bytes get their content type and, where none is given, their schema from the writer.
        facts = Facts(attributes, kind, has_data, is_any or has_data, local=self.local)
        for rule, seen in violations(facts):
            raise LocalProtocolError(f"{seen} (rule {rule.name}; document, {rule.clause})", protocol="uprotocol")


def written_body(message: Message) -> tuple[bytes | None, BodyFormat]:
    """The body of a message in a format of this wire.

    Raises:
        EncodeError: It does not fit.
    """
    format = message.format
    if message.raw is not None and format in FORMATS:
        return message.raw, format
    if not message.has_body:
        return None, ANY
    chosen = OCTETS if isinstance(message.body, (bytes, bytearray, memoryview)) else ANY
    return message.encoded(FORMATS, lambda value: chosen), chosen


def error_body(message: Message) -> bytes:
    """A ``google.rpc.Status`` in an ``Any``, of an error.

    Raises:
        EncodeError: The detail does not fit.
    """
    given = message.attributes
    return write_status(int(message.code or 2), str(given.get("text") or ""), given.get("reason"), given.get("detail"))
