"""nats-py and FastStream on one stream with ours: both publish to it, both are given what it keeps."""

import json

from polybus import Bus, Cluster, Store
from tests.support import eventually

from .nats_py_peer import nats_py
from .nats_servers import NatsServer

STREAM = "shop-orders"


async def test_nats_py_publishes_to_our_store_and_reads_it_by_a_consumer_of_its_own(keeping: NatsServer) -> None:
    bus = Bus(cluster=Cluster(f"{keeping.url}/shop", stores=[Store("orders", "orders.>")]))
    handled: list[dict[str, int]] = []

    @bus.on("orders.>", durable="billing")
    async def bill(order: dict[str, int]) -> None:
        handled.append(order)

    async with bus:
        async with nats_py(keeping.address) as nats:
            jetstream = nats.client.jetstream()
            ack = await nats.run(jetstream.publish("shop.p.orders.placed", b'{"n":1}', headers={"Nats-Msg-Id": "one"}))
            assert (ack.stream, ack.seq) == (STREAM, 1)
            await bus.publish("orders.placed", {"n": 1}, id="one")  # the same id: it is there already
            await bus.publish("orders.placed", {"n": 2}, headers={"x-shop": "7"})
            await eventually(lambda: len(handled) == 2)
            puller = await nats.run(jetstream.pull_subscribe("shop.p.orders.>", durable="theirs", stream=STREAM))
            messages = await nats.run(puller.fetch(2, timeout=20))
            assert [json.loads(message.data) for message in messages] == [{"n": 1}, {"n": 2}]
            assert (messages[1].headers or {})["x-shop"] == "7"
            for message in messages:
                await nats.run(message.ack_sync(timeout=20))
            info = await nats.run(jetstream.consumer_info(STREAM, "billing"))
            assert (info.num_pending, info.num_ack_pending) == (0, 0)
    assert handled == [{"n": 1}, {"n": 2}]
