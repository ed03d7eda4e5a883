"""The life of a client is a table, and the table is total."""

from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from polybus.broker.exchange import Exchange
from polybus.broker.registry import REST, TABLE, BrokerClient, ClientRegistry, Stage
from polybus.plugins import Closed, Receiver


def test_every_stage_can_be_reached_and_left() -> None:
    reached = {following for row in TABLE.values() for _, following in row.values()} - {None}
    assert reached == set(Stage)
    assert all(any(following is not stage for _, following in row.values()) for stage, row in TABLE.items())


def test_nobody_comes_back_to_life() -> None:
    order = list(Stage)
    for stage, row in TABLE.items():
        for _, following in row.values():
            assert following is None or order.index(following) >= order.index(stage)


def made_exchange(clock: Callable[[], float], *, most_for_server: int = 64 * 1024 * 1024, **options: Any) -> Exchange:
    return Exchange(ClientRegistry(clock, **options), most_for_server)


class Wire:
    """A transport that remembers what was done to it."""

    name, address = "wire", "here"
    max_frame, hops = 2**20, 0

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.closed: tuple[int, str] | None = None
        self.held = False
        self.waits = 0

    @property
    def code(self) -> int | None:
        """With which it was closed."""
        return self.closed and self.closed[0]

    def send(self, frame: bytes) -> None:
        self.sent.append(frame)

    def start(self, receiver: Receiver) -> None:
        raise AssertionError("an exchange only sends to and closes its transports")

    def tick(self, now: float) -> None:
        raise AssertionError("an exchange only sends to and closes its transports")

    def write_backlog(self) -> int:
        return self.waits

    def close(self, code: int = 1000, reason: str = "") -> None:
        self.closed = self.closed or (code, reason)

    def abort(self, why: Closed) -> None:
        self.closed = self.closed or (why.code, why.reason)
        self.waits = 0

    def pause_reading(self) -> None:
        self.held = True

    def resume_reading(self) -> None:
        self.held = False


@given(st.lists(st.tuples(st.integers(0, 11), st.integers(0, 5)), max_size=40))
def test_whatever_happens_numbers_and_owners_stay_in_order(happenings: list[tuple[int, int]]) -> None:
    now = [0.0]
    exchange = made_exchange(lambda: now[0])
    servers, clients = list[Any](), list[BrokerClient]()

    def server_joins(_: int) -> None:
        wire = Wire()
        servers.append(exchange.registry.server_joined(wire))

    def client_joins(_: int) -> None:
        wire = Wire()
        client = exchange.registry.client_joined(wire)
        if client is not None:
            clients.append(client)
        else:
            assert wire.closed is not None
            assert wire.closed[0] == 1013

    def with_client(act: Callable[[BrokerClient], None]) -> Callable[[int], None]:
        return lambda index: act(clients[index % len(clients)]) if clients else None

    def with_server(act: Callable[[Any], None]) -> Callable[[int], None]:
        return lambda index: act(servers[index % len(servers)]) if servers else None

    def pass_time(_: int) -> None:
        now[0] += REST / 3
        exchange.registry.tick(now[0])

    does: list[Callable[[int], None]] = [
        server_joins,
        client_joins,
        client_joins,
        with_client(lambda client: exchange.from_client(client, [bytes.fromhex("1000000100000007")])),
        with_server(lambda server: exchange.from_server(server, [b"\0\0\0\1" + bytes.fromhex("1000000100000007")])),
        with_server(lambda server: exchange.from_server(server, [b"\0\0\0\1" + bytes.fromhex("f000000000000000")])),
        with_client(lambda client: exchange.registry.client_left(client, "")),
        with_server(lambda server: exchange.registry.server_left(server, "")),
        pass_time,
        with_client(exchange.registry.readers.paused),
        with_client(exchange.registry.readers.resumed),
        with_client(lambda client: exchange.registry.send_away(client, 1008, "")),
    ]
    for what, index in happenings:
        does[what](index)
        known = [client for client in exchange.registry.clients.values() if client.stage is Stage.OPEN]
        assert sum(len(server.clients) for server in exchange.registry.servers) == len(known)
        for client in known:
            assert client.server.clients[client.number] is client
            assert client.server in exchange.registry.servers
        assert len({client.number for client in exchange.registry.clients.values()}) == len(exchange.registry.clients)
        assert all(number not in server.clients for server in servers if server.gone for number in exchange.registry.clients)
        stats = exchange.registry.stats()
        assert stats.clients + stats.clients_closing + stats.client_numbers_reserved == len(exchange.registry.clients)
    now[0] += 10 * REST
    for client in clients:
        exchange.registry.client_left(client, "")
    now[0] += 10 * REST
    exchange.registry.tick(now[0])
    assert not exchange.registry.clients
