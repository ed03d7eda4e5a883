"""Who belongs to whom, and the way of every frame: the broker without its sockets.

Nothing is decoded but the header. A client's number comes from here alone, and is known only to the socket of the server that
the client is assigned to: so neither side can speak for, or to, anybody else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from ..errors import TooLarge
from ..offences import Offences, too_many
from ..protocols.csb import wire
from . import frames
from .events import BrokerEvent, ClientJoined, ClientLeft, FrameDropped, ServerJoined, ServerLeft
from .frames import BROKER, HEAD
from .parties import GONE, Client, End, Server
from .stats import BrokerStats, Counters
from .table import TABLE, Act, Event, Stage

__all__ = ["REST", "Exchange"]

REST: Final = 60.0
"""Seconds for which the number of a client that has gone is not given again."""
MOST_RESTING: Final = 100_000
"""Numbers that rest; of more, the oldest are free early: thousands of millions come before they do again."""
_NUMBERS: Final = 0xFFFFFFFF
_SLOW: Final = "too slow: it does not read what is sent to it"
_FIRST_BAD: Final = 0x10
_PAST_GOOD: Final = 0x30
"""First bytes from here on are no requests and no responses."""
_AS_RESPONSE: Final = 0x20
_RESERVED: Final = 0xFF
"""The first byte of actions that are not an application's."""
_UNANSWERED: Final = frozenset(
    wire.NUMBER.pack(action) for action in range(wire.SUBSCRIBE, wire.DEADLINE + 1) if action not in wire.REQUESTS
)
"""Those of them that are no requests: nobody waits for an answer, or only for a moment, or as long as a channel is open."""
_NOT_OWED: Final = _UNANSWERED | {wire.NUMBER.pack(wire.HELLO)}
"""Besides, who is no polybus need not answer a hello."""
_OF_CHANNELS: Final = frozenset(wire.NUMBER.pack(action) for action in wire.CHANNEL_KINDS)
_NOT_TURNED_DOWN: Final = _UNANSWERED - {wire.NUMBER.pack(wire.OPEN)}


