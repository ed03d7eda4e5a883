"""A helper without an address: its parent starts it and sends requests. See parent.py."""

from typing import Any

import anyio
from ports import PipePort, ProcessPort, StdioPort

from polybus import Bus
from polybus.events import LinkDown
from polybus.transports.postmessage import PortTransport

bus = Bus()


@bus.handle("double")
async def double(number: int) -> int:
    print("doubling", number)  # over standard streams print() goes to the standard error
    return 2 * number


@bus.handle("length")
async def length(text: str) -> int:
    return len(text)


async def serve(port: ProcessPort) -> None:
    """Serve until the parent has left."""
    async with bus.serve(PortTransport(port), protocol="ubre"):
        async for event in bus.events():
            if isinstance(event, LinkDown):
                return


async def over_stdio() -> None:
    await serve(StdioPort())


async def _over_pipe(connection: Any) -> None:
    await serve(PipePort(connection))


def over_pipe(connection: Any) -> None:
    anyio.run(_over_pipe, connection)


if __name__ == "__main__":
    anyio.run(over_stdio)
