"""Programs on Zenoh: however they end, they do; and one that stands still holds nobody back."""

import signal
from typing import Any

import anyio
import pytest

from polybus import Bus, DeadlineExceeded, connect
from polybus.protocols import Up
from tests.integration.processes.processes import loop_of, running
from tests.support import BOUND, eventually

from .zenoh_role import TOPIC

HERE = "up+zenoh://127.0.0.1:0"
US, THEM = "//device1/1/1", "//device2/1/1"


@pytest.mark.parametrize(
    ("role", "then"),
    [
        *(("serve", then) for then in ("return", "loop", "terminate")),
        *(("connect", then) for then in ("cancel", "crash", "interrupt")),
    ],
)
async def test_a_program_ends_while_samples_still_come(role: str, then: str, anyio_backend: Any) -> None:
    bus = Bus()

    async def publish() -> None:
        while True:
            await bus.publish(TOPIC, [1, 2, 3])
            await anyio.sleep(0.001)

    signals = {"interrupt": signal.SIGINT, "terminate": signal.SIGTERM}
    options = {"backend": loop_of(anyio_backend)["backend"], "entity": THEM, "then": "stay" if then in signals else then}
    if role == "connect":
        async with bus.serve(HERE, protocol=Up(entity=US)) as listener, anyio.create_task_group() as group:
            group.start_soon(publish)
            async with running("zenoh_role", connect=listener.url, **options) as process:
                await _ends(process, signals.get(then))
            group.cancel_scope.cancel()
        return
    async with running("zenoh_role", serve=HERE, **options) as process:
        if then not in signals:
            await _ends(process, None)
            return
        async with connect(process.url, bus=bus, protocol=Up(entity=US)), anyio.create_task_group() as group:
            group.start_soon(publish)
            await _ends(process, signals[then])
            group.cancel_scope.cancel()


async def _ends(process: Any, number: signal.Signals | None) -> None:
    if number is not None:
        process.signal(number)
    status = await process.ended()
    assert status in (0, 1, -signal.SIGINT, -signal.SIGTERM), process.log()
    assert "panicked" not in process.log()
    assert "Fatal" not in process.log()


async def test_a_subscriber_that_stands_still_holds_nobody_back_and_loss_is_counted(anyio_backend: Any) -> None:
    bus, answering = Bus(), Bus()
    body = bytes(100_000)

    @answering.handle("//device3/1/1/1")
    async def answer() -> str:
        return "here"

    async with (
        bus.serve(HERE, protocol=Up(entity=US)) as listener,
        connect(listener.url, bus=answering, protocol=Up(entity="//device3/1/1")),
        running("zenoh_role", connect=listener.url, entity=THEM, then="stay", **loop_of(anyio_backend)) as process,
    ):
        (fabric,) = listener.peers

        async def heard() -> bool:
            await bus.publish(TOPIC, body)
            try:
                return bool(await fabric.request(f"{THEM}/1", timeout=5))
            except DeadlineExceeded:
                return False

        await eventually(heard)
        process.signal(signal.SIGSTOP)
        try:
            while bus.stats().dropped == 0:
                for _ in range(200):
                    await bus.publish(TOPIC, body)
                assert await fabric.request("//device3/1/1/1", timeout=BOUND) == "here"
            with pytest.raises(DeadlineExceeded):
                await fabric.request(f"{THEM}/1", timeout=0.1)
        finally:
            process.signal(signal.SIGCONT)
        await eventually(heard)
        assert process.running()
