"""Who belongs to whom, without sockets."""

import json
import re
from pathlib import Path
from typing import Any, get_args

import pytest
from attrs import fields
from prometheus_client.parser import text_string_to_metric_families

from polybus.broker.events import BrokerStats, DropReason
from polybus.broker.exchange import Exchange
from polybus.broker.registry import REST, BrokerClient, Server, Stage
from polybus.capture.schema import QUARANTINE_REASONS
from polybus.errors import TooLarge
from polybus.prometheus import broker_text

from .test_table import Wire, made_exchange

REQUEST = bytes.fromhex("10 00 0001 00000007")
HELLO = b"\0\0\0\0" + bytes.fromhex("12000000ffff0000") + b'{"v":1,"server":"%s","instance":"%s"}'


def joined(exchange: Exchange, id: str = "") -> tuple[Wire, Server]:
    wire = Wire()
    server = exchange.registry.server_joined(wire, id)
    assert server is not None
    return wire, server


def entered(exchange: Exchange, wanted: str = "") -> tuple[Wire, BrokerClient]:
    wire = Wire()
    client = exchange.registry.client_joined(wire, wanted)
    assert client is not None
    return wire, client


def one_of_each(**options: Any) -> tuple[Exchange, tuple[Wire, Server], tuple[Wire, BrokerClient]]:
    exchange = made_exchange(lambda: 0.0, **options)
    return exchange, joined(exchange), entered(exchange)


def test_clients_are_spread_over_the_least_loaded() -> None:
    exchange = made_exchange(lambda: 0.0)
    servers = [joined(exchange)[1] for _ in range(3)]
    clients = [entered(exchange)[1] for _ in range(9)]
    assert [len(server.clients) for server in servers] == [3, 3, 3]
    exchange.registry.client_left(clients[0], "")
    exchange.registry.client_left(clients[3], "")
    assert {entered(exchange)[1].server for _ in range(2)} == {servers[0]}


def test_a_client_may_ask_for_its_server() -> None:
    exchange = made_exchange(lambda: 0.0)
    joined(exchange, "a")
    _, other = joined(exchange, "b")
    assert all(entered(exchange, "b")[1].server is other for _ in range(3))
    wire = Wire()
    assert exchange.registry.client_joined(wire, "c") is None
    assert wire.closed == (1013, "the server 'c' is not connected")
    assert exchange.registry.stats().clients_rejected_total == 1


def test_requests_of_either_side_that_wait_for_their_answer_are_counted_and_nothing_else_is() -> None:
    exchange, (_, server), (wire, client) = one_of_each()
    asked = ["10000001 00000007", "12000002 ffff0004 000161", "10000003 ffff0005 000000007fffffff", "10000004 ff000001"]
    other = ["10000000 ffff0003 000161", "10000005 ffff0007", "10000005 ffff0009 ff", "10000001 ffff0008 00000007"]
    exchange.from_client(client, [bytes.fromhex(frame) for frame in asked + other])
    assert (client.asked, exchange.registry.busy()) == (4, True)
    for frame in ["20000005 ffff0009 01", "20000005 ffff000b", "10000001 ffff0000", *[f"20{frame[2:17]}" for frame in asked]]:
        assert exchange.registry.busy()
        exchange.from_server(server, [client.prefix + bytes.fromhex(frame)])
    assert (client.asked, exchange.registry.busy()) == (0, False)
    exchange.from_server(server, [client.prefix + REQUEST] * 2)
    for _ in range(2):
        assert exchange.registry.busy()
        exchange.from_client(client, [bytes.fromhex("20 00 0001 00000007")])
    assert not exchange.registry.busy()
    exchange.registry.draining = True
    wire.sent.clear()
    exchange.from_client(client, [bytes.fromhex("12000009 ffff0004 000161"), bytes.fromhex("20000001 00000007")])
    exchange.from_client(client, [bytes.fromhex(frame) for frame in ("12000008 ffff0007", "12000008 ffff0009 31")])
    assert [frame.hex()[:16] for frame in wire.sent] == ["22d00009ffff0004", "22d00008ffff0007"]
    assert client.asked == 0


