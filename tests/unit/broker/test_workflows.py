"""Both workflows of the document, step for step, with raw peers over TCP; and what neither side may do."""

import anyio

from polybus import Broker, Bus, Limits, connect
from tests.support import eventually

from .raw import RawPeer, raw_peer

TCP = "csb+tcp://127.0.0.1:0"
LIMITS = Limits(close_timeout=0.1)
"""Raw peers do not say goodbye."""


# -- without a broker: steps 1 to 7 --------------------------------------------------------------------------------------


async def test_the_workflow_without_a_broker_seen_by_a_raw_client() -> None:
    bus = Bus(limits=LIMITS)

    @bus.handle(0x00010001)
    async def login(body: bytes) -> bytes:
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


async def test_the_workflow_without_a_broker_seen_by_a_raw_server() -> None:
    received, done = list[str](), anyio.Event()

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
        assert broker.stats().frames_dropped_total == {}
