"""`polybus broker`"""

from __future__ import annotations

from functools import partial
from typing import Annotated

import anyio

from .. import Broker
from .options import Cert, Insecure, Key, Origin, duration, option, server_tls
from .problems import PeerError
from .process import announce, ending, race, start_log


def broker(
    clients: Annotated[
        list[str], option("URL", "Address for clients, for example csb+ws://127.0.0.1:8000/game. Can be repeated.")
    ],
    servers: Annotated[list[str], option("URL", "Address for servers, for example csb+tcp://127.0.0.1:9000. Can be repeated.")],
    metrics: Annotated[
        str | None, option("URL", "Serve Prometheus metrics at this address, for example http://127.0.0.1:9100.")
    ] = None,
    origin: Origin = None,
    insecure: Insecure = False,
    cert: Cert = None,
    key: Key = None,
    record: Annotated[str | None, option("DIR", "Record every frame to and from clients in this folder.")] = None,
    drain: Annotated[float, duration("Seconds that pending requests get to finish after SIGTERM.")] = 20.0,
) -> None:
    """Run a broker that routes CSB frames between clients and servers, until SIGINT or SIGTERM.

    Servers connect with ?side=broker-server, and also with &server=ID if clients select them by the x-csb-server header.
    """
    start_log()
    tls = server_tls(cert, key)
    made = Broker(clients, servers, metrics=metrics, origins=tuple(origin or ()), insecure=insecure, tls=tls, record=record)
    anyio.run(_run, made, drain)


async def _run(broker: Broker, drain: float) -> None:
    async def cut() -> None:
        await signalled()
        await broker.aclose()

    with ending() as signalled:
        async with broker:
            for url in broker.client_urls:
                announce(f"clients {url}")
            for url in broker.server_urls:
                announce(f"servers {url}")
            if broker.metrics_url is not None:
                announce(f"metrics {broker.metrics_url}")
            await race(signalled, broker.wait_closed)
            if not broker.client_urls:
                raise PeerError("a task of the broker failed, so the broker was closed: see the log")
            await race(cut, partial(broker.drain, drain))
