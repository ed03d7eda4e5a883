"""The other process of `test_processes.py`: serves a bus over a pipe that it was given."""

import os
from typing import Any

import anyio

from polybus import Bus
from polybus.transports.postmessage import PipePort, PortTransport


def serve(connection: Any) -> None:
    anyio.run(_serve, connection)


async def _serve(connection: Any) -> None:
    bus = Bus()

    @bus.handle("double")
    async def double(number: int) -> int:
        return 2 * number

    @bus.handle("echo")
    async def echo(body: str) -> str:
        return body

    @bus.handle("die")
    async def die() -> None:
        os._exit(7)

    async with bus.serve(PortTransport(PipePort(connection)), protocol="ubre") as listener:
        while not listener.peers:  # noqa: ASYNC110  # nothing tells of it
            await anyio.sleep(0.005)
        while listener.peers:  # noqa: ASYNC110
            await anyio.sleep(0.005)


def mute(connection: Any) -> None:
    """Takes nothing and says nothing, until it is killed."""
    import time

    time.sleep(600)
