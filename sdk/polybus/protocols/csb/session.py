"""One CSB connection without I/O, either point to point or between a server and its broker.

There is no handshake, heartbeat or goodbye, and both ends may send requests. Reserved actions add features that the document
lacks: named subjects, publications, streams, headers and deadlines. A peer that is not known to run polybus receives only the
document's messages and the first five reserved actions. Each direction of a connection (or of a broker's client) has 65,536
message ids, which are reused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec.structs import replace

from ...body import JSON
from ...errors import Code, Disconnected, QueueFull, RemoteProtocolError
from ...limits import Limits
from ...message import Kind, Message
from ...plugins import (
    Capabilities,
    CloseWanted,
    Frames,
    PeerClosed,
    PeerOpened,
    QuietSession,
    Ready,
    Refused,
    SessionEvent,
    SessionOutput,
)
from ...plugins.hello import HELLO, is_answer, question_of
from .._shared import refusal, too_large
from . import wire
from .bodies import refuse
from .reader import DEADLINE_WORD, unwrap
from .wire import IDS

if TYPE_CHECKING:
    from .adapter import CsbCodec

REST: Final = 60.0  # Seconds before the id of an abandoned request is reused, unless its answer arrives first

NUMBER_SHIFT: Final = 48

_MASK: Final = IDS - 1
_ACTION: Final = 0xFFFFFFFF


class CsbParty:
    """The message ids in use with one peer, and whether that peer runs polybus.

    A request's key is a negative serial number, which makes it different from all of the peer's ids. Its low 16 bits are the
    message id on the wire. Its high bits contain `number`, which distinguishes the parties of a connection.
    """

    __slots__ = ("_serial", "asked", "key", "notice", "number", "ours", "pending", "resting")

    def __init__(self, key: Any = None, number: int = 0) -> None:
        self.key: Any = key
        self.number: int = number
        self._serial = number << NUMBER_SHIFT
        self.pending: dict[int, int] = {}
        self.resting: dict[int, float] = {}
        """Ids of abandoned requests with their latest release time, earliest first."""
        self.ours: bool | None = None
        self.asked: int = 0
        self.notice: tuple[Any, float | None] | None = None

    def next_id(self, now: float) -> int:
        """Return the next serial number with a free message id in its low 16 bits. Raises `QueueFull` if no id is free."""
        pending = self.pending
        serial = self._serial + 1
        if serial & _MASK in pending:
            if len(pending) >= IDS:
                self.wake(now)
            if len(pending) >= IDS:
                resting = len(self.resting)
                raise QueueFull(
                    f"all {IDS} message ids of CSB are in use: {IDS - resting} requests wait for an answer and {resting} ids "
                    f"are reserved after a timeout or cancel (for {REST:g} s): wait for answers, or open another connection"
                )
            while serial & _MASK in pending:
                serial += 1
        self._serial = serial
        return serial

    def find(self, id: int) -> int | None:
        """Return the key of the request that an answer belongs to. Some peers send 0 instead of the request's action."""
        entry = self.pending.get(id & _MASK)
        if entry is None:
            return None
        action = id >> 16
        return -(entry >> 32) if action == entry & _ACTION or action == 0 else None

    def answered(self, key: int) -> None:
        number = -key & _MASK
        del self.pending[number]
        if self.resting:
            self.resting.pop(number, None)

    def action_of(self, key: int) -> int | None:
        entry = self.pending.get(-key & _MASK)
        return entry & _ACTION if entry is not None and entry >> 32 == -key else None

    def rest(self, key: int, now: float) -> None:
        """Reserve the id of an abandoned request so that a late answer cannot match a new request."""
        number = -key & _MASK
        if self.action_of(key) is not None and number not in self.resting:
            self.resting[number] = now + REST

    def wake(self, now: float) -> None:
        for number, when in list(self.resting.items()):
            if when > now:
                break
            del self.resting[number]
            del self.pending[number]


