"""The broker between the plant's back end and its clients: a process. ``python -m polybus.demo.broker CLIENTS SERVERS``"""

from __future__ import annotations

import argparse

import anyio

from .. import Broker
from .children import leave_with_parent

__all__ = ["main"]


async def _run(clients: str, servers: str) -> None:
    async with Broker(clients, servers) as broker:
        print("between", *broker.client_urls, *broker.server_urls, flush=True)
        await broker.wait_closed()


def main() -> None:
    """The process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("clients")
    parser.add_argument("servers")
    arguments = parser.parse_args()
    leave_with_parent()
    anyio.run(_run, arguments.clients, arguments.servers)


if __name__ == "__main__":
    main()
