"""One CSB connection without I/O: point to point, or the end of a server at a broker.

The protocol has no handshake, no heartbeat and no goodbye; both ends may ask. What the document does not know (names as
subjects, publications, streams, headers, deadlines) travels on reserved actions. A peer that has not shown to be a polybus is
sent nothing else than what the document says and what the actions up to 4 say. Each direction of a connection (behind a broker:
of a client) has 65,536 message ids, so they come round again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec
from attrs import evolve

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
from .._rules import too_large
from . import wire
from .bodies import refuse
from .codec import CsbCodec, unwrap
from .reader import DEADLINE_WORD
from .wire import IDS

REST: Final = 60.0
"""Seconds that the id of an abandoned request rests, if its answer does not come before."""

NUMBER_SHIFT: Final = 48
"""Position of the party's number in a serial."""

_MASK: Final = IDS - 1
_ACTION: Final = 0xFFFFFFFF


class CsbParty:
    """The other side as one end sees it: the ids that are taken, and whether it is a polybus.

    The key of a request is the negative of a serial number, so it is never given twice and differs from all ids of the other
    side; its low 16 bits are the id on the wire. `number` tells the parties of a connection apart: it is in their keys.
    """

    __slots__ = ("_serial", "asked", "key", "notice", "number", "ours", "pending", "resting")

    def __init__(self, key: Any = None, number: int = 0) -> None:
        self.key: Any = key
        self.number: int = number
        self._serial = number << NUMBER_SHIFT
        self.pending: dict[int, int] = {}
        """Ids that are taken: ``serial << 32 | action``."""
        self.resting: dict[int, float] = {}
        """Ids of requests that were given up, and when they are free at the latest; the earliest first."""
        self.ours: bool | None = None
        """True if the peer is a polybus; None while it has not been asked."""
        self.asked: int = 0
        """The key of the session's own `_polybus.hello`."""
        self.notice: tuple[Any, float | None] | None = None
        """The id and the deadline of the request that is announced as the next."""

    def next_id(self, now: float) -> int:
        """The serial of the next request, its id in the low 16 bits. May raise `QueueFull`: all ids are taken."""
        pending = self.pending
        serial = self._serial + 1
        if serial & _MASK in pending:
            if len(pending) >= IDS:
                self.wake(now)
            if len(pending) >= IDS:
                resting = len(self.resting)
                raise QueueFull(
                    f"all {IDS} message ids of CSB are taken: {IDS - resting} requests wait for their answer and {resting} ids "
                    f"rest after a timeout or cancel (for {REST:g} s): wait for answers, or open another connection"
                )
            while serial & _MASK in pending:
                serial += 1
        self._serial = serial
        return serial

    def find(self, id: int) -> int | None:
        """The key of the request that an answer belongs to. Some peers do not echo the action; they send 0 in its place."""
        entry = self.pending.get(id & _MASK)
        if entry is None:
            return None
        action = id >> 16
        return -(entry >> 32) if action == entry & _ACTION or action == 0 else None

    def answered(self, key: int) -> None:
        """The id of this key is free."""
        number = -key & _MASK
        del self.pending[number]
        if self.resting:
            self.resting.pop(number, None)

    def action_of(self, key: int) -> int | None:
        """Action to which the request of a key went, if its id still belongs to it."""
        entry = self.pending.get(-key & _MASK)
        return entry & _ACTION if entry is not None and entry >> 32 == -key else None

    def rest(self, key: int, now: float) -> None:
        """Let an id rest whose answer is not wanted any more: until it comes, a new request must not have its id."""
        number = -key & _MASK
        if self.action_of(key) is not None and number not in self.resting:
            self.resting[number] = now + REST

    def wake(self, now: float) -> None:
        """Ids that have rested long enough are free."""
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
"""Actions of ours whose answers say nothing."""
_HELLO_BODY: Final = JSON.encode(question_of())