class Exchange:
    """Servers, clients and the numbers between them.

    Args:
        most: Bytes that may wait for a client before it is closed.
        most_for_all: Bytes that may wait for all slow clients together, before those go for which most waits.
        most_for_server: Bytes that may wait for a server.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        *,
        most: int = 4 * 1024 * 1024,
        most_for_all: int = 64 * 1024 * 1024,
        most_for_server: int = 64 * 1024 * 1024,
        bad_messages: int = 200,
        rest: float = REST,
        tell: Callable[[BrokerEvent], None] = lambda event: None,
    ) -> None:
        self._clock = clock
        self._most = most
        self._most_for_all = most_for_all
        self._most_for_server = most_for_server
        self._slow: dict[Client, None] = {}
        """Clients that are paused, also of those that are leaving."""
        self._waiting = 0
        """The sum of what waits for them."""
        self._bad_messages = bad_messages
        self._rest = rest
        self._tell = tell
        self._last = 0
        self.counters: Counters = Counters()
        self.servers: dict[Server, None] = {}
        self.clients: dict[int, Client] = {}
        """All numbers that are in use, also of those that are leaving or resting."""
        self._resting: deque[Client] = deque()
        self.draining: bool = False
        """Clients are not taken in any more, and new requests are turned down."""
        self._acts: Mapping[Act, Callable[[Client, int, str, bytes], None]] = {
            Act.TO_SERVER: self._to_server,
            Act.TO_CLIENT: self._to_client,
            Act.CLOSE: self._close,
            Act.TELL: self._tell_closed,
            Act.COUNT_LATE: self._count_late,
            Act.FREE: self._free,
            Act.NOTHING: self._nothing,
        }

    # -- servers: steps 2 and 8 ------------------------------------------------------------------------------------------

    def server_joined(self, end: End, send: Callable[[bytes], None], id: str = "") -> Server | None:
        """A server has connected. None: its id is taken, and it was closed."""
        server = Server(end, send)
        if id and not self._name(server, id, ""):
            end.close(1008, f"the server id {id!r} is taken")
            return None
        self.servers[server] = None
        self.counters.servers_total += 1
        self._tell(ServerJoined(at=self._clock(), address=end.address, server=server.id))
        return server

    def _name(self, server: Server, id: str, instance: str) -> bool:
        for other in self.servers:
            if other is not server and other.id == id and not (instance and other.instance == instance):
                return False
        server.id, server.instance = id, instance
        return True

    def server_left(self, server: Server, reason: str) -> None:
        """A server's socket is gone, or is told to go: so are the clients on it."""
        if self.servers.pop(server, 0) == 0:
            return
        server.gone = True
        left = list(server.clients.values())
        self._release(server)
        for client in left:
            self._step(client, Event.SERVER_GONE, 1001, "the server has gone")
        self._tell(ServerLeft(at=self._clock(), address=server.end.address, server=server.id, clients=len(left), reason=reason))

    def expel(self, server: Server, code: int, reason: str) -> None:
        """Close a server's socket. Until it is gone, which may take long, it gets no clients and has no say any more."""
        if not server.gone:
            server.end.close(code, reason)
            self.server_left(server, reason)

    def server_paused(self, server: Server) -> None:
        """It reads too slowly: clients that speak from now on are held back."""
        server.paused = True

    def server_resumed(self, server: Server) -> None:
        """It takes more."""
        server.paused = False
        self._release(server)

    @staticmethod
    def _release(server: Server) -> None:
        held, server.held = server.held, {}
        for client in held:
            client.end.release()

    def from_server(self, server: Server, given: Sequence[bytes]) -> None:
        """Steps 4.2, 5 and 7: what a server has sent."""
        if server not in self.servers:  # told to close
            return
        clients = server.clients
        unpack = HEAD.unpack_from
        count = 0
        for frame in given:
            if len(frame) >= 12:
                number, first = unpack(frame)
                client = clients.get(number)
                if client is not None and _FIRST_BAD <= first < _PAST_GOOD:
                    client.send(frame[4:])
                    count += 1
                    if first >= _AS_RESPONSE:
                        if frame[8] < _RESERVED or frame[8:12] not in _UNANSWERED:
                            client.asked -= 1
                    elif frame[8] < _RESERVED or frame[8:12] not in _NOT_OWED:
                        client.owes += 1
                    if client.paused:
                        self._check_reader(client)
                    continue
            self._odd_from_server(server, frame)
            if server.gone:  # it was expelled for that
                break
        self.counters.to_clients += count

    def _odd_from_server(self, server: Server, frame: bytes) -> None:
        if len(frame) < 12:
            self._drop(server, "truncated", f"{len(frame)} of the 12 bytes of a header")
            return
        number, first = HEAD.unpack_from(frame)
        kind = first >> 4
        if number == BROKER:
            self._introduced(server, frame)
        elif kind not in (wire.REQUEST, wire.RESPONSE, wire.CLOSE):
            reason = "forbidden_kind" if kind in wire.CONTROL_WORDS else "unknown_kind"
            self._drop(server, reason, f"kind {kind:#x} from a server")
            if reason == "forbidden_kind":
                self.expel(server, 1008, f"a server says neither Connected nor Closed (kind {kind:#x})")
        else:
            self._about_client(server, number, kind, frame)

    def _about_client(self, server: Server, number: int, kind: int, frame: bytes) -> None:
        client = self.clients.get(number)
        if client is None:
            self._drop(server, "unknown_client", f"client {number} is not known")
            server.send(frames.control(number, wire.CLOSED))
        elif client.server is not server and not (server.id and server.id == client.server.id):
            self._drop(server, "not_your_client", f"client {number} is another server's")
            self.expel(server, 1008, f"client {number} is not yours")
        elif kind == wire.CLOSE:
            code, reason = frames.closing(frame)
            self._step(client, Event.SERVER_CLOSES, code, reason)
        else:
            self._step(client, Event.SERVER_SPEAKS, frame=frame)

    def _introduced(self, server: Server, frame: bytes) -> None:
        """A server of ours says its id, under the number that is nobody's."""
        said = frames.introduction(frame)
        if said is None:
            self._drop(server, "unknown_client", "client 0 is nobody")
        elif server.id and server.clients and said[0] != server.id:
            server.send(frames.taken(frame, f"this is {server.id!r}: it has clients, and cannot be renamed {said[0]!r} now"))
            self.counters.drop("refused")
        elif not self._name(server, *said):
            text = f"the server id {said[0]!r} is taken: another server has it"
            server.send(frames.taken(frame, text))
            self.counters.drop("refused")
            self.expel(server, 1008, text)
        else:
            if server.registered:
                self._drop(server, "refused", f"{server.id!r} has introduced itself before")
                if server.gone:
                    return
            else:  # it may have got clients already, as any server does: now it may know who they are
                server.registered = True
                for client in server.clients.values():
                    server.send(frames.control(client.number, wire.CONNECTED, _facts(client)))
            server.send(frames.welcome(frame))

    # -- clients: steps 3, 6 and 7 ---------------------------------------------------------------------------------------

    def client_joined(
        self, end: End, send: Callable[[bytes], None], wanted: str = "", params: Mapping[str, str] | None = None
    ) -> Client | None:
        """A client has connected. None: there is no server for it, and it was closed."""
        server = None if self.draining else self._choose(wanted)
        if server is None:
            self.counters.turned_away += 1
            end.close(1013, f"there is no server {wanted!r} now" if wanted else "there is no server now: try again later")
            return None
        number = self._next_number()
        client = Client(number, end, send, server, wire.CLIENT.pack(number), params or {})
        self.clients[number] = server.clients[number] = client
        self.counters.clients_total += 1
        server.send(frames.control(number, wire.CONNECTED, _facts(client) if server.registered else None))
        self._tell(ClientJoined(at=self._clock(), address=end.address, client=number, server=server.id))
        return client

    def _choose(self, wanted: str) -> Server | None:
        """The socket with the fewest clients, of the server that was asked for."""
        able = [server for server in self.servers if not wanted or server.id == wanted]
        return min(able, key=lambda server: len(server.clients), default=None)

    def _next_number(self) -> int:
        number = self._last
        while True:
            number = number % _NUMBERS + 1
            if number not in self.clients:
                self._last = number
                return number

    def client_left(self, client: Client, reason: str) -> None:
        """A client's connection is gone."""
        address = client.end.address
        self.client_resumed(client)
        self._step(client, Event.CLIENT_GONE)
        self._tell(ClientLeft(at=self._clock(), address=address, client=client.number, reason=reason))

    def client_paused(self, client: Client) -> None:
        """It reads too slowly."""
        client.paused = True
        self._slow[client] = None
        self._check_reader(client)

    def client_resumed(self, client: Client) -> None:
        """It takes more."""
        client.paused = False
        if client in self._slow:
            del self._slow[client]
            self._waiting -= client.waiting
            client.waiting = 0

    def send_away(self, client: Client, code: int, reason: str) -> None:
        """Close a client. Until its connection is gone, which may take long, it has no say any more."""
        self._step(client, Event.SENT_AWAY, code, reason)

    def _check_reader(self, client: Client) -> None:
        """A client that does not read must not cost its server, nor the others, more than this; nor must many of them."""
        if self._count_waiting(client) > self._most:
            self._too_slow(client)
        elif self._waiting > self._most_for_all:
            for other in self._slow:  # some may have read meanwhile
                self._count_waiting(other)
            if self._waiting > self._most_for_all:
                greediest = max(self._slow, key=lambda other: other.waiting)
                self._too_slow(greediest)
                greediest.end.cut(1013, _SLOW)  # what waits for it is to be free now
                self.client_resumed(greediest)

    def _count_waiting(self, client: Client) -> int:
        waiting = client.end.backlog()
        self._waiting += waiting - client.waiting
        client.waiting = waiting
        return waiting

    def _too_slow(self, client: Client) -> None:
        if client.stage is Stage.OPEN:
            self.counters.slow_clients += 1
            self._step(client, Event.CLIENT_SLOW, 1013, _SLOW)

    def from_client(self, client: Client, given: Sequence[bytes]) -> None:
        """Steps 4 and 5.2: what a client has sent."""
        if not client.is_open():
            for frame in given:
                self._step(client, Event.CLIENT_SPEAKS, frame=frame)
            return
        if self.draining:
            given = [frame for frame in given if not self._turned_down(client, frame)]
            if not client.is_open():  # it does not read its answers
                return
        server = client.server
        send, prefix = server.send, client.prefix
        count = asked = 0
        for frame in given:
            if len(frame) >= 8 and _FIRST_BAD <= (first := frame[0]) < _PAST_GOOD:
                try:
                    send(prefix + frame)
                    count += 1
                    if first < _AS_RESPONSE:
                        if frame[4] < _RESERVED or frame[4:8] not in _UNANSWERED:
                            asked += 1
                    elif frame[4] < _RESERVED or frame[4:8] not in _NOT_OWED:
                        client.owes -= 1
                    continue
                except TooLarge:
                    self._too_large_from_client(client, frame)
            else:
                self._odd_from_client(client, frame)
            if not client.is_open():  # it was sent away for that
                break
        client.asked += asked
        self.counters.to_servers += count
        if server.paused:
            self._hold(server, client)

    def _turned_down(self, client: Client, frame: bytes) -> bool:
        """Whether a frame is a request or an open, and comes too late for a broker that is leaving."""
        if len(frame) < 8 or frame[0] >> 4 != wire.REQUEST or frame[4:8] in _NOT_TURNED_DOWN:
            return False
        self._answer(client, frames.leaving(frame))
        return True

    def _answer(self, client: Client, frame: bytes) -> None:
        client.send(frame)
        if client.paused:
            self._check_reader(client)

    def _hold(self, server: Server, client: Client) -> None:
        """The server is slow: this client waits, in its own socket."""
        if client.stage is Stage.OPEN and client not in server.held:
            server.held[client] = None
            client.end.hold()
        if server.end.backlog() > self._most_for_server:
            self.expel(server, 1013, "too slow: it does not read what is sent to it")

    def _odd_from_client(self, client: Client, frame: bytes) -> None:
        if len(frame) < 8:
            self._drop(client, "truncated", f"{len(frame)} of the 8 bytes of a header")
            return
        kind = frame[0] >> 4
        if kind in wire.CONTROL_WORDS:
            self._drop(client, "forbidden_kind", f"{wire.CONTROL_WORDS[kind]} from a client")
            self.send_away(client, 1008, f"a client says neither Connected nor Closed nor Close (kind {kind:#x})")
        else:
            self._refuse_client(client, frame, "unknown_kind", f"kind {kind:#x} is not defined in CSB")

    def _refuse_client(self, client: Client, frame: bytes, reason: str, text: str) -> None:
        self._drop(client, reason, text)
        self._answer(client, frames.refusal(frame, text, too_large=reason == "too_large"))

    def _too_large_from_client(self, client: Client, frame: bytes) -> None:
        """There is no room for the client's number: whoever waits for the frame is told."""
        text = "too large to be handed on with the number of the client in front, 4 bytes (Limits.message)"
        if frame[4:8] in _OF_CHANNELS:  # a gap would not be noticed
            self._drop(client, "too_large", text)
            self.send_away(client, 1009, text)
        elif frame[0] >> 4 == wire.REQUEST:
            self._refuse_client(client, frame, "too_large", text)
        else:
            self._drop(client, "too_large", text)
            client.owes -= 1
            client.server.send(client.prefix + frames.refusal(frame, text, too_large=True))

    # -- the table -------------------------------------------------------------------------------------------------------

    def _step(self, client: Client, event: Event, code: int = 1000, reason: str = "", frame: bytes = b"") -> None:
        act, following = TABLE[client.stage][event]
        if following is not Stage.OPEN:
            client.server.clients.pop(client.number, None)
            client.server.held.pop(client, None)
        if following is not None:
            client.stage = following
        self._acts[act](client, code, reason, frame)

    def _to_server(self, client: Client, code: int, reason: str, frame: bytes) -> None:
        client.server.send(client.prefix + frame)
        self.counters.to_servers += 1

    def _to_client(self, client: Client, code: int, reason: str, frame: bytes) -> None:
        client.send(frame[4:])
        self.counters.to_clients += 1
        if client.paused:
            self._check_reader(client)

    def _close(self, client: Client, code: int, reason: str, frame: bytes) -> None:
        client.end.close(code, reason)

    def _tell_closed(self, client: Client, code: int, reason: str, frame: bytes) -> None:
        if not client.server.gone:
            client.server.send(frames.control(client.number, wire.CLOSED))
        client.rests_until = self._clock() + self._rest
        client.end, client.send, client.params = GONE, GONE.send, {}  # of a number that rests nothing is kept but the number
        self._resting.append(client)
        if len(self._resting) > MOST_RESTING:
            self._step(self._resting.popleft(), Event.RESTED)

    def _count_late(self, client: Client, code: int, reason: str, frame: bytes) -> None:
        self._drop(client, "late", f"client {client.number} has gone")

    def _free(self, client: Client, code: int, reason: str, frame: bytes) -> None:
        self.clients.pop(client.number, None)

    def _nothing(self, client: Client, code: int, reason: str, frame: bytes) -> None:
        """So it is."""

    # -- time, the end, and what is told ---------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Free the numbers that have rested long enough."""
        while self._resting and self._resting[0].rests_until <= now:
            self._step(self._resting.popleft(), Event.RESTED)

    def busy(self) -> bool:
        """Whether a client or a server waits for an answer."""
        return any(client.asked > 0 or client.owes > 0 for server in self.servers for client in server.clients.values())

    def drain(self) -> None:
        """Step 9: close every client."""
        self.draining = True
        for client in list(self.clients.values()):
            self._step(client, Event.DRAIN, 1001, "the broker is leaving")

    def _drop(self, party: Client | Server, reason: str, text: str) -> None:
        """A frame that goes nowhere; too many in a minute end the connection that they came over."""
        self.counters.drop(reason)
        now = self._clock()
        self._tell(FrameDropped(at=now, address=party.end.address, reason=reason, text=text))
        if reason == "late":  # whoever sent it could not know
            return
        offences = party.offences = party.offences or Offences()
        if offences.add(now) > self._bad_messages:
            text = too_many(self._bad_messages)
            if isinstance(party, Server):
                self.expel(party, 1008, text)
            else:
                self.send_away(party, 1008, text)

    def stats(self) -> BrokerStats:
        """A snapshot."""
        servers: dict[str, int] = {}
        for server in self.servers:
            servers[server.id] = servers.get(server.id, 0) + len(server.clients)
        assigned, counters = sum(servers.values()), self.counters
        return BrokerStats(
            sockets=len(self.servers),
            servers=servers,
            clients=assigned,
            leaving=len(self.clients) - assigned - len(self._resting),
            resting=len(self._resting),
            held=sum(len(server.held) for server in self.servers),
            to_servers=counters.to_servers,
            to_clients=counters.to_clients,
            clients_total=counters.clients_total,
            servers_total=counters.servers_total,
            turned_away=counters.turned_away,
            slow_clients=counters.slow_clients,
            dropped=dict(counters.dropped),
        )


def _facts(client: Client) -> dict[str, object]:
    return {"address": client.end.address, "params": dict(client.params)}
