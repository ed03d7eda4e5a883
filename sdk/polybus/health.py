"""``/livez`` and ``/readyz`` for `polybus.run`: enough HTTP for a kubelet or a load balancer, nothing more."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import anyio

from .arguments import shown

if TYPE_CHECKING:
    from .bus import Bus

__all__ = ["Health"]

logger: logging.Logger = logging.getLogger("polybus")

_SECONDS = 5.0
"""For one question and its answer."""


class Health:
    """Answers whether the process lives, and whether its bus takes requests.

    Args:
        bus: Asked for `ready`.
        url: ``http://host:port``.

    Raises:
        TypeError: It is no text.
        ValueError: The URL is not of that form.
    """

    def __init__(self, bus: Bus, url: str) -> None:
        if not isinstance(url, str):
            raise TypeError(f"health={shown(url)}: a URL such as 'http://127.0.0.1:8081', not {type(url).__name__}")
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError:
            port = None
        if parts.scheme != "http" or not parts.hostname or port is None:
            raise ValueError(f"health={url!r}: of the form http://127.0.0.1:8081")
        self._bus = bus
        self._url = url
        self._host, self._port = parts.hostname, port
        self.ready: bool = False
        """Whether others should send requests here; only then the bus is asked too."""

    async def serve(self, *, task_status: Any) -> None:
        """Answer until cancelled. Started when the address is bound.

        Raises:
            OSError: The address cannot be bound.
        """
        try:
            listener = await anyio.create_tcp_listener(local_host=self._host, local_port=self._port)
        except OSError as error:
            raise OSError(error.errno, f"cannot listen on {self._url}: {error.strerror or error}") from error
        async with listener:
            task_status.started()
            while True:
                try:
                    await listener.serve(self._answer)
                except OSError as error:  # such as no file descriptors left: no reason to end what is being served
                    logger.warning("polybus: health checks pause: %s", error)
                    await anyio.sleep(1)

    async def _answer(self, stream: Any) -> None:
        # Whoever only knocks, or goes in the middle, is no reason to stop answering others.
        with suppress(anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            async with stream:
                with anyio.move_on_after(_SECONDS):
                    request = await stream.receive(4096)
                    await stream.send(self._response((request.split(b" ", 2) + [b"", b""])[1]))

    def _response(self, path: bytes) -> bytes:
        ready = "200 OK" if self.ready and self._bus.ready else "503 Service Unavailable"
        status = {b"/livez": "200 OK", b"/readyz": ready}.get(path.partition(b"?")[0], "404 Not Found")
        text = f"{status}\n"
        fields = f"content-type: text/plain\r\ncontent-length: {len(text)}\r\nconnection: close"
        return f"HTTP/1.1 {status}\r\n{fields}\r\n\r\n{text}".encode()
