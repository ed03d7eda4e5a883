"""The broker between the plant's back end and its clients: a process. ``python -m polybus.demo.broker CLIENTS SERVERS``"""

from __future__ import annotations

import sys

import anyio

from .. import Broker
from .children import leave_with_parent


async def _run(clients: str, servers: str) -> None:
    async with Broker(clients, servers) as broker:
        print("between", *broker.client_urls, *broker.server_urls, flush=True)
        await broker.wait_closed()


if __name__ == "__main__":
    leave_with_parent()
    anyio.run(_run, sys.argv[1], sys.argv[2])
