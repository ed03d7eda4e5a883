"""Keeps track of servers, clients, and the clients' numbers and states."""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final

from attrs import asdict, define, field

from ..plugins import Closed, Transport, TransportFeatures
from ..plugins.tools import ViolationCounter, too_many
from ..protocols.csb import wire
from . import events, frames
from .events import BrokerCounters, BrokerStats, DropReason


class Stage(enum.Enum):
    OPEN = "open"  # The client is connected, and its server knows it
    LEAVING = "leaving"
    RESTING = "resting"
    """The connection has closed. Its number cannot be reused yet, because frames with that number may still be in flight."""


class Event(enum.Enum):
    CLIENT_SPEAKS = "client speaks"
    SERVER_SPEAKS = "server speaks"
    SENT_AWAY = "sent away"  # By its server or for the end of its server (steps 7.1 and 8.1), or by the broker
    CLIENT_GONE = "client gone"
    RESTED = "rested"


class _Gone:
    """In place of the transport of a client that has left."""

    address = "a connection that is gone"

    def send(self, frame: bytes) -> None:
        pass

    def write_backlog(self) -> int:
        return 0


GONE: Final[Any] = _Gone()


@define(eq=False)
class Server:
    end: Transport
    id: str = ""
    instance: str = ""
    registered: bool = False
    paused: bool = False
    gone: bool = False  # True if the connection is closed or closing
    offences: ViolationCounter | None = None
    send: Callable[[bytes], None] = field(init=False)
    clients: dict[int, BrokerClient] = field(factory=dict)  # Clients by number. The server may send only to these clients.
    held: dict[BrokerClient, None] = field(factory=dict)  # Clients that the broker does not read from while this server is slow

    def __attrs_post_init__(self) -> None:
        self.send = self.end.send


@define(eq=False)
class BrokerClient:
    number: int
    end: Transport
    server: Server
    params: Mapping[str, str]
    stage: Stage = Stage.OPEN
    paused: bool = False
    rests_until: float = 0.0
    asked: int = 0  # Number of forwarded requests that the server has not answered
    owes: int = 0  # Number of requests that this client has not answered
    waiting: int = 0  # Number of unread bytes when last counted. Only counted while the client is `paused`.
    offences: ViolationCounter | None = None
    send: Callable[[bytes], None] = field(init=False)
    prefix: bytes = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.send = self.end.send
        self.prefix = wire.CLIENT.pack(self.number)

    def is_open(self) -> bool:
        return self.stage is Stage.OPEN


SLOW: Final = "too slow: it does not read what is sent to it"


class SlowReaders:
    """Closes each client with more than `most` unread bytes. If all together exceed `most_for_all`, closes the slowest one."""

    def __init__(self, most: int, most_for_all: int, too_slow: Callable[[BrokerClient], None]) -> None:
        self._most = most
        self._most_for_all = most_for_all
        self._too_slow = too_slow
        self._slow: dict[BrokerClient, None] = {}  # Paused clients, including clients that are being closed
        self.waiting: int = 0  # Total number of bytes that the paused clients have not read

    def paused(self, client: BrokerClient) -> None:
        client.paused = True
        self._slow[client] = None
        self.check(client)

    def resumed(self, client: BrokerClient) -> None:
        client.paused = False
        if client in self._slow:
            del self._slow[client]
            self.waiting -= client.waiting
            client.waiting = 0

    def check(self, client: BrokerClient) -> None:
        if self._count_waiting(client) > self._most:
            self._too_slow(client)
        elif self.waiting > self._most_for_all:
            for other in self._slow:  # they may have read by now
                self._count_waiting(other)
            if self.waiting > self._most_for_all:
                greediest = max(self._slow, key=lambda other: other.waiting)
                self._too_slow(greediest)
                greediest.end.abort(Closed(1013, SLOW))  # frees its unread bytes at once
                self.resumed(greediest)

    def _count_waiting(self, client: BrokerClient) -> int:
        waiting = client.end.write_backlog()
        self.waiting += waiting - client.waiting
        client.waiting = waiting
        return waiting


REST: Final = 60.0  # Seconds before a client number can be reused
MOST_RESTING: Final = 100_000
"""Maximum number of resting client numbers. Beyond that, the oldest can be reused, but only after billions of unused ones."""
_NUMBERS: Final = 0xFFFFFFFF


