"""Simulated faults where there is nothing to break, and processes that are started or killed twice."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

from polybus.testing import FaultRates, World, simulated


def test_faults_in_a_world_without_connections_and_processes_do_nothing() -> None:
    @simulated(seeds=3, faults=FaultRates(cut=1.0, pause=1.0, restart=1.0))
    async def waits(world: World) -> float:
        begun = anyio.current_time()
        await anyio.sleep(100)
        return anyio.current_time() - begun

    assert waits() == 100


def test_a_process_runs_once_however_often_it_is_started_and_not_after_its_block() -> None:
    @simulated()
    async def scenario(world: World) -> list[str]:
        lived: list[str] = []

        @asynccontextmanager
        async def start() -> AsyncIterator[None]:
            lived.append("starts")
            try:
                yield
            finally:
                lived.append("ends")

        async with world.process("orders", start) as process:
            await process.start()
            await process.kill()
            await process.kill()
        await process.start()
        return lived

    assert scenario() == ["starts", "ends"]
