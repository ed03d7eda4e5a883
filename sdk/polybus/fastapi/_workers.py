"""An application that several processes serve. Loaded where uvicorn is installed."""

from __future__ import annotations

import logging
import os
import socket
import stat
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import uvicorn

from .. import Bus
from ..cluster.workers import supervise
from ..transports.sockets import bind_tcp, bind_unix
from ._attachment import AttachedRoute
from ._run import ADDRESS, FAILED
from ._server import patience

logger: logging.Logger = logging.getLogger("uvicorn.error")

_OPEN: Final = 0o666
"""uvicorn's mode of a Unix socket whose file is new."""
_DEPTH: Final = 20


class Application:
    """The application, as the process sees it that has it served."""

    def __init__(self, options: Mapping[str, Any], drain: float) -> None:
        self._config = uvicorn.Config(**options)
        self._drain = drain

    def run(self, workers: int) -> int:
        """Have it served; gives the exit status."""
        self._config.load()
        return supervise(
            count=workers,
            buses=list(dict.fromkeys(buses_of(self._config.loaded_app))),
            bind=self._bind,
            patience=patience(self._config, self._drain),
            unlink=self._config.fd is None,
        )

    async def _bind(self) -> dict[str, Sequence[socket.socket]]:
        try:
            return {ADDRESS: await self._bound()}
        except OSError as error:
            logger.error(error)
            raise SystemExit(FAILED) from None

    async def _bound(self) -> list[socket.socket]:
        config = self._config
        if config.fd is not None:
            return [socket.socket(fileno=os.dup(config.fd))]
        if config.uds is not None:
            return [_bind_unix(config.uds)]
        return await bind_tcp(config.host, config.port)


def _bind_unix(path: str) -> socket.socket:
    """As uvicorn does: who may connect is as it was, or everybody."""
    mode = stat.S_IMODE(os.stat(path).st_mode) if os.path.exists(path) else _OPEN
    sock = bind_unix(path)
    os.chmod(path, mode)
    return sock


def buses_of(app: Any, depth: int = 0) -> Iterator[Bus]:
    """The buses attached to an application, to those mounted in it, and to those that middleware is wrapped around."""
    if depth > _DEPTH:  # it contains itself
        return
    endpoint = getattr(app, "endpoint", None)
    if isinstance(endpoint, AttachedRoute):
        yield endpoint.attachment.bus
        return
    routes = getattr(app, "routes", None)
    for route in routes if isinstance(routes, Sequence) else ():
        yield from buses_of(route, depth + 1)
    # A wrapper has the one, a router that the newer FastAPI has included the other.
    inner = getattr(app, "app", None) or getattr(app, "original_router", None)
    if inner is not None and not routes:
        yield from buses_of(inner, depth + 1)