class ClientRegistry:
    """Registers the servers and clients of a broker. See `SlowReaders` for `most` and `most_for_all`.

    Only a client's own server knows the client's number.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        *,
        most: int = 4 * 1024 * 1024,
        most_for_all: int = 64 * 1024 * 1024,
        bad_messages: int = 200,
        rest: float = REST,
        tell: Callable[[events.BrokerEvent], None] = lambda event: None,
    ) -> None:
        self._clock = clock
        self._bad_messages = bad_messages
        self._rest = rest
        self._tell = tell
        self._last = 0
        self.counters: BrokerCounters = BrokerCounters()
        self.servers: dict[Server, None] = {}
        self.clients: dict[int, BrokerClient] = {}  # Clients by number, regardless of their stage
        self._resting: deque[BrokerClient] = deque()
        self.draining: bool = False  # True if the broker rejects new clients and requests
        self.readers: SlowReaders = SlowReaders(most, most_for_all, self._too_slow)

    # -- servers: steps 2 and 8 ------------------------------------------------------------------------------------------

    def server_joined(self, end: Transport, id: str = "") -> Server | None:
        """Add a server. If its id is already in use, close the server and return None."""
        server = Server(end)
        if id and not self._name(server, id, ""):
            end.close(1008, f"the server id {id!r} is in use")
            return None
        self.servers[server] = None
        self.counters.servers_accepted_total += 1
        self._tell(events.ServerJoined(at=self._clock(), address=end.address, server=server.id))
        return server

    def _name(self, server: Server, id: str, instance: str) -> bool:
        for other in self.servers:
            if other is not server and other.id == id and not (instance and other.instance == instance):
                return False
        server.id, server.instance = id, instance
        return True

    def server_left(self, server: Server, reason: str) -> None:
        if self.servers.pop(server, 0) == 0:
            return
        server.gone = True
        left = list(server.clients.values())
        self._release(server)
        for client in left:
            self.send_away(client, 1001, "the server has gone")
        self._tell(
            events.ServerLeft(at=self._clock(), address=server.end.address, server=server.id, clients=len(left), reason=reason)
        )

    def expel(self, server: Server, code: int, reason: str) -> None:
        """Disconnect a server. The broker ignores its later frames and assigns no clients to it."""
        if not server.gone:
            server.end.close(code, reason)
            self.server_left(server, reason)

    def server_paused(self, server: Server) -> None:
        """Mark a server as slow. The broker then stops reading from each client that sends to the server."""
        server.paused = True

    def server_resumed(self, server: Server) -> None:
        server.paused = False
        self._release(server)

    @staticmethod
    def _release(server: Server) -> None:
        held, server.held = server.held, {}
        for client in held:
            TransportFeatures.of(client.end).resume_reading()

    def introduced(self, server: Server, frame: bytes) -> None:
        """Handle a polybus server's introduction, which is a frame to client number 0."""
        said = frames.introduction(frame)
        if said is None:
            self.drop(server, "unknown_client", "client number 0 belongs to the broker")
        elif server.id and server.clients and said[0] != server.id:
            text = f"this is {server.id!r}: it already has clients, so it cannot be renamed to {said[0]!r}"
            server.send(frames.welcome(frame, text))
            self.counters.drop("refused")
        elif not self._name(server, *said):
            text = f"the server id {said[0]!r} is in use by another server"
            server.send(frames.welcome(frame, text))
            self.counters.drop("refused")
            self.expel(server, 1008, text)
        else:
            if server.registered:
                self.drop(server, "refused", f"{server.id!r} has already introduced itself")
                if server.gone:
                    return
            else:  # send the facts about its existing clients
                server.registered = True
                for client in server.clients.values():
                    server.send(frames.control(client.number, wire.CONNECTED, _facts(client)))
            server.send(frames.welcome(frame))

    # -- clients: steps 3, 6 and 7 ---------------------------------------------------------------------------------------

    def client_joined(self, end: Transport, wanted: str = "", params: Mapping[str, str] | None = None) -> BrokerClient | None:
        """Add a client. If no server is available for it, close the client and return None."""
        server = None if self.draining else self._choose(wanted)
        if server is None:
            self.counters.clients_rejected_total += 1
            end.close(1013, f"the server {wanted!r} is not connected" if wanted else "no server is connected: try again later")
            return None
        number = self._next_number()
        client = BrokerClient(number, end, server, params or {})
        self.clients[number] = server.clients[number] = client
        self.counters.clients_accepted_total += 1
        server.send(frames.control(number, wire.CONNECTED, _facts(client) if server.registered else None))
        self._tell(events.ClientJoined(at=self._clock(), address=end.address, client=number, server=server.id))
        return client

    def _choose(self, wanted: str) -> Server | None:
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
        self.readers.resumed(client)
        address = client.end.address
        self.step(client, Event.CLIENT_GONE)
        self._tell(events.ClientLeft(at=self._clock(), address=address, client=client.number, reason=reason))

    def send_away(self, client: BrokerClient, code: int, reason: str) -> None:
        self.step(client, Event.SENT_AWAY, code, reason)

    def _too_slow(self, client: BrokerClient) -> None:
        if client.stage is Stage.OPEN:
            self.counters.clients_too_slow_total += 1
            self.send_away(client, 1013, SLOW)

    # -- the table -------------------------------------------------------------------------------------------------------

    def step(self, client: BrokerClient, event: Event, code: int = 1000, reason: str = "", frame: bytes = b"") -> None:
        act, following = TABLE[client.stage][event]
        if following is not Stage.OPEN:
            client.server.clients.pop(client.number, None)
            client.server.held.pop(client, None)
        if following is not None:
            client.stage = following
        if act is not None:
            act(self, client, code, reason, frame)

    def _to_server(self, client: BrokerClient, code: int, reason: str, frame: bytes) -> None:
        client.server.send(client.prefix + frame)
        self.counters.frames_to_servers_total += 1

    def _to_client(self, client: BrokerClient, code: int, reason: str, frame: bytes) -> None:
        self.send(client, frame[4:])
        self.counters.frames_to_clients_total += 1

    def send(self, client: BrokerClient, frame: bytes) -> None:
        client.send(frame)
        if client.paused:
            self.readers.check(client)

    def _close(self, client: BrokerClient, code: int, reason: str, frame: bytes) -> None:
        client.end.close(code, reason)

    def _count_late(self, client: BrokerClient, code: int, reason: str, frame: bytes) -> None:
        self.drop(client, "late", f"client {client.number} has gone")

    def _free(self, client: BrokerClient, code: int, reason: str, frame: bytes) -> None:
        self.clients.pop(client.number, None)

    def _tell_closed(self, client: BrokerClient, code: int, reason: str, frame: bytes) -> None:
        if not client.server.gone:
            client.server.send(frames.control(client.number, wire.CLOSED))
        client.rests_until = self._clock() + self._rest
        client.end, client.send, client.params = GONE, GONE.send, {}  # a resting client keeps only its number
        self._resting.append(client)
        if len(self._resting) > MOST_RESTING:
            self.step(self._resting.popleft(), Event.RESTED)

    # -- time, the end, and events ---------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        while self._resting and self._resting[0].rests_until <= now:
            self.step(self._resting.popleft(), Event.RESTED)

    def drain(self) -> None:
        self.draining = True
        for client in list(self.clients.values()):
            self.send_away(client, 1001, "the broker is shutting down")

    def drop(self, party: BrokerClient | Server, reason: DropReason, text: str) -> None:
        """Count a dropped frame. Closes the sender's connection if it sent too many invalid frames within a minute."""
        self.counters.drop(reason)
        now = self._clock()
        self._tell(events.FrameDropped(at=now, address=party.end.address, reason=reason, text=text))
        if reason == "late":  # not the sender's fault
            return
        offences = party.offences = party.offences or ViolationCounter()
        if offences.add(now) > self._bad_messages:
            text = too_many(self._bad_messages)
            if isinstance(party, Server):
                self.expel(party, 1008, text)
            else:
                self.send_away(party, 1008, text)

    def busy(self) -> bool:
        return any(client.asked > 0 or client.owes > 0 for server in self.servers for client in server.clients.values())

    def stats(self) -> BrokerStats:
        servers: dict[str, int] = {}
        for server in self.servers:
            servers[server.id] = servers.get(server.id, 0) + len(server.clients)
        assigned = sum(servers.values())
        return BrokerStats(
            sockets=len(self.servers),
            server_clients=servers,
            clients=assigned,
            clients_closing=len(self.clients) - assigned - len(self._resting),
            client_numbers_reserved=len(self._resting),
            clients_paused=sum(len(server.held) for server in self.servers),
            **asdict(self.counters),
        )