class CsbSession(QuietSession):
    """Either end of a connection between two peers."""

    __slots__ = ("_faces_strangers", "_limits", "_max_frame", "_one", "_reader", "_writer", "codec")

    capabilities: Capabilities = DIRECT

    def __init__(self, codec: CsbCodec, limits: Limits, *, faces_strangers: bool = False) -> None:
        self.codec: Final = codec
        self._limits = limits
        self._reader = codec.reader.read
        self._writer = codec.writer
        self._max_frame = limits.message
        self._faces_strangers = faces_strangers
        """True if publications may go to a peer that has only said that it subscribes: ours say hello before."""
        self._one = CsbParty()

    # -- in --------------------------------------------------------------------------------------------------------------

    def receive(self, frame: bytes, now: float) -> SessionOutput:
        """One frame has come in. Never raises: a bad one becomes `Refused`, and is answered where it can be."""
        party = self._one
        try:
            message = self._reader(frame)
            if message.kind is _CONTROL and message.subject != DEADLINE_WORD:
                raise refuse(f"{message.subject} is between a broker and its servers", "unknown_kind")
            return self._take(message, party)
        except RemoteProtocolError as error:
            return self._refuse(error, party)

    def _take(self, message: Message, party: CsbParty) -> SessionOutput:
        """May raise `RemoteProtocolError`: an answer to nothing."""
        kind = message.kind
        if kind is _RESPONSE or kind is _ERROR:
            # As `CsbParty.find` and `CsbParty.answered`, without the calls.
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
                return ()  # as it was asked to do; all that it says is that the id is free
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
            if message.id < 0:  # of the receiver of an open of ours
                opened = party.find(~message.id)
                if opened is None:
                    raise refuse(f"a channel {~message.id & 0xFFFF} that is not open", "unknown_id")
                message.id = opened
        elif kind in _TOLD:
            # Publications and subscriptions of our own buses have the number 0, and they do not read the answer.
            if message.id is not None and (message.id & 0xFFFF or not party.ours):
                return self._framed(self._writer.acknowledged(message.id), party), message
        elif kind is _CONTROL:
            party.notice = message.id, message.ttl
            return ()
        return message

    @staticmethod
    def _met(message: Message, party: CsbParty, key: int) -> bool:
        """The peer has said whether it is a polybus. True where only the session wanted to know."""
        try:
            body = message.body if message.kind is _RESPONSE else None
        except Exception:  # what does not decode is no answer of ours
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
            code = Code.RESOURCE_EXHAUSTED if error.reason == "too_large" else Code.INVALID_ARGUMENT
            facts = {"text": error.text, "reason": error.reason}
            answer = Message(_ERROR, "", error.answer_id, code=code, attributes=facts)
            if error.answer_id >> 16 == wire.OPEN:
                answer.kind = Kind.END
        # Not written here: its id may be that of a request that runs, and would be taken for the answer to that.
        refused = Refused(error, party.key, answer)
        return (refused,) if error.close_code is None else (refused, CloseWanted(error.close_code, error.reason, error))

    # -- out -------------------------------------------------------------------------------------------------------------

    def send(self, message: Message, now: float, peer_key: Any = None) -> tuple[int | None, Frames]:
        """The frames of a message. For a request or an open: the key too, under which the answers will come."""
        party = self._one if peer_key is None else self._party(peer_key)
        kind = message.kind
        if kind is _REQUEST:
            serial = party.next_id(now)
            number = serial & 0xFFFF
            frame, action = self._writer.request(message, number, party.ours)
            frame = self._framed(frame, party)
            party.pending[number] = serial << 32 | action
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
            # Ours has its number in the low bits; theirs is written as the answer that it is.
            frame = self._writer.of_channel(message, -id & 0xFFFF if id < 0 else ~id)
        elif kind is _CANCEL:
            where = party.action_of(message.id)
            if where is None:  # its answer has come, and the id may be another's by now
                return None, ()
            frame = self._writer.cancel(-message.id & 0xFFFF, where)
        elif kind is _NOTIFY or kind is _OPEN:
            return self._send_rare(message, party, now)
        else:
            frame = self._writer.write(message, None)
        return None, self._framed(frame, party)

    def _to_unknown(self, frame: bytes, number: int, ttl: float | None, party: CsbParty, now: float) -> list[bytes]:
        """Put how long a request by name is worth in front of it, for the two may be read apart, and behind it who is there."""
        frames = [frame]
        if ttl is not None:
            frames.insert(0, self._framed(self._writer.deadline(number, wire.REQUEST_NAMED, ttl), party))
        if not party.asked and len(party.pending) < IDS:  # else the next request by name asks
            frames.append(self._ask(party, now))
        return frames

    def _send_rare(self, message: Message, party: CsbParty, now: float) -> tuple[int | None, bytes]:
        serial = party.next_id(now)
        number = serial & 0xFFFF
        if message.kind is _OPEN:
            frame = self._framed(self._writer.open(message, number), party)
            party.pending[number] = serial << 32 | wire.OPEN
            return -serial, frame
        frame, action = self._writer.request(message, number, party.ours)
        frame = self._framed(frame, party)
        party.pending[number] = serial << 32 | action
        party.rest(-serial, now)  # it is answered like any request, and that answer is not waited for
        return None, frame

    def _ask(self, party: CsbParty, now: float) -> bytes:
        """A name has been used, which only our own buses and their friends know: find out, so that deadlines may travel too."""
        serial = party.next_id(now)
        number = serial & 0xFFFF
        frame = self._framed(wire.HEADER.pack(wire.REQUEST << 4 | wire.JSON, 0, number, wire.HELLO) + _HELLO_BODY, party)
        party.pending[number] = serial << 32 | wire.HELLO
        party.asked = -serial
        party.rest(-serial, now)
        return frame

    def _party(self, peer_key: Any) -> CsbParty:
        return self._one

    def _framed(self, frame: bytes, party: CsbParty) -> bytes:
        if len(frame) > self._max_frame:
            raise too_large(len(frame), self._max_frame)
        return frame

    # -- ids and time ----------------------------------------------------------------------------------------------------

    def forget(self, key: Any, now: float) -> Frames:
        """Let the id of a request rest: its answer is not wanted any more. The id of a channel that is over is free."""
        self._forget(key, self._one, now)
        return ()

    @staticmethod
    def _forget(key: Any, party: CsbParty, now: float) -> None:
        if type(key) is int and key < 0:
            party.rest(key, now)

    def next_tick(self) -> float | None:
        """Time at which the next id has rested long enough."""
        return next(iter(self._one.resting.values()), None)

    def tick(self, now: float) -> SessionOutput:
        """Ids that have rested long enough are free."""
        self._one.wake(now)
        return ()


