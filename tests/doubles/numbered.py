"""A wire of 16-bit ids and numbered actions, direct or with many clients on one connection behind a broker (like CSB).

Eight bytes precede the payload: kind and encoding (four bits each), result, id, action; behind a broker, four bytes with the
client's number come first. Text subjects and the extensions use reserved actions.
"""

import json
import random
import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, ClassVar, Final, Literal, Self

from attrs import frozen

from polybus.body import JSON, OCTETS, BodyFormat
from polybus.errors import Code, Disconnected, EncodeError, LocalProtocolError, RemoteProtocolError, TooLarge, Unsupported
from polybus.limits import Limits
from polybus.message import Kind, Message
from polybus.plugins import Capabilities, Frames, PeerClosed, PeerOpened, Ready, Refused, Role, SessionEvent, SessionOutput

REQUEST, RESPONSE, CONNECTED, CLOSED, CLOSE = 1, 2, 0xD, 0xE, 0xF
BINARY, TEXT_JSON = 0, 2
HELLO: Final = 0xFFFF0000
NAMED: Final = {Kind.SUBSCRIBE: 0xFFFF0001, Kind.UNSUBSCRIBE: 0xFFFF0002, Kind.PUBLISH: 0xFFFF0003, Kind.REQUEST: 0xFFFF0004}
CHANNEL: Final = {
    Kind.CANCEL: 0xFFFF0005,
    Kind.OPEN: 0xFFFF0006,
    Kind.ITEM: 0xFFFF0007,
    Kind.CREDIT: 0xFFFF0008,
    Kind.END: 0xFFFF0009,
}
_NAMED_KINDS: Final = {action: kind for kind, action in NAMED.items()}
_CHANNEL_KINDS: Final = {action: kind for kind, action in CHANNEL.items()}
QUARANTINE: Final = 60.0
SILENT: Final = 30.0
"""Seconds after which the id of a request whose answer nobody waits for is free again."""


@frozen
class Own:
    """A key of ours. The serial number keeps it apart from a later one with the same id."""

    client: int
    id: int
    serial: int


@frozen
class Theirs:
    """What names a request or open of the peer. `action` is echoed in the answer."""

    client: int
    id: int
    action: int


def _load(frame: bytes) -> Any:
    try:
        return json.loads(frame)
    except (ValueError, RecursionError) as error:
        raise RemoteProtocolError(f"not JSON: {error}") from error


def _dump(value: Any) -> bytes:
    try:
        return json.dumps(value, separators=(",", ":")).encode()
    except (TypeError, ValueError) as error:
        raise EncodeError(str(error)) from error


def _facts_of(message: Message) -> dict[str, Any]:
    return {"code": int(message.code or Code.UNKNOWN), **{k: message.attributes.get(k) for k in ("text", "reason", "detail")}}


def _failed(kind: Kind, id: Any, facts: Any) -> Message:
    facts = facts if isinstance(facts, dict) else {}
    number = facts.get("code")
    code = Code(number) if type(number) is int and 0 < number <= 16 else Code.UNKNOWN
    attributes = {"text": str(facts.get("text") or ""), "reason": facts.get("reason"), "detail": facts.get("detail")}
    return Message(kind, "", id, code=code, attributes=attributes)


