"""Streams of other people's NATS, without a cluster: stored by a request, read by a consumer that delivers to a subject."""

import json

import pytest
from nats.js.api import ConsumerConfig

from polybus import NoHandler, connect

from .nats_py_peer import nats_py
from .nats_servers import NatsServer


async def test_a_stream_of_others_is_published_to_by_requests_and_read_by_a_group(keeping: NatsServer) -> None:
    async with nats_py(keeping.address) as nats:
        jetstream = nats.client.jetstream()
        await nats.run(jetstream.add_stream(name="ORDERS", subjects=["orders.>"]))
        consumer = ConsumerConfig(
            durable_name="billing", deliver_subject="billing.orders", deliver_group="workers", ack_wait=1, max_deliver=3
        )
        await nats.run(jetstream.add_consumer("ORDERS", consumer))
        async with connect(keeping.url) as link:
            stored = await link.request("orders.placed", {"n": 1}, headers={"Nats-Msg-Id": "one"})
            assert (stored["stream"], stored["seq"]) == ("ORDERS", 1)
            again = await link.request("orders.placed", {"n": 1}, headers={"Nats-Msg-Id": "one"})
            assert again["duplicate"] is True
            with pytest.raises(NoHandler):
                await link.request("invoices.sent", {"n": 1})
            await nats.run(jetstream.publish("orders.placed", b'{"n":2}'))
            async with link.subscribe("billing.orders", group="workers") as orders:
                first, second = [await orders.receive(timeout=20) for _ in range(2)]
                assert [(one.subject, one.body) for one in (first, second)] == [
                    ("orders.placed", {"n": 1}),
                    ("orders.placed", {"n": 2}),
                ]
                await link.publish(str(first.reply_to), b"+ACK")
                await link.publish(str(second.reply_to), b"-NAK")
                came = await orders.receive(timeout=20)
                assert came.body == {"n": 2}
                await link.publish(str(came.reply_to), b"+ACK")
            await link.request("$JS.API.INFO")  # all that was published before is there
        info = await nats.run(jetstream.consumer_info("ORDERS", "billing"))
        assert (info.num_pending, info.num_ack_pending) == (0, 0)
        puller = await nats.run(jetstream.pull_subscribe("orders.>", durable="theirs"))
        assert [json.loads(one.data) for one in await nats.run(puller.fetch(2, timeout=20))] == [{"n": 1}, {"n": 2}]
