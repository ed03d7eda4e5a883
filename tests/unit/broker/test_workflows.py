"""Both workflows of the document, step for step, with raw peers over TCP; and what neither side may do."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest

from polybus import Broker, Bus, Context, Limits, connect
from tests.support import bounded, eventually

from .raw import RawPeer, raw_peer

pytestmark = pytest.mark.anyio

TCP = "csb+tcp://127.0.0.1:0"
LIMITS = Limits(close_timeout=0.1)
"""Raw peers do not say goodbye."""


@asynccontextmanager
async def brokered(servers: int = 1) -> AsyncIterator[tuple[Broker, list[RawPeer]]]:
    """A broker with raw servers."""
    async with Broker(TCP, TCP, limits=LIMITS) as broker, anyio.create_task_group() as group:
        peers: list[RawPeer] = []
        stop = anyio.Event()

        async def hold() -> None:
            async with raw_peer(broker.server_urls[0]) as peer:
                peers.append(peer)
                await stop.wait()

        for number in range(servers):
            group.start_soon(hold)
            await eventually(lambda number=number: min(broker.stats().sockets, len(peers)) > number)  # type: ignore[misc]
        yield broker, peers
        stop.set()


# -- without a broker: steps 1 to 7 --------------------------------------------------------------------------------------


@bounded
async def test_the_workflow_without_a_broker_seen_by_a_raw_client() -> None:
    bus = Bus(limits=LIMITS)

    @bus.handle(0x00010001)
    async def login(body: bytes, ctx: Context) -> bytes:
        return body.upper()

    async with bus.serve(TCP) as listener:  # 1
        async with raw_peer(listener.url) as client:  # 2
            await client.send("10 00 0007 00010001 6869")  # 3
            assert await client.receive() == "20000007000100014849"  # 3.1
            (peer,) = bus.peers
            async with anyio.create_task_group() as group:

                async def ask() -> None:
                    assert await peer.request(0x00020001, b"?") == b"!"

                group.start_soon(ask)
                assert await client.receive() == "1000000100020001" + "3f"  # 4
                await client.send("20 00 0001 00020001 21")  # 4.1
            await client.close()  # 5
            await eventually(lambda: not bus.peers)
        async with raw_peer(listener.url) as client:
            await eventually(lambda: len(bus.peers) == 1)
            await bus.peers[0].aclose("enough")  # 6
            closed = await client.ended()
            assert (closed.code, closed.reason) == (1000, "enough")
        async with raw_peer(listener.url) as last:
            await eventually(lambda: len(bus.peers) == 1)
            await bus.drain()  # 7
            assert (await last.ended()).code == 1001


@bounded
async def test_the_workflow_without_a_broker_seen_by_a_raw_server() -> None:
    received: list[str] = []
    done = anyio.Event()

    async def serve(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            server = RawPeer(stream)
            received.append(await server.receive())
            await server.send("22 00 0001 00010001" + b'{"ok":true}'.hex())
            await server.send("12 00 00ff 00020002" + b"5".hex())
            received.append(await server.receive())
            received.append(str((await server.ended()).code))
            done.set()

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(anyio.abc.SocketAttribute.local_port)
    async with listener, anyio.create_task_group() as group:
        group.start_soon(listener.serve, serve)
        bus = Bus()

        @bus.handle(0x00020002)
        async def square(body: int) -> int:
            return body * body

        async with connect(f"csb+tcp://127.0.0.1:{port}", bus=bus):
            assert await bus.request(0x00010001, {"id": 7}) == {"ok": True}
            await eventually(lambda: len(received) == 2)
        await done.wait()
        group.cancel_scope.cancel()
    assert received == ["1200000100010001" + b'{"id":7}'.hex(), "220000ff00020002" + b"25".hex(), "1000"]


# -- with a broker: steps 1 to 9 -----------------------------------------------------------------------------------------


@bounded
async def test_the_workflow_with_a_broker() -> None:
    async with Broker(TCP, TCP, limits=LIMITS) as broker:  # 1
        async with raw_peer(broker.server_urls[0]) as server:  # 2
            await eventually(lambda: broker.stats().sockets == 1)
            async with raw_peer(broker.client_urls[0]) as client:  # 3
                assert await server.receive() == "00000001" + "d000000000000000"  # 3.1
                await client.send("12 00 0007 00010001 7b7d")  # 4
                assert await server.receive() == "00000001" + "1200000700010001" + "7b7d"  # 4.1
                await server.send("00000001 21 00 0007 00010001 6f6b")  # 4.2
                assert await client.receive() == "21000007000100016f6b"  # 4.3
                await server.send("00000001 10 00 0009 00020001 ff")  # 5
                assert await client.receive() == "1000000900020001ff"  # 5.1
                await client.send("20 05 0009 00020001 00")  # 5.2
                assert await server.receive() == "00000001" + "200500090002000100"  # 5.3
            # The client has closed: 6
            assert await server.receive() == "00000001" + "e000000000000000"  # 6.1
            async with raw_peer(broker.client_urls[0]) as client:
                assert await server.receive() == "00000002" + "d000000000000000"
                await server.send("00000002 f0 00 0000 00000000")  # 7
                assert (await client.ended()).code == 1000  # 7.1
                assert await server.receive() == "00000002" + "e000000000000000"
            async with raw_peer(broker.client_urls[0]) as client:
                assert await server.receive() == "00000003" + "d000000000000000"
                await server.close()  # 8
                closed = await client.ended()  # 8.1
                assert (closed.code, closed.reason) == (1001, "the server has gone")
        async with raw_peer(broker.server_urls[0]) as server:
            await eventually(lambda: broker.stats().sockets == 1)
            async with raw_peer(broker.client_urls[0]) as client:
                await server.receive()
                async with anyio.create_task_group() as group:
                    group.start_soon(broker.drain, 1.0)  # 9
                    assert (await client.ended()).code == 1001
                    assert (await server.ended()).code == 1001
        assert broker.stats().dropped == {}


@bounded
async def test_payloads_are_handed_on_unread() -> None:
    async with brokered() as (broker, (server,)), raw_peer(broker.client_urls[0]) as client:
        number = (await server.receive())[:8]
        for frame in ("12 00 0001 00000001 7b", "1f 00 0001 00000001 ff", "13 07 0001 00000001 25", "2b c9 ffff ffffffff"):
            await client.send(frame)
            assert await server.receive() == number + frame.replace(" ", "")
            await server.send(number + frame)
            assert await client.receive() == frame.replace(" ", "")
        assert broker.stats().dropped == {}


@bounded
async def test_a_client_that_finds_no_server_is_closed_at_once() -> None:
    async with Broker(TCP, TCP, limits=LIMITS) as broker, raw_peer(broker.client_urls[0]) as client:
        closed = await client.ended()
        assert closed.code == 1013
        assert "no server" in closed.reason
        assert broker.stats().turned_away == 1


@pytest.mark.parametrize("kind", ["d0", "e0", "f0"])
@bounded
async def test_a_client_that_speaks_like_a_broker_or_a_server_is_closed(kind: str) -> None:
    async with brokered() as (broker, (server,)), raw_peer(broker.client_urls[0]) as client:
        await server.receive()
        await client.send(kind + "000000 00000000")
        assert (await client.ended()).code == 1008
        assert (await server.receive())[8:10] == "e0"
        assert broker.stats().dropped == {"forbidden_kind": 1}


@bounded
async def test_a_client_that_writes_a_number_in_front_is_answered_with_bad_request() -> None:
    async with brokered() as (broker, (server,)):
        async with raw_peer(broker.client_urls[0]) as victim, raw_peer(broker.client_urls[0]) as client:
            await server.receive()
            await server.receive()
            await client.send("00000007 10000001 00000001")
            answer = bytes.fromhex(await client.receive())
            assert answer[:8] == bytes.fromhex("22cc 0007 10000001")
            assert json.loads(answer[8:])["code"] == 3
            await victim.send("10 00 0001 00000005")
            assert (await server.receive())[8:] == "1000000100000005"  # of the other nothing has come
        assert broker.stats().dropped == {"unknown_kind": 1}


@bounded
async def test_a_server_that_closes_the_client_of_another_is_closed_itself() -> None:
    async with brokered(2) as (broker, (one, two)):
        async with raw_peer(broker.client_urls[0]) as client, raw_peer(broker.client_urls[0]):
            first, second = await one.receive(), await two.receive()
            assert {first[:8], second[:8]} == {"00000001", "00000002"}
            thief, owner = (two, one) if first[:8] == "00000001" else (one, two)
            await thief.send("00000001 f0 00 0000 00000000")
            closed = await thief.ended()
            assert (closed.code, closed.reason) == (1008, "client 1 is not yours")
            await client.send("10 00 0001 00000005")
            assert await owner.receive() == "00000001" + "1000000100000005"
            assert broker.stats().dropped == {"not_your_client": 1}


@bounded
async def test_an_answer_to_a_client_that_has_gone_reaches_nobody() -> None:
    async with brokered() as (broker, (server,)):
        async with raw_peer(broker.client_urls[0]) as client:
            number = (await server.receive())[:8]
            await client.send("10 00 0001 00000005")
            await server.receive()
        assert await server.receive() == number + "e000000000000000"
        async with raw_peer(broker.client_urls[0]) as other:
            again = (await server.receive())[:8]
            assert again != number
            await server.send(f"{number} 20 00 0001 00000005", f"{again} 20 00 0002 00000005")
            assert await other.receive() == "2000000200000005"
        assert broker.stats().dropped == {"late": 1}


@bounded
async def test_a_number_that_was_never_given_is_answered_with_closed() -> None:
    async with brokered() as (broker, (server,)):
        await server.send("ffffffff 10 00 0001 00000001")
        assert await server.receive() == "ffffffff" + "e000000000000000"
        assert broker.stats().dropped == {"unknown_client": 1}


@bounded
async def test_short_frames_are_counted_and_the_connection_goes_on() -> None:
    async with brokered() as (broker, (server,)), raw_peer(broker.client_urls[0]) as client:
        await server.receive()
        await client.send("10", "10 00 0001 00000005")
        assert (await server.receive())[8:] == "1000000100000005"
        await server.send("00000001 10 00 0001 0000", "00000001 20 00 0001 00000005")
        assert await client.receive() == "2000000100000005"
        assert broker.stats().dropped == {"truncated": 2}


# -- the shared bad inputs of a broker -----------------------------------------------------------------------------------


@bounded
async def test_a_second_server_that_says_the_same_id_is_refused() -> None:
    hello = bytes.fromhex("00000000 12000000 ffff0000") + b'{"v":1,"server":"A","instance":"%s"}'
    async with brokered(2) as (broker, (one, two)):
        await one.send(hello % b"1")
        assert (await one.receive())[:24] == "00000000" + "22000000ffff0000"
        await two.send(hello % b"2")
        assert (await two.receive())[:24] == "00000000" + "22d00000ffff0000"
        assert (await two.ended()).code == 1008
        async with raw_peer(broker.client_urls[0]) as client:
            assert (await one.receive())[8:10] == "d2"
            await client.send("10 00 0001 00000005")
            assert (await one.receive())[8:] == "1000000100000005"
        assert broker.stats().dropped == {"refused": 1}
