"""The workflow of the document with a broker, step for step, with raw peers over TCP."""

import anyio

from polybus import Broker, Limits
from tests.support import eventually

from .raw import raw_peer

TCP = "csb+tcp://127.0.0.1:0"
LIMITS = Limits(close_timeout=0.1)
"""Raw peers do not say goodbye."""


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
