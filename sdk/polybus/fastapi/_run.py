"""Serves an application with uvicorn so that a signal does not lose any answers."""

from __future__ import annotations

import math
import socket
from typing import Any, Final

from ..cluster.worker import Worker
from ..integrations import tell_of_threads_left
from ..plugins.tools import cannot_listen, check_count, check_given, check_host, end_by_sigterm, seconds, shown

FAILED: Final = 3
"""Exit status that uvicorn uses if an address is in use or the lifespan fails."""
ADDRESS: Final = "http"
"""Name of the application's address among the addresses that a worker inherits."""


def _check_host(host: str, port: int) -> None:
    """Raise ValueError if a host is malformed, and OSError if it does not resolve."""
    check_host(host, f"host={host!r}")
    try:
        _ = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise cannot_listen(f"{host} port {port}", error) from None


def run(app: Any, *, drain: float = 20.0, host: str = "127.0.0.1", port: int = 8000, workers: int = 1, **options: Any) -> None:
    """Serve an application with uvicorn until SIGINT or SIGTERM arrives, then drain the attached buses and stop.

    Plain uvicorn closes all WebSockets first, so the work of their handlers is lost. A second signal stops at once. Once the
    server listens, it prints a line like `polybus.run`: ``serving http://127.0.0.1:8000``.

    Args:
        app: The application, or its import path ``"module:app"``.
        drain: Seconds for running handlers after the signal.
        host: Host or address to listen on.
        port: Port to listen on, or 0 for a free port.
        workers: Number of serving processes, as for `polybus.run`. More than one requires an import path, and buses with a
            `cluster`.
        options: Further options of `uvicorn.Config`. Some defaults differ from uvicorn's. ``ws`` is ``websockets-sansio``, with
            ping timeouts that are delayed while earlier data still arrives, and ``ws_per_message_deflate`` is off.
            ``ws_max_size`` is 1 MiB, or the largest `Limits.message` of the buses that start with the application. Pings follow
            `Limits`, and ``timeout_graceful_shutdown`` follows `drain`.

    Raises:
        ValueError: If `drain` or `workers` is out of range, or ``reload`` is set.
        TypeError: If `app` is not an application, `host` is not a string, `drain`, `port` or `workers` is not a
            number, `app` is not an import path although there are several workers, or uvicorn has no such option.
        LocalProtocolError: If other machines can reach `host` and a bus has neither `authenticate` nor ``insecure=True``, or if
            there are several workers and a bus has no `cluster`, or no NATS server is found for them.
        ImportError: If uvicorn is not installed.
        SystemExit: With status 1 and one line on stderr if `host` or `port` is invalid, or `host` does not resolve. With
            uvicorn's status if `app` cannot be imported, or, 3, if the address is in use or the lifespan of the application or
            of a bus fails.
    """
    end_by_sigterm()
    if not (isinstance(app, str) or callable(app)):
        raise TypeError(
            f"run({shown(app)}): pass an application, or its import path as in 'module:app'; attach(app, bus) adds a bus to "
            "it, and polybus.run(bus, url) serves a bus without an application"
        )
    drain = seconds(drain, "drain")
    check_count(workers, "workers")
    check_given(host, str, "host", "host='127.0.0.1'")
    try:
        check_count(port, "port", 0, 65535)
        if options.get("uds") is None and options.get("fd") is None:
            _check_host(host, port)
    except (ValueError, OSError) as error:
        raise SystemExit(str(error)) from error
    if options.get("reload"):
        raise ValueError("reload= is not for run(): for development use uvicorn --reload")
    if workers > 1 and not isinstance(app, str):
        raise TypeError(
            f"run({shown(app)}, workers={workers}): each worker imports the application, so pass its import path: "
            f"run('module:app', workers={workers})"
        )
    try:
        from ..bindings.http.uvicorn import PatientWebSockets
        from ._server import DrainingServer, run_workers
    except ImportError as error:
        raise ImportError(f"run() needs uvicorn ({error}): pip install 'polybus[fastapi]'") from None

    usual = {"ws": PatientWebSockets, "ws_per_message_deflate": False, "timeout_graceful_shutdown": max(1, math.ceil(drain))}
    chosen = {**usual, **options, "app": app, "host": host, "port": port}
    worker = Worker.here()
    if worker is None and workers > 1:
        if status := run_workers(chosen, drain, workers):
            raise SystemExit(status)
        return
    server = DrainingServer(drain, chosen, worker)
    server.run(None if worker is None else worker.sockets(ADDRESS))
    tell_of_threads_left(server.buses)
    if server.failed:
        raise SystemExit(FAILED)