def test_a_number_is_not_given_again_while_it_rests() -> None:
    now = [0.0]
    exchange = made_exchange(lambda: now[0])
    server_wire, server = joined(exchange)
    _, client = entered(exchange)
    exchange.registry.client_left(client, "")
    exchange.registry._last = client.number - 1  # as after four thousand million clients
    assert entered(exchange)[1].number == client.number + 1
    server_wire.sent.clear()
    exchange.from_server(server, [client.prefix + REQUEST])
    assert exchange.registry.stats().frames_dropped_total == {"late": 1}
    assert server_wire.sent == []
    now[0] = REST
    exchange.registry.tick(now[0])
    exchange.registry._last = client.number - 1
    assert entered(exchange)[1].number == client.number


def test_a_number_that_is_nobodys_is_counted_and_said_to_be_closed() -> None:
    exchange = made_exchange(lambda: 0.0)
    wire, server = joined(exchange)
    exchange.from_server(server, [bytes.fromhex("ffffffff 1000000100000001")])
    assert exchange.registry.stats().frames_dropped_total == {"unknown_client": 1}
    assert wire.sent == [bytes.fromhex("ffffffff e000000000000000")]
    assert wire.closed is None


@pytest.mark.parametrize(
    ("frame", "reason"),
    [*((f"{kind}00000100000007", "not_your_client") for kind in ("f0", "10", "20")), ("e000000000000000", "forbidden_kind")],
)
def test_a_server_that_speaks_for_another_or_like_a_broker_is_closed_with_its_own_clients(frame: str, reason: str) -> None:
    exchange, (wire, server), (own_wire, _) = one_of_each()
    joined(exchange)
    foreign_wire, foreign = entered(exchange)
    assert foreign.server is not server
    exchange.from_server(server, [foreign.prefix + bytes.fromhex(frame)])
    assert wire.code == 1008
    assert own_wire.closed == (1001, "the server has gone")
    assert (foreign_wire.sent, foreign_wire.closed) == ([], None)
    assert exchange.registry.stats().frames_dropped_total == {reason: 1}


def test_the_sockets_of_one_server_may_speak_to_its_clients() -> None:
    exchange = made_exchange(lambda: 0.0)
    one, two = joined(exchange)[1], joined(exchange)[1]
    for server in (one, two):
        exchange.from_server(server, [HELLO % (b"A", b"i")])
    wire, client = entered(exchange)
    other = two if client.server is one else one
    exchange.from_server(other, [client.prefix + REQUEST])
    assert wire.sent == [REQUEST]


def test_an_id_belongs_to_one_instance() -> None:
    exchange = made_exchange(lambda: 0.0)
    wire, server = joined(exchange)
    other_wire, other = joined(exchange)
    exchange.from_server(server, [HELLO % (b"A", b"one")])
    assert wire.sent == [bytes.fromhex("00000000 22000000ffff0000") + b'{"v":1}']
    exchange.from_server(other, [HELLO % (b"A", b"two")])
    assert other_wire.sent[0][:12] == bytes.fromhex("00000000 22d00000ffff0000")
    assert other_wire.code == 1008
    assert wire.closed is None
    third = Wire()
    assert exchange.registry.server_joined(third, "A") is None
    assert third.closed is not None


@pytest.mark.parametrize("said", [b"", b"{", b"[]", b'{"server":""}', b'{"server":5,"instance":""}', b'{"server":"a"}'])
def test_client_0_is_nobody(said: bytes) -> None:
    exchange = made_exchange(lambda: 0.0)
    wire, server = joined(exchange)
    exchange.from_server(server, [bytes.fromhex("00000000 12000000ffff0000") + said])
    assert exchange.registry.stats().frames_dropped_total == {"unknown_client": 1}
    assert wire.sent == []


