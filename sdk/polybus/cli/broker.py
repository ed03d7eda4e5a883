"""`polybus broker`"""

from __future__ import annotations

import logging
import signal
from collections.abc import Awaitable, Callable
from typing import Annotated

import anyio

from .. import Broker
from .options import Cert, Insecure, Key, Origin, duration, option, server_tls
from .problems import PeerError, announce


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
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    tls = server_tls(cert, key)
    made = Broker(clients, servers, metrics=metrics, origins=tuple(origin or ()), insecure=insecure, tls=tls, record=record)
    anyio.run(_run, made, drain)


async def _run(broker: Broker, drain: float) -> None:
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with broker:
            for url in broker.client_urls:
                announce(f"clients {url}")
            for url in broker.server_urls:
                announce(f"servers {url}")
            if broker.metrics_url is not None:
                announce(f"metrics {broker.metrics_url}")
            async with anyio.create_task_group() as group:
                group.start_soon(_first, group.cancel_scope, broker.wait_closed)
                await anext(aiter(signals))
                group.cancel_scope.cancel()
            if not broker.client_urls:
                raise PeerError("a task of the broker failed, so the broker was closed: see the log")
            async with anyio.create_task_group() as group:
                group.start_soon(_first, group.cancel_scope, broker.drain, drain)
                await anext(aiter(signals))
                await broker.aclose()
                group.cancel_scope.cancel()


async def _first(scope: anyio.CancelScope, function: Callable[..., Awaitable[object]], *args: float) -> None:
    await function(*args)
    scope.cancel()
