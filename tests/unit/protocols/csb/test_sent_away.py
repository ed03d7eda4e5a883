"""Clients of a broker, and a broker itself, that send too much that is malformed."""

import anyio
import anyio.abc
import pytest
from anyio.abc import SocketStream

from polybus import Bus, Handshake, Limits, connect
from polybus.broker import Broker
from tests.support import eventually
from tests.unit.broker.raw import RawPeer, raw_peer

pytestmark = pytest.mark.native
NO_JSON = "12 00 0001 00000007 7b"


@pytest.mark.parametrize("let_in", [True, False], ids=["let_in", "while_it_waits_for_authenticate"])
async def test_a_client_of_a_broker_that_sends_too_much_that_is_malformed_is_sent_away_alone(let_in: bool) -> None:
    asked: list[Handshake] = []

    async def authenticate(handshake: Handshake) -> str:
        asked.append(handshake)
        if len(asked) > 1 and not let_in:
            await anyio.sleep_forever()
        return "ann"

    server = Bus(limits=Limits(bad_messages=5), authenticate=authenticate)

    @server.handle(7)
    async def echo(body: int) -> int:
        return body

    async with (
        Broker("csb+tcp://127.0.0.1:0", "csb+tcp://127.0.0.1:0") as broker,
        server.connect(broker.server_urls[0] + "&server=A"),
    ):
        async with connect(broker.client_urls[0]) as good:
            await eventually(lambda: len(server.peers) == 1)
            async with raw_peer(broker.client_urls[0]) as bad:
                await eventually(lambda: len(server.peers if let_in else asked) == 2)
                await bad.send(*[NO_JSON] * 5)
                await eventually(lambda: server.stats().malformed == 5)
                await bad.send(NO_JSON)
                closed = await bad.ended()
            assert (closed.code, "malformed" in closed.reason) == (1008, True)
            assert await good.request(7, 1) == 1
            assert (server.stats().malformed, server.stats().reconnects, good.stats().reconnects) == (6, 0, 0)


async def test_a_broker_that_sends_too_much_that_is_malformed_and_of_no_client_loses_its_link() -> None:
    server, ends = Bus(limits=Limits(bad_messages=5)), list[tuple[int, str]]()
    entered = anyio.Event()

    async def say_nonsense(stream: SocketStream) -> None:
        broker = RawPeer(stream)
        await broker.send("00000007 d0000000 00000000")
        await entered.wait()
        await broker.send(*["00000009 20000001 00000005"] * 6)
        closed = await broker.ended()
        ends.append((closed.code, closed.reason))

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(anyio.abc.SocketAttribute.local_port)
    async with listener, anyio.create_task_group() as group:
        group.start_soon(listener.serve, say_nonsense)
        async with server.connect(f"csb+tcp://127.0.0.1:{port}?side=broker-server"):
            entered.set()
            await eventually(lambda: len(ends) >= 2)
            assert {(code, "malformed" in reason) for code, reason in ends} == {(1008, True)}
        group.cancel_scope.cancel()