def test_a_client_that_does_not_read_is_closed_and_nobody_else_suffers() -> None:
    exchange, (_, server), (slow_wire, slow) = one_of_each(most=1000)
    quick_wire, quick = entered(exchange)
    exchange.registry.readers.paused(slow)
    slow_wire.waits = 1001
    exchange.from_server(server, [slow.prefix + REQUEST, slow.prefix + REQUEST, quick.prefix + REQUEST])
    assert slow_wire.code == 1013
    assert quick_wire.sent == [REQUEST]
    stats = exchange.registry.stats()
    assert (stats.clients_too_slow_total, stats.frames_dropped_total, stats.clients_closing) == (1, {"late": 1}, 1)


def test_many_clients_that_do_not_read_cost_no_more_together_than_their_limit() -> None:
    exchange = made_exchange(lambda: 0.0, most=1000, most_for_all=2500)
    _, server = joined(exchange)
    slow = [entered(exchange) for _ in range(4)]
    for wire, client in slow:
        wire.waits = 600
        exchange.registry.readers.paused(client)
    assert not any(wire.closed for wire, _ in slow)
    slow[2][0].waits = 900
    slow[0][0].waits = 100  # it has read meanwhile
    exchange.from_server(server, [slow[1][1].prefix + REQUEST, slow[2][1].prefix + REQUEST])
    assert not any(wire.closed for wire, _ in slow)
    slow[0][0].waits = 800
    exchange.from_server(server, [slow[0][1].prefix + REQUEST])
    assert [wire.closed and wire.closed[0] for wire, _ in slow] == [None, None, 1013, None]
    exchange.registry.client_left(slow[2][1], "")
    slow[3][0].waits = 1000
    exchange.from_server(server, [slow[3][1].prefix + REQUEST])
    assert exchange.registry.stats().clients_too_slow_total == 1
    for _, client in slow:
        exchange.registry.readers.resumed(client)
    assert exchange.registry.readers.waiting == 0


@pytest.mark.parametrize(("draining", "frame"), [(True, REQUEST), (False, bytes.fromhex("70 00 0001 00000007"))])
def test_a_client_that_does_not_read_what_the_broker_itself_answers_is_closed_too(draining: bool, frame: bytes) -> None:
    exchange = made_exchange(lambda: 0.0, most=1000)
    joined(exchange)
    wire, client = entered(exchange)
    exchange.registry.draining = draining
    exchange.registry.readers.paused(client)
    wire.waits = 1001
    exchange.from_client(client, [frame] * 10)
    assert wire.code == 1013
    assert client.stage is Stage.LEAVING


def test_the_clients_of_a_slow_server_wait_and_those_of_others_do_not() -> None:
    exchange = made_exchange(lambda: 0.0)
    _, slow = joined(exchange)
    joined(exchange)
    wires = [entered(exchange) for _ in range(4)]
    exchange.registry.server_paused(slow)
    for _, client in wires:
        exchange.from_client(client, [REQUEST])
    assert [wire.held for wire, _ in wires] == [True, False, True, False]
    assert exchange.registry.stats().clients_paused == 2
    exchange.registry.server_resumed(slow)
    assert not any(wire.held for wire, _ in wires)
    exchange.registry.server_paused(slow)
    exchange.from_client(wires[0][1], [REQUEST])
    exchange.registry.client_left(wires[0][1], "")
    assert exchange.registry.stats().clients_paused == 0


def test_a_server_that_takes_nothing_for_long_is_given_up() -> None:
    exchange, (wire, server), (_, client) = one_of_each(most_for_server=1000)
    exchange.registry.server_paused(server)
    wire.waits = 1001
    exchange.from_client(client, [REQUEST])
    assert wire.code == 1013


def test_what_is_too_large_with_its_header_fails_the_request_that_it_is_or_answers() -> None:
    exchange, (server_wire, server), (wire, client) = one_of_each()
    exchange.from_server(server, [client.prefix + REQUEST])
    _takes_at_most(server, server_wire, 200)
    exchange.from_client(client, [bytes.fromhex("20 00 0001 00000007") + bytes(200)])
    assert server_wire.sent[-1][:12] == client.prefix + bytes.fromhex("22 d1 0001 00000007")
    assert wire.sent == [REQUEST]
    assert not exchange.registry.busy()
    exchange.from_client(client, [REQUEST + bytes(200)])
    assert wire.sent[1][:8] == bytes.fromhex("22 d1 0001 00000007")
    assert exchange.registry.stats().frames_dropped_total == {"too_large": 2}


