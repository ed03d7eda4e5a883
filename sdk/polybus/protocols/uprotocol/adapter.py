"""Options of the `uprotocol` protocol, and the codec with the reader and writer that the options select."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, ClassVar, Final, Literal

from attrs import Factory, field, frozen

from ...body import JSON, OCTETS, BodyFormat
from ...errors import LocalProtocolError, RemoteProtocolError, Unsupported
from ...limits import Limits
from ...message import Kind, Message
from ...plugins import FrameField, Role
from .._protobuf import ANY
from .._shared import choice
from .._uprotocol import EntityOptions, SubjectLevels, urgency_of
from . import events
from .events import FORMATS, ITEM, NAMES, Envelope, EventMessage, ReturnAddress, item_id
from .json_event import JsonEventReader, JsonEventWriter
from .names import UProtocolNames, entity_key
from .proto_event import ProtoReader, ProtoWriter, dissect
from .rules import TOLERATED, TYPES, Facts, Leniency, is_uri_reference, violations
from .session import UProtocolSession

_TYPES: Final = {
    **dict.fromkeys((Kind.PUBLISH, Kind.NOTIFY), "pub.v1"),
    **dict.fromkeys((Kind.RESPONSE, Kind.ERROR), "res.v1"),
    Kind.REQUEST: "req.v1",
}
_HEAD: Final = ("specversion", "type", "source", "sink", "priority", "id", "ttl", "reqid", "datacontenttype")
_NOT_WRITTEN: Final = frozenset((*_HEAD, "text", "reason", "detail", "mode", "credit", "hops", "undelivered", TOLERATED))


@frozen(eq=False, kw_only=True)
class UProtocolCodec:
    """Converts between events and messages. The messages that it reads have all attributes, and an address as subject."""

    reader: JsonEventReader | ProtoReader
    writer: JsonEventWriter | ProtoWriter
    reads: frozenset[Literal["text", "binary"]]
    writes: Literal["text", "binary"]
    local: frozenset[str] | None  # Entities that may be written without authority; None for all
    headers_limit: int
    schema: str  # ``dataschema`` of bytes
    level_of: Callable[[str | int], str | None]  # Returns the configured priority of a subject, or None
    formats: tuple[BodyFormat, ...] = FORMATS
    # Reads the message of a frame. Raises only `RemoteProtocolError`. Bound once, not for each frame.
    read: Callable[[bytes], EventMessage] = field(init=False, default=Factory(lambda self: self.reader.read, True))

    @property
    def item_formats(self) -> tuple[BodyFormat, ...]:
        """Formats of items. JSON events contain a JSON document unchanged."""
        return (*FORMATS, JSON) if self.writes == "text" else FORMATS

    def format_for(self, value: Any, subject: str | int) -> BodyFormat:
        """Bytes are sent unchanged, and anything else in a ``google.protobuf.Any``."""
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
        found: list[Message | RemoteProtocolError] = []
        for event in self.reader.split(frame):
            try:
                found.append(self.read(event))
            except RemoteProtocolError as error:
                found.append(error)
        return found

    def encode(self, messages: Sequence[Message]) -> bytes:
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
        ttl, reqid = attributes.get("ttl"), attributes.get("reqid")
        return self.writer.write(head, attributes["id"], ttl, reqid, rest or None, raw, format)

    def parts(self, message: Message) -> tuple[dict[str, Any], bytes | None, BodyFormat]:
        kind, given = message.kind, message.attributes
        attributes: dict[str, Any] = {"specversion": "1.0"}
        data: bytes | None = None
        if kind in NAMES:
            more, data = events.extension_attributes(message)
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
            attributes.update(events.write_headers(message.headers, self.headers_limit))
        if kind is Kind.ERROR:
            data = events.write_status(message)
        raw, format = (data, ANY) if data is not None else events.written_body(message)
        return attributes, raw, format

    def check(self, attributes: dict[str, Any], has_data: bool, is_any: bool) -> None:
        name = attributes.get("type", "")
        kind = TYPES.get(name, "extension" if name.startswith("polybus.") else "")
        if kind == "publish" and attributes.get("sink") is not None:
            kind = "notification"
        # The writer adds the content type of bytes and a default schema.
        facts = Facts(attributes, kind, has_data, is_any or has_data, local=self.local)
        for _, text in violations(facts):
            raise LocalProtocolError(text, protocol="uprotocol")


_LIMITS: Final = Limits()
DEFAULT_ENTITY: Final = "/polybus/1"
MODES: Final = ("document", "strict", "lenient")  # Values of ``mode=``, the default first


def _entity(adapter: UProtocol, attribute: object, value: str | None) -> None:
    if value is not None:
        entity_key(value)


def _schema(adapter: UProtocol, attribute: object, value: str) -> None:
    if not is_uri_reference(value):
        raise ValueError(f"uprotocol: schema={value!r} is not a URI reference")


@frozen(kw_only=True)
class UProtocol(EntityOptions):
    """uProtocol with its options.

    Args:
        entity: Address of this side: ``//VCU.VIN/body.access/1``.
        peer: Address of the other side, used for requests to plain subjects. Defaults to the address in the first message.
        format: ``json`` (text) or ``protobuf`` (binary).
        mode: How strictly to read messages, which are always written strictly. ``document`` accepts the forms in the document's
            own examples: ids of any UUID version, base64 in ``data``, data without ``Any``, ``permission_level``, and addresses
            without an authority. ``lenient`` also accepts forms written by SDKs of that time: text as a hash, addresses that
            break the grammar, and any time. ``strict`` rejects all of these. ``message.attributes["polybus-lenient"]`` lists
            tolerated violations.
        profile: Form of protobuf messages: ``strict`` as in the document, or ``up-python-1.5`` for messages that this SDK can
            read.
        content: Content mode over HTTP: ``structured``, ``binary``, or ``batch``, which combines waiting messages that need no
            answer.
        notification: Event type of notifications: ``pub.v1`` with a sink, as in all SDKs, or ``notif.v1``.
        schema: ``dataschema`` attribute for bodies that are bytes.
        ttl: Seconds until publications and notifications expire. By default they never expire. Requests expire at their
            deadline.
        priorities: Priorities by subject pattern, ``CS0`` to ``CS6``. The first match wins. Publications default to ``CS1``.
            Requests default to ``CS4``, which is also their minimum.
        token: Token to send with each request: a string, or a function that returns a string or `None` for no token. Tokens are
            never logged.
        permission_level: Permission level to send with each request (``plevel``).
        sign: A function: ``sign(data)`` returns the ``hash`` of outgoing data.
        verify: A function: ``verify(data, hash)`` returns True if incoming data is genuine. The message is rejected if the
            function returns False or raises, or if there is no hash.
        max_clock_skew: For messages with a ttl: how far the time in the id may be ahead of the local clock, in seconds.
        allowance: Extra seconds before a message expires, to allow for clock differences.
        clock: A function that returns nanoseconds since 1970.

    Raises:
        ValueError: If a value is invalid.
    """

    name = "uprotocol"
    option_names: ClassVar[tuple[str, ...]] = ("entity", "peer", "format", "mode", "profile", "notification", "content")
    largest: ClassVar[int] = 2**31 - 1
    inspect_options: ClassVar[Mapping[str, str]] = {"mode": "lenient"}
    """Options for reading captured events, which accept as many forms as possible."""

    entity: str = field(default=DEFAULT_ENTITY, validator=_entity)
    peer: str | None = field(default=None, validator=_entity)
    format: Literal["json", "protobuf"] = choice("json", "protobuf")
    mode: Literal["document", "strict", "lenient"] = choice(*MODES)
    profile: Literal["strict", "up-python-1.5"] = choice("strict", "up-python-1.5")
    notification: Literal["pub.v1", "notif.v1"] = choice("pub.v1", "notif.v1")
    content: Literal["structured", "binary", "batch"] = choice("structured", "binary", "batch")
    schema: str = field(default="/polybus/octets", validator=_schema)
    sign: Callable[[bytes], bytes] | None = None
    verify: Callable[[bytes, bytes], bool] | None = None

    def spellings(self, subject: str | int) -> tuple[str, ...]:
        """Return other names for a publication that this side sends. See `plugins.ProtocolFeatures`."""
        return UProtocolNames(self.entity, self.peer, _LIMITS.subject).own_spellings(subject)

    def dissect(self, frame: bytes) -> list[FrameField]:
        """Return the fields of a protobuf event for display. Returns none for JSON. See `plugins.Dissector`."""
        return list(dissect(frame)) if self.format == "protobuf" else []

    def codec(self, limits: Limits = _LIMITS) -> UProtocolCodec:
        """Return the codec. Equal adapters with equal limits share a codec."""
        return _codec(self, limits)

    def session(self, role: Role, limits: Limits = _LIMITS, rng: random.Random | None = None) -> UProtocolSession:
        """Create a connection's session, which is the same in both roles. `rng` generates the random part of ids."""
        return UProtocolSession(_codec(self, limits), self, limits, random.SystemRandom() if rng is None else rng)


@lru_cache(maxsize=64)
def _codec(adapter: UProtocol, limits: Limits) -> UProtocolCodec:
    # An entity without authority, except the default one, means that the connection stays on one device.
    device_only = not entity_key(adapter.entity).startswith("//") and adapter.entity != DEFAULT_ENTITY
    known = {DEFAULT_ENTITY} if adapter.peer is None else {DEFAULT_ENTITY, entity_key(adapter.peer)}
    local = None if device_only else frozenset(known)
    envelope = Envelope(limits, Leniency.of(adapter.mode), local)

    json, old = adapter.format == "json", adapter.profile == "up-python-1.5"
    return UProtocolCodec(
        reader=JsonEventReader(envelope, limits) if json else ProtoReader(envelope, limits),
        writer=JsonEventWriter(adapter.schema) if json else ProtoWriter(adapter.schema, old),
        reads=frozenset({"text" if json else "binary"}),
        writes="text" if json else "binary",
        local=local,
        headers_limit=limits.headers,
        schema=adapter.schema,
        level_of=SubjectLevels(adapter.priorities).of,
    )