BROKER: Final = 0
"""The broker itself, among the numbers of clients."""
_OF_BROKER: Final = wire.CLIENT.pack(BROKER)
_CAPABILITIES: Final = evolve(DIRECT, many_peers=True, shared_publish=False)
_encode: Final = msgspec.json.Encoder().encode


class CrowdedSession(CsbSession):
    """One socket between a server and a broker: many clients on it (document CSB, "Message structure with broker").

    Each frame has the number of a client in front. The broker alone gives those numbers; it tells of each client with Connected
    and Closed, and is asked to send one away with Close. The number 0 has no client: with ``server=ID`` the first frame is a
    `_polybus.hello` under it, by which the broker knows the server; then it also says who its clients are and is told why one
    is sent away. Without that, nothing but the document's bytes go to the broker.
    """

    __slots__ = (
        "_count",
        "_early",
        "_early_bytes",
        "_introduction",
        "_numbered",
        "_parties",
        "_registered",
        "_resting",
        "_sent_away",
    )

    capabilities: Capabilities = _CAPABILITIES

    def __init__(self, codec: CsbCodec, limits: Limits, introduction: Mapping[str, Any] | None) -> None:
        super().__init__(codec, limits, faces_strangers=True)
        self._introduction = introduction
        self._registered = False
        self._early: dict[tuple[bytes, int], bytes] | None = {} if introduction is not None else None
        """Frames of clients that came before the broker has answered the introduction. It may have assigned some by then."""
        self._early_bytes = 0
        self._parties: dict[int, CsbParty] = {}
        self._sent_away: dict[int, None] = {}
        """Clients that were told to go, the latest: what they had sent by then comes still, and is no mistake of the broker."""
        self._resting: dict[CsbParty, None] = {}
        self._count = 0
        self._numbered: dict[int, CsbParty] = {}

    def start(self, now: float) -> SessionOutput:
        """Introduce this server where it has an id; ready when the broker has answered, otherwise at once."""
        if self._introduction is None:
            return super().start(now)
        head = wire.HEADER.pack(wire.REQUEST << 4 | wire.JSON, 0, 0, wire.HELLO)
        return (wire.CLIENT.pack(BROKER) + head + _encode(self._introduction),)

    def receive(self, frame: bytes, now: float) -> SessionOutput:
        """One frame has come in. Never raises: a bad one becomes `Refused`, and is answered where it can be."""
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
            if party is None:  # there is no peer to answer
                error.answer_id = error.reply_id = None
            return self._refuse(error, party if party is not None else self._one)

    def _control(self, message: Message, client: int) -> list[SessionEvent]:
        """May raise `RemoteProtocolError`: a broker says no such thing."""
        if message.subject == "connected" and client != BROKER:
            gone = self._gone(client, "its number was given to another")
            self._sent_away.pop(client, None)
            self._count += 1
            self._parties[client] = self._numbered[self._count] = CsbParty(client, self._count)
            address, params = _facts(message)
            return [*gone, PeerOpened(client, address or f"client {client}", params)]
        if message.subject == "closed" and client != BROKER:
            self._sent_away.pop(client, None)
            return self._gone(client, "the client has gone")
        raise refuse(f"{message.subject} for client {client} from a broker", "unknown_kind")

    def _keep(self, early: dict[tuple[bytes, int], bytes], frame: bytes) -> SessionOutput:
        """Keep a frame until this server is ready. A second Connected says who the client of the first is."""
        connected = frame[4:5] and frame[4] >> 4 == wire.CONNECTED
        early[(frame[:4], 0) if connected else (b"", len(early))] = frame
        self._early_bytes += len(frame)
        if self._early_bytes <= self._limits.queue_bytes:
            return ()
        early.clear()
        return (CloseWanted(1009, "too much came of clients before the broker has answered the introduction"),)

    def _of_broker(self, message: Message, now: float) -> SessionOutput:
        """The answer to the introduction. May raise `RemoteProtocolError`: it is none."""
        if self._registered or self._introduction is None or message.id != wire.HELLO << 16:
            raise refuse("client 0 is nobody", "unknown_peer")
        if message.kind is Kind.RESPONSE:
            self._registered = True
            return self._begin(now)
        text = str(message.attributes.get("text") or "the broker refuses this server")
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

    def _party(self, peer_key: Any) -> CsbParty:
        party = self._parties.get(peer_key)
        if party is None:
            raise Disconnected("the client has gone", f"client {peer_key}", False)
        return party

    def send(self, message: Message, now: float, peer_key: Any = None) -> tuple[int | None, Frames]:
        """The frames of a message for a client. See `CsbSession.send`."""
        party = self._party(peer_key)
        output = super().send(message, now, peer_key)
        if party.resting:
            self._resting[party] = None
        return output

    def _framed(self, frame: bytes, party: CsbParty) -> bytes:
        if len(frame) + 4 > self._max_frame:
            raise too_large(len(frame) + 4, self._max_frame)
        return wire.CLIENT.pack(party.key) + frame

    # -- ids and time ----------------------------------------------------------------------------------------------------

    def forget(self, key: Any, now: float) -> Frames:
        """Let the id of a request rest: its answer is not wanted any more."""
        party = self._numbered.get(-key >> NUMBER_SHIFT) if type(key) is int else None
        if party is not None:
            self._forget(key, party, now)
            if party.resting:
                self._resting[party] = None
        return ()

    def next_tick(self) -> float | None:
        """Time at which the next id has rested long enough."""
        return min((next(iter(party.resting.values())) for party in self._resting if party.resting), default=None)

    def tick(self, now: float) -> SessionOutput:
        """Ids that have rested long enough are free."""
        for party in list(self._resting):
            party.wake(now)
            if not party.resting:
                del self._resting[party]
        return ()

    def close(self, code: int, reason: str, now: float, peer_key: Any = None) -> Frames:
        """Send one client away, or all of them."""
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
        """Forget all clients."""
        self._early = None
        self._parties.clear()
        self._sent_away.clear()
        self._resting.clear()
        self._numbered.clear()


def _facts(message: Message) -> tuple[str, dict[str, str]]:
    """Address of a client and facts of its handshake, from a broker of ours."""
    body = message.body if message.format is JSON else None
    if not isinstance(body, dict):
        return "", {}
    address, params = body.get("address"), body.get("params")
    if not isinstance(params, dict):
        params = {}
    return address if isinstance(address, str) else "", {k: v for k, v in params.items() if isinstance(v, str)}
