"""Registry of a broker: servers, the clients on them, and the numbers between them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

from attrs import asdict

from ..plugins.tools import ViolationCounter, too_many
from ..protocols.csb import wire
from . import frames
from .events import BrokerCounters, BrokerEvent, BrokerStats, ClientJoined, ClientLeft, FrameDropped, ServerJoined, ServerLeft
from .participants import GONE, TABLE, Act, BrokerClient, End, Event, Server, Stage

SLOW: Final = "too slow: it does not read what is sent to it"


class SlowReaders:
    """Clients for which something waits: `most` bytes for each, or it has to go, and `most_for_all` for all together, or those
    go for which most waits. `too_slow` sends one away.
    """

    def __init__(self, most: int, most_for_all: int, too_slow: Callable[[BrokerClient], None]) -> None:
        self._most = most
        self._most_for_all = most_for_all
        self._too_slow = too_slow
        self._slow: dict[BrokerClient, None] = {}
        """Clients that are paused, also of those that are leaving."""
        self.waiting: int = 0
        """The sum of what waits for them."""

    def paused(self, client: BrokerClient) -> None:
        """It reads too slowly."""
        client.paused = True
        self._slow[client] = None
        self.check(client)

    def resumed(self, client: BrokerClient) -> None:
        """It takes more."""
        client.paused = False
        if client in self._slow:
            del self._slow[client]
            self.waiting -= client.waiting
            client.waiting = 0

    def check(self, client: BrokerClient) -> None:
        """A client that does not read must not cost its server, nor the others, more than this; nor must many of them."""
        if self._count_waiting(client) > self._most:
            self._too_slow(client)
        elif self.waiting > self._most_for_all:
            for other in self._slow:  # some may have read meanwhile
                self._count_waiting(other)
            if self.waiting > self._most_for_all:
                greediest = max(self._slow, key=lambda other: other.waiting)
                self._too_slow(greediest)
                greediest.end.cut(1013, SLOW)  # what waits for it is to be free now
                self.resumed(greediest)

    def _count_waiting(self, client: BrokerClient) -> int:
        waiting = client.end.backlog()
        self.waiting += waiting - client.waiting
        client.waiting = waiting
        return waiting


REST: Final = 60.0
"""Seconds for which the number of a client that has gone is not given again."""
MOST_RESTING: Final = 100_000
"""Numbers that rest; of more, the oldest are free early: thousands of millions come before they do again."""
_NUMBERS: Final = 0xFFFFFFFF


class ClientRegistry:
    """Servers and clients that are there, and the state of each.

    A client's number comes from here alone, and is known only to the socket of the server that the client is assigned to.

    Args:
        most: Bytes that may wait for a client before it is closed.
        most_for_all: Bytes that may wait for all slow clients together, before those go for which most waits.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        *,
        most: int = 4 * 1024 * 1024,
        most_for_all: int = 64 * 1024 * 1024,
        bad_messages: int = 200,
        rest: float = REST,
        tell: Callable[[BrokerEvent], None] = lambda event: None,
    ) -> None:
        self._clock = clock
        self._bad_messages = bad_messages
        self._rest = rest
        self._tell = tell
        self._last = 0
        self.counters: BrokerCounters = BrokerCounters()
        self.servers: dict[Server, None] = {}
        self.clients: dict[int, BrokerClient] = {}
        """All numbers that are in use, also of those that are leaving or resting."""
        self._resting: deque[BrokerClient] = deque()
        self.draining: bool = False
        """Clients are not taken in any more, and new requests are turned down."""
        self.readers: SlowReaders = SlowReaders(most, most_for_all, self._too_slow)
        self._acts: Mapping[Act, Callable[[BrokerClient, int, str, bytes], object]] = {
            Act.TO_SERVER: self._to_server,
            Act.TO_CLIENT: self._to_client,
            Act.CLOSE: self._close,
            Act.TELL: self._tell_closed,
            Act.COUNT_LATE: lambda client, *_: self.drop(client, "late", f"client {client.number} has gone"),
            Act.FREE: lambda client, *_: self.clients.pop(client.number, None),
            Act.NOTHING: lambda *_: None,
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
            self.step(client, Event.SERVER_GONE, 1001, "the server has gone")
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
        server.paused = False
        self._release(server)

    @staticmethod
    def _release(server: Server) -> None:
        held, server.held = server.held, {}
        for client in held:
            client.end.release()

    def introduced(self, server: Server, frame: bytes) -> None:
        """A server of ours says its id, under the number that is nobody's."""
        said = frames.introduction(frame)
        if said is None:
            self.drop(server, "unknown_client", "client 0 is nobody")
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
                self.drop(server, "refused", f"{server.id!r} has introduced itself before")
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
    ) -> BrokerClient | None:
        """A client has connected. None: there is no server for it, and it was closed."""
        server = None if self.draining else self._choose(wanted)
        if server is None:
            self.counters.turned_away += 1
            end.close(1013, f"there is no server {wanted!r} now" if wanted else "there is no server now: try again later")
            return None
        number = self._next_number()
        client = BrokerClient(number, end, send, server, wire.CLIENT.pack(number), params or {})
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

    def client_left(self, client: BrokerClient, reason: str) -> None:
        """A client's connection is gone."""
        self.readers.resumed(client)
        address = client.end.address
        self.step(client, Event.CLIENT_GONE)
        self._tell(ClientLeft(at=self._clock(), address=address, client=client.number, reason=reason))

    def send_away(self, client: BrokerClient, code: int, reason: str) -> None:
        """Close a client. Until its connection is gone, which may take long, it has no say any more."""
        self.step(client, Event.SENT_AWAY, code, reason)

    def _too_slow(self, client: BrokerClient) -> None:
        if client.stage is Stage.OPEN:
            self.counters.slow_clients += 1
            self.step(client, Event.CLIENT_SLOW, 1013, SLOW)

    # -- the table -------------------------------------------------------------------------------------------------------

    def step(self, client: BrokerClient, event: Event, code: int = 1000, reason: str = "", frame: bytes = b"") -> None:
        """Do what the table says of an event."""
        act, following = TABLE[client.stage][event]
        if following is not Stage.OPEN:
            client.server.clients.pop(client.number, None)
            client.server.held.pop(client, None)
        if following is not None:
            client.stage = following
        self._acts[act](client, code, reason, frame)

    def _to_server(self, client: BrokerClient, code: int, reason: str, frame: bytes) -> None:
        client.server.send(client.prefix + frame)
        self.counters.to_servers += 1

    def _to_client(self, client: BrokerClient, code: int, reason: str, frame: bytes) -> None:
        self.send(client, frame[4:])
        self.counters.to_clients += 1

    def send(self, client: BrokerClient, frame: bytes) -> None:
        """Send a frame to a client, which may be too slow for it."""
        client.send(frame)
        if client.paused:
            self.readers.check(client)

    def _close(self, client: BrokerClient, code: int, reason: str, frame: bytes) -> None:
        client.end.close(code, reason)

    def _tell_closed(self, client: BrokerClient, code: int, reason: str, frame: bytes) -> None:
        if not client.server.gone:
            client.server.send(frames.control(client.number, wire.CLOSED))
        client.rests_until = self._clock() + self._rest
        client.end, client.send, client.params = GONE, GONE.send, {}  # of a number that rests nothing is kept but the number
        self._resting.append(client)
        if len(self._resting) > MOST_RESTING:
            self.step(self._resting.popleft(), Event.RESTED)

    # -- time, the end, and events ---------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Free the numbers that have rested long enough."""
        while self._resting and self._resting[0].rests_until <= now:
            self.step(self._resting.popleft(), Event.RESTED)

    def drain(self) -> None:
        """Step 9: close every client."""
        self.draining = True
        for client in list(self.clients.values()):
            self.step(client, Event.DRAIN, 1001, "the broker is leaving")

    def drop(self, party: BrokerClient | Server, reason: str, text: str) -> None:
        """A frame that goes nowhere; too many in a minute end the connection that they came over."""
        self.counters.drop(reason)
        now = self._clock()
        self._tell(FrameDropped(at=now, address=party.end.address, reason=reason, text=text))
        if reason == "late":  # whoever sent it could not know
            return
        offences = party.offences = party.offences or ViolationCounter()
        if offences.add(now) > self._bad_messages:
            text = too_many(self._bad_messages)
            if isinstance(party, Server):
                self.expel(party, 1008, text)
            else:
                self.send_away(party, 1008, text)

    def busy(self) -> bool:
        """True while a client or a server waits for an answer."""
        return any(client.asked > 0 or client.owes > 0 for server in self.servers for client in server.clients.values())

    def stats(self) -> BrokerStats:
        servers: dict[str, int] = {}
        for server in self.servers:
            servers[server.id] = servers.get(server.id, 0) + len(server.clients)
        assigned = sum(servers.values())
        return BrokerStats(
            sockets=len(self.servers),
            servers=servers,
            clients=assigned,
            leaving=len(self.clients) - assigned - len(self._resting),
            resting=len(self._resting),
            held=sum(len(server.held) for server in self.servers),
            **asdict(self.counters),
        )


def _facts(client: BrokerClient) -> dict[str, object]:
    return {"address": client.end.address, "params": dict(client.params)}