_Act = Callable[[ClientRegistry, BrokerClient, int, str, bytes], None]
_OPEN, _LEAVING, _RESTING = Stage.OPEN, Stage.LEAVING, Stage.RESTING


def _ignoring(stage: Stage) -> dict[Event, tuple[_Act | None, Stage | None]]:
    late = dict.fromkeys((Event.CLIENT_SPEAKS, Event.SERVER_SPEAKS), (ClientRegistry._count_late, stage))
    return {**dict.fromkeys(Event, (None, stage)), **late}


TABLE: Final[Mapping[Stage, Mapping[Event, tuple[_Act | None, Stage | None]]]] = {
    Stage.OPEN: {
        Event.CLIENT_SPEAKS: (ClientRegistry._to_server, _OPEN),  # steps 4.1 and 5.3
        Event.SERVER_SPEAKS: (ClientRegistry._to_client, _OPEN),  # steps 4.3 and 5.1
        Event.SENT_AWAY: (ClientRegistry._close, _LEAVING),  # steps 7.1 and 8.1
        Event.CLIENT_GONE: (ClientRegistry._tell_closed, _RESTING),  # step 6.1
        Event.RESTED: (None, _OPEN),
    },
    Stage.LEAVING: {**_ignoring(_LEAVING), Event.CLIENT_GONE: (ClientRegistry._tell_closed, _RESTING)},
    Stage.RESTING: {**_ignoring(_RESTING), Event.RESTED: (ClientRegistry._free, None)},
}
"""Action and next stage for each stage and event (CSB document, "Workflow with broker"). The stage None frees the number."""


def _facts(client: BrokerClient) -> dict[str, object]:
    return {"address": client.end.address, "params": dict(client.params)}