@frozen(eq=False)
class NumberedCodec:
    limits: Limits
    wrapped: bool
    formats: tuple[BodyFormat, ...] = (JSON, OCTETS)
    reads: frozenset[Literal["text", "binary"]] = frozenset(("binary",))
    writes: Literal["text", "binary"] = "binary"

    def format_for(self, value: Any, subject: str | int) -> BodyFormat:
        return OCTETS if isinstance(value, (bytes, bytearray, memoryview)) else JSON

    def decode(self, frame: bytes) -> Sequence[Message | RemoteProtocolError]:
        head = ">IBBHI" if self.wrapped else ">BBHI"
        try:
            *client, first, result, id, action = struct.unpack_from(head, frame)
            payload = frame[struct.calcsize(head) :]
            message = self._message(client[0] if client else 0, first >> 4, first & 15, result, id, action, payload)
        except (struct.error, UnicodeDecodeError) as error:
            raise RemoteProtocolError(str(error), reason="bad_length") from error
        message.peer = client[0] if client else None
        return [message]

    def _message(self, client: int, kind: int, encoding: int, result: int, id: int, action: int, data: bytes) -> Message:
        body_format = OCTETS if encoding == BINARY else JSON
        if kind in (CONNECTED, CLOSED):
            return Message(Kind.CONTROL, kind)
        if kind == RESPONSE:
            if result == 0:
                return Message(Kind.RESPONSE, action, (client, id), data or None, body_format)
            return _failed(Kind.ERROR, (client, id), _load(data))
        if kind != REQUEST:
            raise RemoteProtocolError(f"kind {kind} is not known", reason="unknown_type")
        theirs = Theirs(client, id, action)
        if action in _CHANNEL_KINDS:
            return self._of_channel(_CHANNEL_KINDS[action], client, theirs, body_format, data)
        subject: str | int = action
        if action in _NAMED_KINDS:
            (size,) = struct.unpack_from(">H", data)
            subject, data = str(data[2 : 2 + size], "utf-8"), data[2 + size :]
        elif action == HELLO:
            subject = "_polybus.hello"
        return Message(_NAMED_KINDS.get(action, Kind.REQUEST), subject, theirs, data or None, body_format)

    def _of_channel(self, kind: Kind, client: int, theirs: Theirs, body_format: BodyFormat, data: bytes) -> Message:
        of_sender, reference, size = struct.unpack_from(">?HI", data)
        facts, raw = _load(data[7 : 7 + size]), data[7 + size :] or None
        facts = facts if isinstance(facts, dict) else {}
        id = Theirs(client, reference, CHANNEL[Kind.OPEN]) if of_sender else (client, reference)
        if kind is Kind.CANCEL:
            id = Theirs(client, reference, facts.get("action", -1))
        if kind is Kind.END and facts:
            return _failed(kind, id, facts)
        return Message(kind, str(facts.pop("subject", "")), id, raw, body_format, attributes=facts)

    def encode(self, messages: Sequence[Message]) -> bytes:
        (message,) = messages
        kind, id, data = message.kind, message.id, message.encoded(self.formats) or b""
        first, result, action = REQUEST, 0, message.subject
        if message.headers:
            raise Unsupported("numbered carries no headers")
        if kind in (Kind.RESPONSE, Kind.ERROR):
            first, action, result = RESPONSE, id.action, int(message.code or 0)
            data = _dump(_facts_of(message)) if kind is Kind.ERROR else data
        elif kind in CHANNEL:
            facts = _facts_of(message) if message.code else {**message.attributes, "subject": message.subject}
            if kind is Kind.CANCEL:
                facts = {"action": message.subject if isinstance(message.subject, int) else NAMED[Kind.REQUEST]}
            text = _dump(facts) if kind is not Kind.END or message.code else b"{}"
            data = struct.pack(">?HI", isinstance(id, Own), id.id, len(text)) + text + data
            action = CHANNEL[kind]
        elif kind is Kind.CONTROL:
            first, action = CLOSE, 0
        elif action == "_polybus.hello":
            action = HELLO
        elif isinstance(action, str):
            name = action.encode()
            action, data = NAMED[Kind.REQUEST if kind is Kind.NOTIFY else kind], struct.pack(">H", len(name)) + name + data
        elif kind not in (Kind.REQUEST, Kind.NOTIFY) or not 0 <= action < HELLO:
            raise LocalProtocolError(f"{kind.value} on action {action}: only requests go to numbers, below 0xFFFF0000")
        encoding = BINARY if message.format is OCTETS and kind is not Kind.ERROR else TEXT_JSON
        number = id.id if kind not in CHANNEL and kind is not Kind.CONTROL else 0
        head = struct.pack(">BBHI", first << 4 | encoding, result, number, action)
        return (struct.pack(">I", id.client) if self.wrapped else b"") + head + data


