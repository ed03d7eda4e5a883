"""The other process of `test_processes.py`: serves a bus over a pipe that it was given, or over its standard streams.

python -m tests.unit.transports.postmessage.pipe_child BACKEND FRAMING
"""

import os
import sys
from typing import Any

import anyio

from polybus import Bus
from polybus.transports.postmessage import PipePort, PortTransport, StdioPort


def serve(connection: Any) -> None:
    anyio.run(_serve, PipePort, connection)


async def _serve(port: Any, *arguments: Any) -> None:
    bus = Bus()

    @bus.handle("double")
    async def double(number: int) -> int:
        print("a line that would be taken for a message")
        return 2 * number

    @bus.handle("echo")
    async def echo(body: str) -> str:
        return body

    @bus.handle("die")
    async def die() -> None:
        os._exit(7)

    async with bus.serve(PortTransport(port(*arguments)), protocol="ubre") as listener:
        while not listener.peers:  # noqa: ASYNC110  # nothing tells of it
            await anyio.sleep(0.005)
        while listener.peers:  # noqa: ASYNC110
            await anyio.sleep(0.005)
    print("the end", flush=True)


if __name__ == "__main__":
    backend, framing = sys.argv[1:]
    anyio.run(_serve, lambda: StdioPort(framing=framing), backend=backend)  # type: ignore[arg-type]