DIRECT: Final = Capabilities(
    numbers=True,
    bare_headers=False,
    answer_headers=False,
    shared_publish=True,
    asks_before_publishing=True,
    asks_before_headers=True,
    scarce_ids=True,
)
_REQUEST, _NOTIFY, _OPEN, _CANCEL = Kind.REQUEST, Kind.NOTIFY, Kind.OPEN, Kind.CANCEL
_RESPONSE, _ERROR, _PUBLISH, _CONTROL, _ITEM = Kind.RESPONSE, Kind.ERROR, Kind.PUBLISH, Kind.CONTROL, Kind.ITEM
_TOLD: Final = frozenset((Kind.PUBLISH, Kind.SUBSCRIBE, Kind.UNSUBSCRIBE))
_OF_CHANNEL: Final = frozenset(wire.CHANNEL_KINDS.values())
_SILENT: Final = frozenset((wire.SUBSCRIBE, wire.UNSUBSCRIBE, wire.PUBLISH, wire.PUBLISH_MORE, wire.CANCEL, wire.DEADLINE))
_HELLO_BODY: Final = JSON.encode(question_of())


class CsbSession(QuietSession):
    __slots__ = (
        "_faces_strangers", "_limits", "_max_frame", "_numbered", "_one", "_parties", "_reader", "_resting", "_writer", "codec"
    )  # fmt: skip

    capabilities: Capabilities = DIRECT

    def __init__(self, codec: CsbCodec, limits: Limits, *, faces_strangers: bool = False) -> None:
        self.codec: Final = codec
        self._limits = limits
        self._reader = codec.reader.read
        self._writer = codec.writer
        self._max_frame = limits.message
        self._faces_strangers = faces_strangers
        """True if an unknown peer may subscribe. Until the peer sends a hello, it receives publications without headers."""
        self._one = CsbParty()
        self._parties: dict[Any, CsbParty] = {}
        self._numbered: dict[int, CsbParty] = {}
        self._parties[None] = self._numbered[0] = self._one
        self._resting: dict[CsbParty, None] = {}  # Parties with reserved ids

    # -- in --------------------------------------------------------------------------------------------------------------

    def receive(self, frame: bytes, now: float) -> SessionOutput:
        party = self._one
        try:
            message = self._reader(frame)
            if message.kind is _CONTROL and message.subject != DEADLINE_WORD:
                raise refuse(f"{message.subject} is between a broker and its servers", "bad_kind")
            return self._take(message, party)
        except RemoteProtocolError as error:
            return self._refuse(error, party)

    def _take(self, message: Message, party: CsbParty) -> SessionOutput:
        kind = message.kind
        if kind is _RESPONSE or kind is _ERROR:
            # `CsbParty.find` and `CsbParty.answered`, inline.
            id = message.id
            number, action = id & 0xFFFF, id >> 16
            entry = party.pending.get(number)
            if entry is None or (entry & _ACTION != action and action):
                if action in _SILENT:
                    return ()
                raise refuse(f"an answer to message id {number} of action {action:#x}, which is not pending", "unknown_id")
            del party.pending[number]
            rested = party.resting.pop(number, None) if party.resting else None
            if rested is not None and kind is _ERROR and message.code is Code.CANCELLED:
                return ()  # the answer to a cancel only frees the id
            key = -(entry >> 32)
            if action == wire.HELLO and self._met(message, party, key):
                return ()
            message.id = key
        elif kind is _REQUEST:
            if message.subject is HELLO:
                party.ours = True
            if party.notice is not None:
                (announced, ttl), party.notice = party.notice, None
                if announced == message.id and message.ttl is None:
                    message.ttl = ttl
        elif kind is _ITEM or kind in _OF_CHANNEL:
            if message.id < 0:  # from the receiver of this side's open
                opened = party.find(~message.id)
                if opened is None:
                    raise refuse(f"a channel {~message.id & 0xFFFF} that is not open", "unknown_id")
                message.id = opened
        elif kind in _TOLD:
            # Polybus publications and subscriptions have number 0 and expect no answer.
            if message.id is not None and (message.id & 0xFFFF or not party.ours):
                return self._framed(self._writer.acknowledged(message.id), party), message
        elif kind is _CONTROL:
            party.notice = message.id, message.ttl
            return ()
        return message

    @staticmethod
    def _met(message: Message, party: CsbParty, key: int) -> bool:
        """Record whether the peer runs polybus, and return True if the peer's message only answers this session's query."""
        try:
            body = message.body if message.kind is _RESPONSE else None
        except Exception:  # an undecodable body is not from a polybus
            body = None
        party.ours = is_answer(body)
        return key == party.asked

    def _refuse(self, error: RemoteProtocolError, party: CsbParty) -> SessionOutput:
        if error.reply_id is not None:
            error.reply_id = party.find(error.reply_id)
            if error.reply_id is not None:
                party.answered(error.reply_id)
        answer: Message | None = None
        if error.answer_id is not None:
            answer = refusal(error, error.answer_id)
            if error.answer_id >> 16 == wire.OPEN:
                answer.kind = Kind.END
        # Not written here, because a running request may have the same id.
        refused = Refused(error, party.key, answer)
        return (refused,) if error.close_code is None else (refused, CloseWanted(error.close_code, error.reason, error))

    # -- out -------------------------------------------------------------------------------------------------------------

    def send(self, message: Message, now: float, peer_key: Any = None) -> tuple[int | None, Frames]:
        try:
            party = self._parties[peer_key]
        except KeyError:
            raise Disconnected("the client disconnected", f"client {peer_key}", False) from None
        kind = message.kind
        if kind is _REQUEST or kind is _NOTIFY or kind is _OPEN:
            serial = party.next_id(now)
            number = serial & 0xFFFF
            if kind is _OPEN:
                frame, action = self._writer.open(message, number), wire.OPEN
            else:
                frame, action = self._writer.request(message, number, party.ours)
            frame = self._framed(frame, party)
            party.pending[number] = serial << 32 | action
            if kind is _NOTIFY:
                self._rest(party, -serial, now)  # it is answered like a request, but the answer is not awaited
                return None, frame
            if action == wire.REQUEST_NAMED and party.ours is None:
                return -serial, self._to_unknown(frame, number, message.ttl, party, now)
            return -serial, frame
        if kind is _RESPONSE:
            frame = self._writer.response(message, message.id)
        elif kind is _ERROR:
            frame = self._writer.error(message, message.id)
        elif kind is _PUBLISH:
            frame = self._writer.publish(message, bare=self._faces_strangers and not party.ours)
        elif kind is _ITEM or kind in _OF_CHANNEL:
            id = message.id
            # Ours has its number in the low bits; theirs is written as an answer.
            frame = self._writer.of_channel(message, -id & 0xFFFF if id < 0 else ~id)
        elif kind is _CANCEL:
            where = party.action_of(message.id)
            if where is None:  # already answered; the id may belong to another request now
                return None, ()
            frame = self._writer.cancel(-message.id & 0xFFFF, where)
        else:
            frame = self._writer.write(message, None)
        return None, self._framed(frame, party)

    def _to_unknown(self, frame: bytes, number: int, ttl: float | None, party: CsbParty, now: float) -> list[bytes]:
        """Write a request by name for a peer that may not run polybus: the deadline, the request, and a hello."""
        frames = [frame]
        if ttl is not None:
            frames.insert(0, self._framed(self._writer.deadline(number, wire.REQUEST_NAMED, ttl), party))
        if not party.asked and len(party.pending) < IDS:  # otherwise the next request by name asks
            frames.append(self._ask(party, now))
        return frames

    def _ask(self, party: CsbParty, now: float) -> bytes:
        serial = party.next_id(now)
        number = serial & 0xFFFF
        frame = self._framed(wire.HEADER.pack(wire.REQUEST << 4 | wire.JSON, 0, number, wire.HELLO) + _HELLO_BODY, party)
        party.pending[number] = serial << 32 | wire.HELLO
        party.asked = -serial
        self._rest(party, -serial, now)
        return frame

    def _framed(self, frame: bytes, party: CsbParty) -> bytes:
        if len(frame) > self._max_frame:
            raise too_large(len(frame), self._max_frame)
        return frame

    # -- ids and time ----------------------------------------------------------------------------------------------------

    def forget(self, key: Any, now: float) -> Frames:
        """Reserve the id of an abandoned request. The id of a finished channel is free immediately."""
        party = self._numbered.get(-key >> NUMBER_SHIFT) if type(key) is int else None
        if party is not None:
            self._rest(party, key, now)
        return ()

    def _rest(self, party: CsbParty, key: int, now: float) -> None:
        party.rest(key, now)
        if party.resting:
            self._resting[party] = None

    def next_tick(self) -> float | None:
        return min((next(iter(party.resting.values())) for party in self._resting if party.resting), default=None)

    def tick(self, now: float) -> SessionOutput:
        for party in list(self._resting):
            party.wake(now)
            if not party.resting:
                del self._resting[party]
        return ()