class NumberedSession:
    def __init__(self, codec: NumberedCodec) -> None:
        self.codec = codec
        self.capabilities = Capabilities(
            patterns=False, numbers=True, headers=False, deadlines=False, many_peers=codec.wrapped, announce="client"
        )
        self._serial = 0
        self._own: dict[int, dict[int, Own]] = {} if codec.wrapped else {0: {}}
        self._free_at: dict[Own, float] = {}
        """Ids in use that nobody waits for, and when they are free at the latest."""

    def start(self, now: float) -> SessionOutput:
        return (Ready(),)

    def receive(self, frame: bytes, now: float) -> SessionOutput:
        try:
            (message,) = self.codec.decode(frame)
            assert isinstance(message, Message)
            return self._received(message, message.peer if isinstance(message.peer, int) else 0)
        except RemoteProtocolError as error:
            return (Refused(error, None),)

    def _received(self, message: Message, client: int) -> SessionOutput:
        kind = message.kind
        if kind is Kind.CONTROL:
            return self._client(client, message.subject == CONNECTED)
        own = self._own.get(client)
        if own is None:
            raise RemoteProtocolError(f"client {client} is not connected", reason="unknown_peer")
        if kind in (Kind.RESPONSE, Kind.ERROR) or (kind in CHANNEL and isinstance(message.id, tuple)):
            key = own.get(message.id[1])
            if key is None:
                raise RemoteProtocolError("an answer to an id that is not pending", reason="unknown_id")
            if kind in (Kind.RESPONSE, Kind.ERROR):
                del own[key.id]
                if key in self._free_at:
                    del self._free_at[key]  # late, or an answer that nobody asked for
            message.id = key
        elif kind in NAMED and kind is not Kind.REQUEST:
            return self._frame(Message(Kind.RESPONSE, "", message.id)), message
        return message

    def _client(self, client: int, connected: bool) -> list[SessionEvent]:
        if connected:
            self._own[client] = {}
            return [PeerOpened(client, f"client {client}")]
        if (own := self._own.pop(client, None)) is None:
            return []
        for key in own.values():
            self._free_at.pop(key, None)
        return [PeerClosed(client, "the client disconnected")]

    def send(self, message: Message, now: float, peer_key: Any = None) -> tuple[Own | None, Frames]:
        kind, client = message.kind, peer_key or 0
        if client not in self._own:
            raise Disconnected("the client disconnected", f"client {client}", False)
        copy = Message(kind, message.subject, message.id, message.raw, message.format, message.headers, code=message.code)
        copy.extras, copy.decoded, copy.checked = message.extras, message.decoded, message.checked
        if kind in (Kind.RESPONSE, Kind.ERROR, Kind.ITEM, Kind.CREDIT, Kind.END):
            return None, self._frame(copy)
        if kind is Kind.CANCEL:
            own = self._own.get(client, {})
            if own.get(message.id.id) != message.id:  # its answer has come, and the id may be another's by now
                return None, ()
            return None, self._frame(copy)
        key = copy.id = self._allocate(client)
        frame = self._frame(copy)
        self._own[client][key.id] = key
        if kind in (Kind.REQUEST, Kind.OPEN):
            return key, frame
        self._free_at[key] = now + SILENT  # answered all the same; nobody waits
        return None, frame

    def _allocate(self, client: int) -> Own:
        used = self._own.get(client, {})
        while True:
            self._serial += 1
            if (id := self._serial % 65_536) not in used:
                return Own(client, id, self._serial)

    def _frame(self, message: Message) -> bytes:
        frame = self.codec.encode([message])
        if len(frame) > self.codec.limits.message:
            raise TooLarge(f"a frame of {len(frame)} bytes is larger than {self.codec.limits.message} (Limits.message)")
        return frame

    def forget(self, key: Any, now: float) -> Frames:
        if isinstance(key, Own) and self._own.get(key.client, {}).get(key.id) == key:
            self._free_at[key] = now + QUARANTINE
        return ()

    def next_tick(self) -> float | None:
        return min(self._free_at.values(), default=None)

    def tick(self, now: float) -> SessionOutput:
        for key in [key for key, when in self._free_at.items() if when <= now]:
            del self._free_at[key]
            self._own[key.client].pop(key.id, None)
        return ()

    def close(self, code: int, reason: str, now: float, peer_key: Any = None) -> Frames:
        if self._own.pop(peer_key, None) is None:
            return ()
        return self._frame(Message(Kind.CONTROL, CLOSE, Theirs(peer_key, 0, 0)))

    def connection_lost(self, reason: str) -> None:
        """Nothing is kept."""


@frozen(kw_only=True)
class Numbered:
    """`side` is ``direct`` or ``server``, behind a broker."""

    name: ClassVar[str] = "numbered"
    side: str = "direct"

    @property
    def url_options(self) -> Mapping[str, str]:
        return {}

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Self:
        return cls(side=options.get("side", "direct"))

    def codec(self, limits: Limits = Limits()) -> NumberedCodec:  # noqa: B008  # immutable
        return _codec(limits, self.side == "server")

    def session(self, role: Role, limits: Limits = Limits(), rng: random.Random | None = None) -> NumberedSession:  # noqa: B008
        return NumberedSession(self.codec(limits))


_codec = lru_cache(NumberedCodec)
