"""Serving an application with uvicorn so that a signal loses no answer."""

from __future__ import annotations

import math
from typing import Any, Final

from ..cluster.worker import Worker
from ..hosting import tell_of_threads_left
from ..plugins.tools import check_count, end_by_sigterm, seconds, shown

FAILED: Final = 3
"""uvicorn's status where an address is taken, or the lifespan fails."""
ADDRESS: Final = "http"
"""The name of the only address of an application, among those that a worker inherits."""


def run(app: Any, *, drain: float = 20.0, host: str = "127.0.0.1", port: int = 8000, workers: int = 1, **options: Any) -> None:
    """Serve an application with uvicorn until SIGINT or SIGTERM, then drain the attached buses, then stop.

    By itself uvicorn closes all WebSockets first, and what their handlers were working on is lost. A second signal ends at
    once. When it listens, it prints a line as `polybus.run` does: ``serving http://127.0.0.1:8000``.

    Args:
        app: The application, or where it is: ``"module:app"``.
        drain: Seconds for running handlers after the signal.
        host: Where to listen.
        port: Where to listen; 0 takes a free one.
        workers: Number of processes that serve, as in `polybus.run`: the application is then given as ``"module:app"``, and its
            buses have a `cluster`.
        options: Further options of `uvicorn.Config`. Other than uvicorn's own defaults: ``ws`` is ``websockets-sansio``, whose
            pings wait for what was written before them as long as that arrives, ``ws_per_message_deflate`` is off,
            ``ws_max_size`` is 1 MiB or the largest `Limits.message` of the buses that start with the application, pings as in
            `Limits`, ``timeout_graceful_shutdown`` as `drain`.

    Raises:
        ValueError: ``reload``, or a number that cannot be.
        TypeError: `app` is no application, `drain` or `workers` is no number, or there are several workers and the application
            is an object.
        LocalProtocolError: There are several workers of a bus without `cluster`, or no NATS server is found for them.
        ImportError: uvicorn is not installed.
        SystemExit: The address is taken, or the application's lifespan or, later, that of a bus failed (uvicorn's status 3).
    """
    end_by_sigterm()
    if not (isinstance(app, str) or callable(app)):
        raise TypeError(
            f"run({shown(app)}): an application, or where it is, as in 'module:app': attach(app, bus) puts a bus into one, and "
            "polybus.run(bus, url) serves a bus alone"
        )
    drain = seconds(drain, "drain")
    check_count(workers, "workers")
    if options.get("reload"):
        raise ValueError("reload= is not for run(): for development use uvicorn --reload")
    if workers > 1 and not isinstance(app, str):
        raise TypeError(
            f"run({shown(app)}, workers={workers}): each worker imports the application, so say where it is: "
            f"run('module:app', workers={workers})"
        )
    try:
        from ..bindings.http.uvicorn import PatientWebSockets
        from ._server import DrainingServer
    except ImportError as error:
        raise ImportError(f"run() needs uvicorn ({error}): pip install 'polybus[fastapi]'") from None

    usual = {
        "ws": PatientWebSockets,
        "ws_per_message_deflate": False,
        "timeout_graceful_shutdown": max(1, math.ceil(drain)),
    }
    chosen = {**usual, **options, "app": app, "host": host, "port": port}
    worker = Worker.here()
    if worker is None and workers > 1:
        from ._server import ServedApplication

        if status := ServedApplication(chosen, drain).run(workers):
            raise SystemExit(status)
        return
    server = DrainingServer(drain, chosen, worker)
    server.run(None if worker is None else worker.sockets(ADDRESS))
    tell_of_threads_left(server.buses)
    if server.failed:
        raise SystemExit(FAILED)