BROKER: Final = 0
_OF_BROKER: Final = wire.CLIENT.pack(BROKER)
_CAPABILITIES: Final = replace(DIRECT, many_peers=True, shared_publish=False)
_encode: Final = msgspec.json.Encoder().encode


class CrowdedSession(CsbSession):
    """A socket between a server and its broker, shared by many clients (document CSB, "Message structure with broker").

    Each frame begins with the number that the broker has assigned to a client. Number 0 is the broker itself. If ``server=ID``
    is set, the session first sends the broker a `_polybus.hello`, which registers the server. The broker then also sends facts
    about its clients, and accepts a reason in Close. Without an id, the broker receives only the document's messages.
    """

    capabilities: Capabilities = _CAPABILITIES

    def __init__(self, codec: CsbCodec, limits: Limits, introduction: Mapping[str, Any] | None) -> None:
        super().__init__(codec, limits, faces_strangers=True)
        self._introduction = introduction
        self._registered = False
        self._early: dict[tuple[bytes, int], bytes] | None = {} if introduction is not None else None
        """Frames of clients that the broker may have assigned before it answered the registration."""
        self._early_bytes = 0
        self._parties.clear()
        self._numbered.clear()
        self._sent_away: dict[int, None] = {}  # Frames in flight from the latest disconnected clients are ignored
        self._count = 0

    def start(self, now: float) -> SessionOutput:
        """Register a server that has an id, and wait for the broker's answer. A server without an id is ready immediately."""
        if self._introduction is None:
            return super().start(now)
        head = wire.HEADER.pack(wire.REQUEST << 4 | wire.JSON, 0, 0, wire.HELLO)
        return (wire.CLIENT.pack(BROKER) + head + _encode(self._introduction),)

    def receive(self, frame: bytes, now: float) -> SessionOutput:
        if self._early is not None and frame[:4] != _OF_BROKER:
            return self._keep(self._early, frame)
        client, party = BROKER, None
        try:
            client, inner = unwrap(frame)
            party = self._parties.get(client)
            message = self._reader(inner)
            if message.kind is _CONTROL and message.subject != DEADLINE_WORD:
                return self._control(message, client)
            if client == BROKER:
                return self._of_broker(message, now)
            if party is None:
                raise refuse(f"client {client} is not connected", "unknown_peer")
            message.peer = client
            return self._take(message, party)
        except RemoteProtocolError as error:
            if client in self._sent_away:
                return ()
            if party is None:  # no peer to answer
                error.answer_id = error.reply_id = None
            return self._refuse(error, party if party is not None else self._one)

    def _control(self, message: Message, client: int) -> list[SessionEvent]:
        if message.subject == "connected" and client != BROKER:
            gone = self._gone(client, "its number was given to another client")
            self._sent_away.pop(client, None)
            self._count += 1
            self._parties[client] = self._numbered[self._count] = CsbParty(client, self._count)
            address, params = _facts(message)
            return [*gone, PeerOpened(client, address or f"client {client}", params)]
        if message.subject == "closed" and client != BROKER:
            self._sent_away.pop(client, None)
            return self._gone(client, "the client disconnected")
        raise refuse(f"{message.subject} for client {client} from a broker", "bad_kind")

    def _keep(self, early: dict[tuple[bytes, int], bytes], frame: bytes) -> SessionOutput:
        """Store a frame until this server is ready. A second Connected replaces the first one."""
        connected = frame[4:5] and frame[4] >> 4 == wire.CONNECTED
        early[(frame[:4], 0) if connected else (b"", len(early))] = frame
        self._early_bytes += len(frame)
        if self._early_bytes <= self._limits.queue_bytes:
            return ()
        early.clear()
        return (CloseWanted(1009, "clients sent too much before the broker answered the introduction"),)

    def _of_broker(self, message: Message, now: float) -> SessionOutput:
        """Handle the broker's answer to the registration. Any other message from the broker itself is an error."""
        if self._registered or self._introduction is None or message.id != wire.HELLO << 16:
            raise refuse("0 is not a client number", "unknown_peer")
        if message.kind is Kind.RESPONSE:
            self._registered = True
            return self._begin(now)
        text = str(message.attributes.get("text") or "the broker rejects this server")
        return (CloseWanted(1008, text, refuse(text, "refused")),)

    def _begin(self, now: float) -> Iterator[Message | SessionEvent | bytes]:
        early, self._early = self._early, None
        yield Ready()
        for frame in (early or {}).values():
            output = self.receive(frame, now)
            if isinstance(output, Message):
                yield output
            else:
                yield from output

    def _gone(self, client: int, reason: str) -> list[SessionEvent]:
        party = self._parties.pop(client, None)
        if party is None:
            return []
        self._left(party)
        return [PeerClosed(client, reason)]

    def _left(self, party: CsbParty) -> None:
        self._resting.pop(party, None)
        self._numbered.pop(party.number, None)

    def _framed(self, frame: bytes, party: CsbParty) -> bytes:
        if len(frame) + 4 > self._max_frame:
            raise too_large(len(frame) + 4, self._max_frame)
        return wire.CLIENT.pack(party.key) + frame

    # -- ids and time ----------------------------------------------------------------------------------------------------

    def close(self, code: int, reason: str, now: float, peer_key: Any = None) -> Frames:
        frames: list[bytes] = []
        gone = list(self._parties) if peer_key is None else [peer_key]
        for client in gone:
            party = self._parties.pop(client, None)
            if party is not None:
                self._left(party)
                self._sent_away[client] = None
                if len(self._sent_away) > self._limits.peers:
                    del self._sent_away[next(iter(self._sent_away))]
                head = wire.HEADER.pack(wire.CLOSE << 4 | (wire.JSON if self._registered else wire.BINARY), 0, 0, 0)
                said = _encode({"code": code, "reason": reason}) if self._registered else b""
                frames.append(wire.CLIENT.pack(client) + head + said)
        return frames

    def connection_lost(self, reason: str) -> None:
        self._early = None
        self._parties.clear()
        self._sent_away.clear()
        self._resting.clear()
        self._numbered.clear()


def _facts(message: Message) -> tuple[str, dict[str, str]]:
    body = message.body if message.format is JSON else None
    if not isinstance(body, dict):
        return "", {}
    address, params = body.get("address"), body.get("params")
    if not isinstance(params, dict):
        params = {}
    return address if isinstance(address, str) else "", {k: v for k, v in params.items() if isinstance(v, str)}