@pytest.mark.parametrize("frame", ["10000001 ffff0009", "20000001 ffff0009", "10000001 ffff000b"])
def test_what_is_too_large_of_a_channel_ends_the_client_for_a_gap_would_not_be_noticed(frame: str) -> None:
    exchange, (server_wire, server), (wire, client) = one_of_each()
    _takes_at_most(server, server_wire, 200)
    exchange.from_client(client, [bytes.fromhex(frame) + bytes(200), REQUEST])
    assert wire.code == 1009
    assert wire.sent == []
    assert server_wire.sent[1:] == []  # nothing after Connected


def _takes_at_most(server: Server, wire: Wire, size: int) -> None:
    def send(frame: bytes) -> None:
        if len(frame) > size:
            raise TooLarge("no")
        wire.sent.append(frame)

    server.send = send


@pytest.mark.parametrize("kind", ["d0", "e0", "f0"])
def test_a_client_that_speaks_like_a_broker_or_a_server_has_no_say_any_more(kind: str) -> None:
    exchange, (server_wire, server), (wire, client) = one_of_each()
    exchange.from_client(client, [bytes.fromhex(f"{kind} 00 0000 00000000"), REQUEST])
    exchange.from_client(client, [REQUEST])
    exchange.from_server(server, [client.prefix + REQUEST])
    assert wire.code == 1008
    assert wire.sent == []
    assert len(server_wire.sent) == 1  # Connected
    assert exchange.registry.stats().frames_dropped_total["forbidden_kind"] == 1
    exchange.registry.client_left(client, "")
    assert server_wire.sent[1:] == [client.prefix + bytes.fromhex("e0 00 0000 00000000")]


def test_a_client_that_writes_a_number_in_front_is_answered_with_bad_request() -> None:
    exchange, (server_wire, _), (wire, client) = one_of_each()
    exchange.from_client(client, [bytes.fromhex("00000007 10000001 00000001")])
    (answer,) = wire.sent
    assert answer[:8] == bytes.fromhex("22cc 0007 10000001")
    assert json.loads(answer[8:])["code"] == 3
    assert len(server_wire.sent) == 1  # Connected
    assert exchange.registry.stats().frames_dropped_total == {"bad_kind": 1}


def test_a_server_that_introduces_itself_again_and_again_is_closed() -> None:
    exchange = made_exchange(lambda: 0.0)
    wire, server = joined(exchange)
    exchange.from_server(server, [HELLO % (b"a", b"b")] * 300)
    assert wire.closed == (1008, "more than 200 malformed messages in a minute")
    assert len(wire.sent) == 201


def test_more_than_200_bad_frames_in_a_minute_end_a_connection() -> None:
    now = [0.0]
    exchange = made_exchange(lambda: now[0])
    server_wire, server = joined(exchange)
    wire, client = entered(exchange)
    for now[0] in (0.0, 61.0):
        for _ in range(200):
            exchange.from_client(client, [b"short"])
            exchange.from_server(server, [b"short"])
    assert (wire.closed, server_wire.closed) == (None, None)
    exchange.from_client(client, [b"short"])
    exchange.from_server(server, [b"short"])
    assert wire.closed == server_wire.closed == (1008, "more than 200 malformed messages in a minute")


def test_of_a_client_that_has_gone_only_its_number_is_kept_and_of_these_not_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polybus.broker.registry.MOST_RESTING", 3)
    exchange = made_exchange(lambda: 0.0)
    joined(exchange)
    clients = [entered(exchange)[1] for _ in range(5)]
    for client in clients:
        exchange.registry.client_left(client, "")
        assert client.end.address != Wire.address
    assert exchange.registry.stats().client_numbers_reserved == len(exchange.registry.clients) == 3


