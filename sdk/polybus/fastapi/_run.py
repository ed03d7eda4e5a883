"""Serving an application with uvicorn so that a signal loses no answer."""

from __future__ import annotations

import math
from typing import Any

from .._validation import seconds


def run(app: Any, *, drain: float = 20.0, host: str = "127.0.0.1", port: int = 8000, **options: Any) -> None:
    """Serve an application with uvicorn until SIGINT or SIGTERM, then drain the attached buses, then stop.

    By itself uvicorn closes all WebSockets first, and what their handlers were working on is lost. A second signal ends at
    once. When it listens, it prints a line as `polybus.run` does: ``serving http://127.0.0.1:8000``.

    Args:
        app: The application, or where it is: ``"module:app"``.
        drain: Seconds for running handlers after the signal.
        host: Where to listen.
        port: Where to listen; 0 takes a free one.
        options: Further options of `uvicorn.Config`. Other than uvicorn's own defaults: ``ws`` is ``websockets-sansio``, whose
            pings wait for what was written before them as long as that arrives, ``ws_per_message_deflate`` is off,
            ``ws_max_size`` is 1 MiB or the largest `Limits.message` of the buses that start with the application, pings as in
            `Limits`, ``timeout_graceful_shutdown`` as `drain`.

    Raises:
        ValueError: ``workers`` or ``reload``: a bus lives in one process; or `drain` is negative or infinite.
        TypeError: `drain` is no number.
        ImportError: uvicorn is not installed.
        SystemExit: The address is taken, or the application's lifespan failed (uvicorn's status 3).
    """
    drain = seconds(drain, "drain")
    if (options.get("workers") or 1) > 1 or options.get("reload"):
        raise ValueError(
            "workers= and reload= are not for run(), a bus lives in one process: to use more processors start several, "
            "on ports of their own; for development use uvicorn --reload"
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
    DrainingServer(drain, {**usual, **options, "app": app, "host": host, "port": port}).run()
