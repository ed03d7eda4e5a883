"""Workers of one machine, whose own NATS server keeps stores where `POLYBUS_STORE` says."""

import signal
from pathlib import Path

import anyio.to_thread
import psutil
import pytest

import polybus
from polybus import Bus, Cluster, LocalProtocolError, Store

from .processes import Process, eventually


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_what_was_stored_outlives_the_server_and_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POLYBUS_CLUSTER", raising=False)
    monkeypatch.setenv("POLYBUS_STORE", str(tmp_path / "a folder" / "stores"))
    first = await anyio.to_thread.run_sync(Process, "durable_crew", {"publish": [1, 2, 3]})
    try:
        await anyio.to_thread.run_sync(first.introduce)
        [server] = [child for child in psutil.Process(first.pid).children(recursive=True) if "nats-server" in child.name()]
        server.kill()
        await eventually(lambda: "worker" in first.log() or not server.is_running())
        first.signal(signal.SIGTERM)
        await first.ended()
    finally:
        first.stop()
    assert (tmp_path / "a folder" / "stores").stat().st_mode & 0o777 == 0o700
    ledger = tmp_path / "ledger"
    second = await anyio.to_thread.run_sync(Process, "durable_crew", {"publish": [3, 4], "ledger": str(ledger)})
    try:
        await anyio.to_thread.run_sync(second.introduce)
        await eventually(lambda: ledger.exists() and len(ledger.read_text().split()) >= 4)
        second.signal(signal.SIGTERM)
        await second.ended()
    finally:
        second.stop()
    assert sorted(ledger.read_text().split()) == ["1", "2", "3", "4"]


async def bill(order: int) -> None:
    pass


@pytest.mark.parametrize("stores", [(), (Store("orders", "orders.>"),)])
def test_a_bus_that_wants_to_keep_something_is_refused_before_a_worker_is_started(
    stores: tuple[Store, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("POLYBUS_CLUSTER", raising=False)
    monkeypatch.delenv("POLYBUS_STORE", raising=False)
    bus = Bus(cluster=Cluster(stores=stores))
    if not stores:
        bus.on("orders.placed", durable="billing")(bill)
    with pytest.raises(LocalProtocolError, match=r"workers=2: .* has no folder for them: set POLYBUS_STORE to a folder"):
        polybus.run(bus, workers=2)
