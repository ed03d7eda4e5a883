"""The server's end of a connection to a broker: many clients on it (document CSB, "Message structure with broker").

Each frame has the number of a client in front. The broker alone gives those numbers; it tells of each client with Connected and
Closed, and is asked to send one away with Close. The number 0 has no client: with ``server=ID`` the first frame is a
`_polybus.hello` under it, by which the broker knows the server; then it also says who its clients are and is told why one is
sent away. Without that, nothing but the document's bytes go to the broker.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from attrs import evolve

from ...body import JSON as JSON_FORMAT
from ...errors import Disconnected, RemoteProtocolError
from ...limits import Limits
from ...message import Kind, Message
from ...plugins import Capabilities, CloseWanted, PeerClosed, PeerOpened, Ready
from .._rules import too_large
from . import wire
from .bodies import refuse
from .codec import CsbCodec, unwrap
from .reader import DEADLINE_WORD
from .session import DIRECT, NUMBER_SHIFT, CsbSession, Party

BROKER: Final = 0
"""The broker itself, among the numbers of clients."""
_OF_BROKER: Final = wire.CLIENT.pack(BROKER)
_CAPABILITIES: Final = evolve(DIRECT, many_peers=True, shared_publish=False)
_CONTROL: Final = Kind.CONTROL
_encode: Final = msgspec.json.Encoder().encode


class CrowdedSession(CsbSession):
    """One socket between a server and a broker."""

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
        self._parties: dict[int, Party] = {}
        self._sent_away: dict[int, None] = {}
        """Clients that were told to go, the latest: what they had sent by then comes still, and is no mistake of the broker."""
        self._resting: dict[Party, None] = {}
        self._count = 0
        self._numbered: dict[int, Party] = {}

    def start(self, now: float) -> None:
        """Introduce this server where it has an id; ready when the broker has answered, otherwise at once."""
        if self._introduction is None:
            super().start(now)
            return
        head = wire.HEADER.pack(wire.REQUEST << 4 | wire.JSON, 0, 0, wire.HELLO)
        self._frames.append(wire.CLIENT.pack(BROKER) + head + _encode(self._introduction))

    def receive(self, frame: bytes, now: float) -> None:
        """One frame has come in. Never raises: a bad one becomes `Refused`, and is answered where it can be."""
        if self._early is not None and frame[:4] != _OF_BROKER:
            self._keep(self._early, frame)
            return
        client, party = BROKER, None
        try:
            client, inner = unwrap(frame)
            party = self._parties.get(client)
            message = self._reader(inner)
            if message.kind is _CONTROL and message.subject != DEADLINE_WORD:
                self._control(message, client)
            elif client == BROKER:
                self._of_broker(message, now)
            elif party is None:
                raise refuse(f"client {client} is not connected", "unknown_peer")
            else:
                message.peer = client
                self._take(message, party)
        except RemoteProtocolError as error:
            if client in self._sent_away:
                return
            if party is None:  # there is no peer to answer
                error.answer_id = error.reply_id = None
            self._refuse(error, party if party is not None else self._one)

    def _control(self, message: Message, client: int) -> None:
        if message.subject == "connected" and client != BROKER:
            if client in self._parties:
                self._gone(client, "its number was given to another")
            self._sent_away.pop(client, None)
            self._count += 1
            self._parties[client] = self._numbered[self._count] = Party(client, self._count)
            address, params = _facts(message)
            self._events.append(PeerOpened(client, address or f"client {client}", params))
        elif message.subject == "closed" and client != BROKER:
            self._gone(client, "the client has gone")
            self._sent_away.pop(client, None)
        else:
            raise refuse(f"{message.subject} for client {client} from a broker", "unknown_kind")

    def _keep(self, early: dict[tuple[bytes, int], bytes], frame: bytes) -> None:
        """Keep a frame until this server is ready. A second Connected says who the client of the first is."""
        connected = frame[4:5] and frame[4] >> 4 == wire.CONNECTED
        early[(frame[:4], 0) if connected else (b"", len(early))] = frame
        self._early_bytes += len(frame)
        if self._early_bytes > self._limits.queue_bytes:
            early.clear()
            self._events.append(CloseWanted(1009, "too much came of clients before the broker has answered the introduction"))

    def _of_broker(self, message: Message, now: float) -> None:
        """The answer to the introduction."""
        if self._registered or self._introduction is None or message.id != wire.HELLO << 16:
            raise refuse("client 0 is nobody", "unknown_peer")
        if message.kind is Kind.RESPONSE:
            self._registered = True
            self._events.append(Ready())
            early, self._early = self._early, None
            for frame in (early or {}).values():
                self.receive(frame, now)
        else:
            text = str(message.attributes.get("text") or "the broker refuses this server")
            self._events.append(CloseWanted(1008, text, refuse(text, "refused")))

    def _gone(self, client: int, reason: str) -> None:
        party = self._parties.pop(client, None)
        if party is not None:
            self._left(party)
            self._events.append(PeerClosed(client, reason))

    def _left(self, party: Party) -> None:
        self._resting.pop(party, None)
        self._numbered.pop(party.number, None)

    def _party(self, peer_key: Any) -> Party:
        party = self._parties.get(peer_key)
        if party is None:
            raise Disconnected("the client has gone", f"client {peer_key}", False)
        return party

    def send(self, message: Message, now: float, peer_key: Any = None) -> int | None:
        """Queue a message for a client. See `CsbSession.send`."""
        party = self._party(peer_key)
        key = super().send(message, now, peer_key)
        if party.resting:
            self._resting[party] = None
        return key

    def _queue(self, frame: bytes, party: Party) -> None:
        if len(frame) + 4 > self._max_frame:
            raise too_large(len(frame) + 4, self._max_frame)
        self._frames.append(wire.CLIENT.pack(party.key) + frame)

    # -- ids and time ----------------------------------------------------------------------------------------------------

    def forget(self, key: Any, now: float) -> None:
        """Let the id of a request rest: its answer is not wanted any more."""
        party = self._numbered.get(-key >> NUMBER_SHIFT) if type(key) is int else None
        if party is not None:
            self._forget(key, party, now)
            if party.resting:
                self._resting[party] = None

    def next_tick(self) -> float | None:
        """Time at which the next id has rested long enough."""
        return min((next(iter(party.resting.values())) for party in self._resting if party.resting), default=None)

    def tick(self, now: float) -> None:
        """Ids that have rested long enough are free."""
        for party in list(self._resting):
            party.wake(now)
            if not party.resting:
                del self._resting[party]

    def close(self, code: int, reason: str, now: float, peer_key: Any = None) -> None:
        """Send one client away, or all of them."""
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
                self._frames.append(wire.CLIENT.pack(client) + head + said)

    def connection_lost(self, reason: str) -> None:
        """Report that all clients have gone."""
        super().connection_lost(reason)
        self._early = None
        self._parties.clear()
        self._sent_away.clear()
        self._resting.clear()
        self._numbered.clear()


def _facts(message: Message) -> tuple[str, dict[str, str]]:
    """Address of a client and facts of its handshake, from a broker of ours."""
    body = message.body if message.format is JSON_FORMAT else None
    if not isinstance(body, dict):
        return "", {}
    address, params = body.get("address"), body.get("params")
    if not isinstance(params, dict):
        params = {}
    return address if isinstance(address, str) else "", {k: v for k, v in params.items() if isinstance(v, str)}
