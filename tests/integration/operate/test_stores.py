"""The metrics of a store with one replica, while the NATS server that has it is stopped: one of three."""

from pathlib import Path

import anyio
import nats
import pytest

from polybus import Bus, BusError, Cluster, Store
from polybus.prometheus import scrape
from tests.integration.interop.nats_servers import nats_cluster
from tests.support import eventually

pytestmark = pytest.mark.timeout(200)


async def test_metrics_show_that_the_server_of_a_store_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polybus.cluster.durable.readers.PACE", 0.2)

    def config(number: int) -> str:
        return f'server_name: "s{number}"\njetstream {{ store_dir: "{tmp_path / f"js{number}"}" }}'

    with nats_cluster(3, config) as servers:
        orders = [Store("orders", "order.>"), Store("safe", "safe.>", replicas=3)]
        bus = Bus(cluster=Cluster(f"{servers[0].url}/shop", stores=orders))

        @bus.on("order.placed", durable="billing")
        async def bill(number: int) -> None: ...

        @bus.on("safe.placed", durable="mailing")
        async def mail(number: int) -> None: ...

        async def shown(store: str, value: int) -> bool:
            lines = (await scrape(bus)).splitlines()
            metric = "polybus_store_available{"
            return any(line.startswith(metric) and f'"shop-{store}"' in line and line.endswith(f" {value}.0") for line in lines)

        async def available() -> bool:
            return await shown("orders", 1) and await shown("safe", 1)

        async def one_is_away() -> bool:
            return await shown("orders", 0)

        async with bus:
            await eventually(available, 60)
            client = await nats.connect(servers[0].address)
            leader = (await client.jetstream().stream_info("shop-orders")).cluster
            await client.close()
            assert leader is not None and leader.leader is not None
            server = servers[int(leader.leader.removeprefix("s"))]
            server.terminate()
            await eventually(one_is_away, 60)
            with pytest.raises(BusError), anyio.fail_after(60):
                await bus.publish("order.placed", 1, timeout=1)
            await bus.publish("safe.placed", 1, timeout=60)
            server.start()
            await eventually(available, 60)