def test_a_server_that_was_told_to_close_has_no_clients_and_gets_none() -> None:
    exchange, (wire, server), (client_wire, client) = one_of_each()
    joined(exchange, "west")
    exchange.from_server(server, [HELLO % (b"west", b"x"), client.prefix + REQUEST, client.prefix + REQUEST])
    assert wire.code == 1008
    assert client_wire.closed == (1001, "the server has gone")
    assert client_wire.sent == []
    assert all(entered(exchange)[1].server is not server for _ in range(3))
    sent = len(wire.sent)
    exchange.from_server(server, [client.prefix + REQUEST])
    exchange.registry.client_left(client, "")
    exchange.registry.server_resumed(server)
    exchange.registry.server_left(server, "its socket is gone")
    assert len(wire.sent) == sent
    assert exchange.registry.stats().sockets == 1


def test_a_server_is_not_renamed_while_clients_are_on_it() -> None:
    exchange = made_exchange(lambda: 0.0)
    wire, server = joined(exchange)
    entered(exchange)
    exchange.from_server(server, [HELLO % (b"A", b"x")])  # a first name takes nothing from anybody
    assert server.id == "A"
    exchange.from_server(server, [HELLO % (b"B", b"x")])
    assert (server.id, wire.closed) == ("A", None)
    assert b"cannot be renamed" in wire.sent[-1]
    exchange.registry.client_left(next(iter(server.clients.values())), "")
    exchange.from_server(server, [HELLO % (b"B", b"x")])
    assert server.id == "B"


def test_numbers_for_prometheus() -> None:
    exchange = made_exchange(lambda: 0.0)
    _, server = joined(exchange, 'a"b\\')
    _, client = entered(exchange)
    exchange.from_client(client, [REQUEST, b""])
    exchange.from_server(server, [b"xx"])
    found = {family.name: family for family in text_string_to_metric_families(broker_text(exchange.registry.stats()))}
    samples = {sample.name: sample for family in found.values() for sample in family.samples}
    assert samples["polybus_broker_clients"].value == 1
    assert samples["polybus_broker_clients_accepted_total"].value == 1
    assert samples["polybus_broker_frames_to_servers_total"].value == 1
    assert samples["polybus_broker_server_clients"][:3] == ("polybus_broker_server_clients", {"server": 'a"b\\'}, 1)
    name, reason, count = samples["polybus_broker_frames_dropped_total"][:3]
    assert (name, reason, count) == ("polybus_broker_frames_dropped_total", {"reason": "short_frame"}, 2)
    assert samples.keys() == {f"polybus_broker_{field.name}" for field in fields(BrokerStats)}
    assert all(family.documentation.endswith(".") for family in found.values())


def test_the_page_lists_the_reasons_of_dropped_frames_and_a_capture_has_the_same_words_for_them() -> None:
    page = (Path(__file__).parents[3] / "docs/reference/csb.md").read_text()
    [listed] = re.findall(r"The reasons of `frames_dropped_total` are (.*?)\.", page, re.DOTALL)
    assert re.findall(r"`(\w+)`", listed) == list(get_args(DropReason))
    assert {"short_frame", "bad_kind", "too_large"} == set(get_args(DropReason)) & set(QUARANTINE_REASONS)


def test_a_server_that_introduces_itself_learns_who_its_earlier_clients_are() -> None:
    exchange = made_exchange(lambda: 0.0)
    wire, server = joined(exchange)
    client = exchange.registry.client_joined(Wire(), params={"path": "/game"})
    assert client is not None
    exchange.from_server(server, [bytes.fromhex("00000000 12000000 ffff0000") + b'{"server":"A","instance":"i"}'])
    without, with_facts, welcome = wire.sent
    assert without == bytes.fromhex("00000001 d0000000 00000000")
    assert with_facts[:12] == bytes.fromhex("00000001 d2000000 00000000")
    assert b'"path":"/game"' in with_facts
    assert welcome[:4] == bytes(4)
