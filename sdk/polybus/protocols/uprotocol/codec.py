"""The codec: a reader and a writer of events, chosen by the protocol's options."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal

from attrs import field, frozen

from ...body import JSON, OCTETS, BodyFormat
from ...errors import LocalProtocolError, RemoteProtocolError, Unsupported
from ...message import Kind, Message
from .._protobuf import ANY
from .._uprotocol import urgency_of
from .bodies import FORMATS, write_status, written_body
from .cloudevents.envelope import ReturnAddress
from .cloudevents.json_event import JsonEventReader, JsonEventWriter
from .cloudevents.proto_event import ProtoReader, ProtoWriter
from .events import EventMessage
from .extensions import ITEM, NAMES, extension_attributes, item_id, write_headers
from .rules import TOLERATED, TYPES, Facts, violations

_TYPES: Final = {
    Kind.PUBLISH: "pub.v1",
    Kind.NOTIFY: "pub.v1",
    Kind.REQUEST: "req.v1",
    Kind.RESPONSE: "res.v1",
    Kind.ERROR: "res.v1",
}
_HEAD: Final = ("specversion", "type", "source", "sink", "priority", "id", "ttl", "reqid", "datacontenttype")
_NOT_WRITTEN: Final = frozenset((*_HEAD, "text", "reason", "detail", "mode", "credit", "hops", "undelivered", TOLERATED))


@frozen(eq=False, kw_only=True)
class UProtocolCodec:
    """Converts between events and messages. After reading, `Message.attributes` has all attributes, and the subject is an
    address.

    Attributes:
        reader: Reads events.
        writer: Writes events.
        read: Reads the message of a frame. Raises only `RemoteProtocolError`.
        reads: Kinds of frames that it reads.
        writes: Kind of frames that it writes.
        local: Entities that may be written without authority; None for all.
        headers_limit: `Limits.headers`.
        schema: ``dataschema`` of bytes.
        level_of: Returns the configured priority of a subject, or None.
    """

    reader: JsonEventReader | ProtoReader
    writer: JsonEventWriter | ProtoWriter
    reads: frozenset[Literal["text", "binary"]]
    writes: Literal["text", "binary"]
    local: frozenset[str] | None = frozenset()
    headers_limit: int = 16 * 1024
    schema: str = ""
    level_of: Callable[[str | int], str | None] = field(default=lambda subject: None)
    formats: tuple[BodyFormat, ...] = FORMATS
    read: Callable[[bytes], EventMessage] = field(init=False)

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "read", self.reader.read)  # bound once, not for each frame

    @property
    def item_formats(self) -> tuple[BodyFormat, ...]:
        """Formats of items: with JSON events, a JSON document is sent as such."""
        return (*FORMATS, JSON) if self.writes == "text" else FORMATS

    def format_for(self, value: Any, subject: str | int) -> BodyFormat:
        """Bytes unchanged, anything else in a ``google.protobuf.Any``."""
        return ANY if type(value) is dict or not isinstance(value, (bytes, bytearray, memoryview)) else OCTETS

    def urgency(self, message: Message) -> int:
        asked = message.id.event.priority if isinstance(message.id, ReturnAddress) else None
        return urgency_of(message, asked, self.level_of)

    def decode(self, frame: bytes) -> Sequence[Message | RemoteProtocolError]:
        try:
            return [self.read(frame)]
        except RemoteProtocolError:
            if frame.startswith(b"[") and self.writes == "text":
                return self.read_batch(frame)
            raise

    def read_batch(self, frame: bytes) -> list[Message | RemoteProtocolError]:
        """The messages of a batch, with an error in place of a malformed one. May raise `RemoteProtocolError`: not a batch."""
        found: list[Message | RemoteProtocolError] = []
        for event in self.reader.split(frame):
            try:
                found.append(self.read(event))
            except RemoteProtocolError as error:
                found.append(error)
        return found

    def encode(self, messages: Sequence[Message]) -> bytes:
        """The event of one message, or a batch of several. Ids, source and sink are in `Message.attributes`."""
        frames = [self._encode(message) for message in messages]
        return frames[0] if len(frames) == 1 else self.writer.batch(frames)

    def _encode(self, message: Message) -> bytes:
        given = message.attributes
        if message.kind is Kind.ITEM and item_id(str(given.get("id"))) and given.get("source") and self.takes_item(message):
            return self.item(str(given["source"]), str(given["id"]), message)
        attributes, raw, format = self.parts(message)
        self.check(attributes, raw is not None, format is ANY)
        return self.event(attributes, raw, format)

    def takes_item(self, message: Message) -> bool:
        return message.raw is not None and (message.format is OCTETS or (message.format is JSON and self.writes == "text"))

    def item(self, source: str, id: str, message: Message) -> bytes:
        raw = message.encoded((OCTETS, JSON))
        assert raw is not None
        return self.writer.item(self.writer.head(ITEM, source, None, None), id, raw, message.format)

    def event(self, attributes: Mapping[str, Any], raw: bytes | None, format: BodyFormat) -> bytes:
        head = self.writer.head(attributes["type"], attributes["source"], attributes.get("sink"), attributes.get("priority"))
        rest = {name: value for name, value in attributes.items() if name not in _HEAD}
        return self.writer.write(
            head, attributes["id"], attributes.get("ttl"), attributes.get("reqid"), rest or None, raw, format
        )

    def parts(self, message: Message) -> tuple[dict[str, Any], bytes | None, BodyFormat]:
        kind, given = message.kind, message.attributes
        attributes: dict[str, Any] = {"specversion": "1.0"}
        data: bytes | None = None
        if kind in NAMES:
            more, data = extension_attributes(message)
            attributes.update(more)
        elif kind in _TYPES:
            attributes["type"] = given.get("type", _TYPES[kind])
        else:
            raise Unsupported(f"uProtocol cannot carry a {kind.value} message")
        attributes.update((name, given[name]) for name in _HEAD if name in given and name not in ("type", "datacontenttype"))
        attributes.update((name, value) for name, value in given.items() if name not in _NOT_WRITTEN)
        if kind in (Kind.RESPONSE, Kind.ERROR):
            attributes.setdefault("reqid", message.id)
        elif kind in (Kind.REQUEST, Kind.OPEN) and isinstance(message.id, str):
            attributes.setdefault("id", message.id)
        if message.headers:
            attributes.update(write_headers(message.headers, self.headers_limit))
        if kind is Kind.ERROR:
            data = write_status(message)
        raw, format = (data, ANY) if data is not None else written_body(message)
        return attributes, raw, format

    def check(self, attributes: dict[str, Any], has_data: bool, is_any: bool) -> None:
        """May raise `LocalProtocolError`: the attributes break a rule of the document."""
        name = attributes.get("type", "")
        kind = TYPES.get(name, "extension" if name.startswith("polybus.") else "")
        if kind == "publish" and attributes.get("sink") is not None:
            kind = "notification"
        # The writer adds the content type of bytes and a default schema.
        facts = Facts(attributes, kind, has_data, is_any or has_data, local=self.local)
        for rule, seen in violations(facts):
            raise LocalProtocolError(f"{seen} (rule {rule.name}; document, {rule.clause})", protocol="uprotocol")
