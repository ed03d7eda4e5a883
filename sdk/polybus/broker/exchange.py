"""Who belongs to whom, and the way of every frame: the broker without its sockets.

Nothing is decoded but the header. A client's number comes from here alone, and is known only to the socket of the server that
the client is assigned to: so neither side can speak for, or to, anybody else.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

import msgspec
from attrs import define, field

from ..errors import Code, TooLarge
from ..protocols.csb import wire
from .events import BrokerEvent, ClientJoined, ClientLeft, FrameDropped, ServerJoined, ServerLeft
from .stats import BrokerStats, Counters
from .table import TABLE, Act, Event, Stage

__all__ = ["REST", "Client", "End", "Exchange", "Server"]

REST: Final = 60.0
"""Seconds for which the number of a client that has gone is not given again."""
_BROKER: Final = 0
_NUMBERS: Final = 0xFFFFFFFF
_FRAME: Final = struct.Struct(">IB")
_FIRST_BAD: Final = 0x10
_PAST_GOOD: Final = 0x30
"""First bytes from here on are no requests and no responses."""
_BAD_REQUEST: Final = 0xCC
_INTERNAL: Final = 0xD0
_TOO_LARGE: Final = 0xD1
_encode: Final = msgspec.json.Encoder().encode
_SAYABLE: Final = range(1000, 5000)


class End(Protocol):
    """A connection as the exchange sees it."""

    @property
    def address(self) -> str:
        """Of the other end."""
        ...

    def send(self, frame: bytes) -> None:
        """Hand over a frame without waiting."""
        ...

    def backlog(self) -> int:
        """Bytes that the operating system has not taken."""
        ...

    def close(self, code: int, reason: str) -> None:
        """Write what was sent, and close."""
        ...

    def hold(self) -> None:
        """Read nothing for now."""
        ...

    def release(self) -> None:
        """Go on reading."""
        ...


@define(eq=False)
class Server:
    """One socket of a server, and the clients on it."""

    end: End
    send: Callable[[bytes], None]
    id: str = ""
    instance: str = ""
    registered: bool = False
    paused: bool = False
    gone: bool = False
    clients: dict[int, Client] = field(factory=dict)
    """Those that are open: what is not in here it has no say in."""
    held: dict[Client, None] = field(factory=dict)
    """Clients that are not read from until it takes more."""


@define(eq=False)
class Client:
    """One client."""

    number: int
    end: End
    send: Callable[[bytes], None]
    server: Server
    prefix: bytes
    stage: Stage = Stage.OPEN
    paused: bool = False
    rests_until: float = 0.0


class Exchange:
    """Servers, clients and the numbers between them. `most` is how many bytes may wait for a client."""

    def __init__(
        self,
        clock: Callable[[], float],
        *,
        most: int = 4 * 1024 * 1024,
        most_for_server: int = 64 * 1024 * 1024,
        rest: float = REST,
        tell: Callable[[BrokerEvent], None] = lambda event: None,
    ) -> None:
        self._clock = clock
        self._most = most
        self._most_for_server = most_for_server
        self._rest = rest
        self._tell = tell
        self._last = 0
        self.counters: Counters = Counters()
        self.servers: dict[Server, None] = {}
        self.clients: dict[int, Client] = {}
        """All numbers that are in use, also of those that are leaving or resting."""
        self._resting: deque[Client] = deque()
        self.draining: bool = False

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
        """A server's socket is gone: so are the clients on it."""
        if self.servers.pop(server, 0) == 0:
            return
        server.gone = True
        left = list(server.clients.values())
        self._release(server)
        for client in left:
            self._step(client, Event.SERVER_GONE, 1001, "the server has gone")
        self._tell(ServerLeft(at=self._clock(), address=server.end.address, server=server.id, clients=len(left), reason=reason))

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

    def from_server(self, server: Server, frames: Sequence[bytes]) -> None:
        """Steps 4.2, 5 and 7: what a server has sent."""
        clients = server.clients
        unpack = _FRAME.unpack_from
        count = 0
        for frame in frames:
            if len(frame) >= 12:
                number, first = unpack(frame)
                client = clients.get(number)
                if client is not None and _FIRST_BAD <= first < _PAST_GOOD:
                    client.send(frame[4:])
                    count += 1
                    if client.paused:
                        self._check_reader(client)
                    continue
            self._odd_from_server(server, frame)
        self.counters.to_clients += count

    def _odd_from_server(self, server: Server, frame: bytes) -> None:
        if len(frame) < 12:
            self._drop(server.end, "truncated", f"{len(frame)} of the 12 bytes of a header")
            return
        number, first = _FRAME.unpack_from(frame)
        kind = first >> 4
        if number == _BROKER:
            self._introduced(server, frame)
        elif kind not in (wire.REQUEST, wire.RESPONSE, wire.CLOSE):
            reason = "forbidden_kind" if kind in wire.CONTROL_WORDS else "unknown_kind"
            self._drop(server.end, reason, f"kind {kind:#x} from a server")
            if reason == "forbidden_kind":
                server.end.close(1008, f"a server says neither Connected nor Closed (kind {kind:#x})")
        else:
            self._about_client(server, number, kind, frame)

    def _about_client(self, server: Server, number: int, kind: int, frame: bytes) -> None:
        client = self.clients.get(number)
        if client is None:
            self._drop(server.end, "unknown_client", f"client {number} is not known")
            self._control(server, number, wire.CLOSED)
        elif client.server is not server and not (server.id and server.id == client.server.id):
            self._drop(server.end, "not_your_client", f"client {number} is another server's")
            server.end.close(1008, f"client {number} is not yours")
        elif kind == wire.CLOSE:
            code, reason = _said(frame)
            self._step(client, Event.SERVER_CLOSES, code, reason)
        else:
            self._step(client, Event.SERVER_SPEAKS, frame=frame)

    def _introduced(self, server: Server, frame: bytes) -> None:
        """A server of ours says its id, under the number that is nobody's."""
        first, _, number, action = wire.HEADER.unpack_from(frame, 4)
        said = _object(frame[12:]) if first >> 4 == wire.REQUEST and action == wire.HELLO else {}
        id, instance = said.get("server"), said.get("instance")
        if not (isinstance(id, str) and 0 < len(id) <= 256 and isinstance(instance, str)):
            self._drop(server.end, "unknown_client", "client 0 is nobody")
            return
        if not self._name(server, id, instance[:64]):
            text = f"the server id {id!r} is taken: another server has it"
            self._answer(server, number, _INTERNAL, {"code": int(Code.ALREADY_EXISTS), "text": text})
            self.counters.drop("refused")
            server.end.close(1008, text)
            return
        server.registered = True
        self._answer(server, number, 0, {"v": 1})

    @staticmethod
    def _answer(server: Server, number: int, result: int, said: Mapping[str, Any]) -> None:
        head = wire.HEADER.pack(wire.RESPONSE << 4 | wire.JSON, result, number, wire.HELLO)
        server.send(wire.CLIENT.pack(_BROKER) + head + _encode(said))

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
        client = Client(number, end, send, server, wire.CLIENT.pack(number))
        self.clients[number] = server.clients[number] = client
        self.counters.clients_total += 1
        facts = {"address": end.address, "params": dict(params or {})} if server.registered else None
        self._control(server, number, wire.CONNECTED, facts)
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
        self._step(client, Event.CLIENT_GONE)
        self._tell(ClientLeft(at=self._clock(), address=client.end.address, client=client.number, reason=reason))

    def client_paused(self, client: Client) -> None:
        """It reads too slowly."""
        client.paused = True
        self._check_reader(client)

    def client_resumed(self, client: Client) -> None:
        """It takes more."""
        client.paused = False

    def _check_reader(self, client: Client) -> None:
        """A client that does not read must not cost its server, nor the others, more than this."""
        if client.stage is Stage.OPEN and client.end.backlog() > self._most:
            self.counters.slow_clients += 1
            self._step(client, Event.CLIENT_SLOW, 1013, "too slow: it does not read what is sent to it")

    def from_client(self, client: Client, frames: Sequence[bytes]) -> None:
        """Steps 4 and 5.2: what a client has sent."""
        if client.stage is not Stage.OPEN:
            for frame in frames:
                self._step(client, Event.CLIENT_SPEAKS, frame=frame)
            return
        server = client.server
        send, prefix = server.send, client.prefix
        count = 0
        for frame in frames:
            if len(frame) >= 8 and _FIRST_BAD <= frame[0] < _PAST_GOOD:
                try:
                    send(prefix + frame)
                    count += 1
                except TooLarge:
                    self._refuse_client(client, frame, _TOO_LARGE, "too_large", "too large to be handed on with a header")
            else:
                self._odd_from_client(client, frame)
        self.counters.to_servers += count
        if server.paused:
            self._hold(server, client)

    def _hold(self, server: Server, client: Client) -> None:
        """The server is slow: this client waits, in its own socket."""
        if client.stage is Stage.OPEN and client not in server.held:
            server.held[client] = None
            client.end.hold()
        if server.end.backlog() > self._most_for_server:
            server.end.close(1013, "too slow: it does not read what is sent to it")

    def _odd_from_client(self, client: Client, frame: bytes) -> None:
        if len(frame) < 8:
            self._drop(client.end, "truncated", f"{len(frame)} of the 8 bytes of a header")
            return
        kind = frame[0] >> 4
        if kind in wire.CONTROL_WORDS:
            self._drop(client.end, "forbidden_kind", f"{wire.CONTROL_WORDS[kind]} from a client")
            client.end.close(1008, f"a client says neither Connected nor Closed nor Close (kind {kind:#x})")
        else:
            self._refuse_client(client, frame, _BAD_REQUEST, "unknown_kind", f"kind {kind:#x} is not defined in CSB")

    def _refuse_client(self, client: Client, frame: bytes, result: int, reason: str, text: str) -> None:
        self._drop(client.end, reason, text)
        _, _, number, action = wire.HEADER.unpack_from(frame)
        said: dict[str, Any] = {"code": int(Code.INVALID_ARGUMENT), "text": text}
        if result == _TOO_LARGE:
            said = {"code": int(Code.RESOURCE_EXHAUSTED), "reason": "too_large", "text": text}
        client.send(wire.HEADER.pack(wire.RESPONSE << 4 | wire.JSON, result, number, action) + _encode(said))

    # -- the table -------------------------------------------------------------------------------------------------------

    def _step(self, client: Client, event: Event, code: int = 1000, reason: str = "", frame: bytes = b"") -> None:
        act, following = TABLE[client.stage][event]
        if following is not Stage.OPEN:
            client.server.clients.pop(client.number, None)
            client.server.held.pop(client, None)
        if following is not None:
            client.stage = following
        self._acts[act](self, client, code, reason, frame)

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
        client.rests_until = self._clock() + self._rest
        self._resting.append(client)
        if not client.server.gone:
            self._control(client.server, client.number, wire.CLOSED)

    def _count_late(self, client: Client, code: int, reason: str, frame: bytes) -> None:
        self._drop(client.end, "late", f"client {client.number} has gone")

    def _free(self, client: Client, code: int, reason: str, frame: bytes) -> None:
        self.clients.pop(client.number, None)

    def _nothing(self, client: Client, code: int, reason: str, frame: bytes) -> None:
        """So it is."""

    _acts: Final[Mapping[Act, Callable[[Exchange, Client, int, str, bytes], None]]] = {
        Act.TO_SERVER: _to_server,
        Act.TO_CLIENT: _to_client,
        Act.CLOSE: _close,
        Act.TELL: _tell_closed,
        Act.COUNT_LATE: _count_late,
        Act.FREE: _free,
        Act.NOTHING: _nothing,
    }

    @staticmethod
    def _control(server: Server, number: int, kind: int, facts: Mapping[str, Any] | None = None) -> None:
        payload = b"" if facts is None else _encode(facts)
        encoding = wire.BINARY if facts is None else wire.JSON
        server.send(wire.CLIENT.pack(number) + wire.HEADER.pack(kind << 4 | encoding, 0, 0, 0) + payload)

    # -- time, the end, and what is told ---------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Free the numbers that have rested long enough."""
        while self._resting and self._resting[0].rests_until <= now:
            self._step(self._resting.popleft(), Event.RESTED)

    def drain(self) -> None:
        """Step 9: take nobody in any more, and close every client."""
        self.draining = True
        for client in list(self.clients.values()):
            self._step(client, Event.DRAIN, 1001, "the broker is leaving")

    def _drop(self, end: End, reason: str, text: str) -> None:
        self.counters.drop(reason)
        self._tell(FrameDropped(at=self._clock(), address=end.address, reason=reason, text=text))

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


def _object(data: bytes) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(data)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _said(frame: bytes) -> tuple[int, str]:
    """What a server of ours says in a Close: code and reason for the client's connection."""
    said = _object(frame[12:]) if len(frame) > 12 else {}
    code, reason = said.get("code"), said.get("reason")
    good = type(code) is int and code in _SAYABLE
    return code if good else 1000, reason[:100] if isinstance(reason, str) else ""  # type: ignore[return-value]
