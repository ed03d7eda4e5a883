"""Serving until a signal: `polybus.run`."""

from __future__ import annotations

import logging
import signal
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import anyio

if TYPE_CHECKING:
    from contextlib import AsyncExitStack

    from .bus import Bus

__all__ = ["run"]

logger: logging.Logger = logging.getLogger("polybus")


def run(
    bus: Bus,
    *urls: str,
    drain: float = 20.0,
    delay: float = 0.0,
    health: str | None = None,
    backend: str = "asyncio",
    uvloop: bool = False,
    **options: Any,
) -> None:
    """Serve until SIGINT or SIGTERM, then drain. A second signal ends at once.

    Args:
        bus: What to serve.
        urls: Where; see `Bus.serve`.
        drain: Seconds for running handlers after the signal.
        delay: Seconds between the signal and the drain, while requests are still taken but ``/readyz`` says 503: load
            balancers need them to look elsewhere.
        health: ``http://127.0.0.1:8081`` answers ``/livez`` and ``/readyz`` there.
        backend: ``asyncio`` or ``trio``.
        uvloop: Use uvloop on asyncio.
        options: Further options of `Bus.serve`, for all URLs.

    Raises:
        ValueError: A URL or an option is wrong.
        OSError: An address cannot be bound.
    """
    backend_options = {"use_uvloop": True} if uvloop and backend == "asyncio" else {}
    anyio.run(_serve, bus, urls, drain, delay, health, options, backend=backend, backend_options=backend_options)


async def _serve(
    bus: Bus, urls: tuple[str, ...], drain: float, delay: float, health: str | None, options: dict[str, Any]
) -> None:
    from contextlib import AsyncExitStack

    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with bus, AsyncExitStack() as stack:
            probe = _Probe(bus)
            if health is not None:
                await probe.listen(health)
            try:
                await _listen(bus, urls, stack, options)
                await anext(aiter(signals))
                logger.info("polybus: draining")
                probe.ready = False
                async with anyio.create_task_group() as group:
                    group.start_soon(_drain, bus, drain, delay, group.cancel_scope)
                    await anext(aiter(signals))
                    logger.warning("polybus: second signal, ending at once")
                    group.cancel_scope.cancel()
            finally:
                await probe.aclose()
            if bus.stats().running:
                await bus.aclose()


async def _listen(bus: Bus, urls: tuple[str, ...], stack: AsyncExitStack, options: dict[str, Any]) -> None:
    for url in urls:
        listener = await stack.enter_async_context(bus.serve(url, **options))
        logger.info("polybus: serving %s", listener.url)
        print(f"serving {listener.url}", flush=True)


async def _drain(bus: Bus, drain: float, delay: float, scope: anyio.CancelScope) -> None:
    await anyio.sleep(delay)
    await bus.drain(drain)
    scope.cancel()


class _Probe:
    """Answers ``/livez`` and ``/readyz``: enough HTTP for a kubelet or a load balancer, nothing more."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._listener: Any = None
        self.ready: bool = True

    async def listen(self, url: str) -> None:
        """Bind.

        Raises:
            ValueError: Not of the form ``http://host:port``.
            OSError: The address cannot be bound.
        """
        from urllib.parse import urlsplit

        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname or parts.port is None:
            raise ValueError(f"health={url!r}: of the form http://127.0.0.1:8081")
        self._listener = await anyio.create_tcp_listener(local_host=parts.hostname, local_port=parts.port)
        self._bus._running.spawn(self._listener.serve, self._answer)

    async def _answer(self, stream: Any) -> None:
        # Whoever only knocks, or goes in the middle, is no reason to stop answering others.
        with suppress(anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            await self._reply(stream)

    async def _reply(self, stream: Any) -> None:
        async with stream:
            with anyio.move_on_after(5):
                request = await stream.receive(4096)
                path = (request.split(b" ", 2) + [b"", b""])[1]
                ready = self.ready and self._bus.ready
                status = {b"/livez": "200 OK", b"/readyz": "200 OK" if ready else "503 Service Unavailable"}.get(
                    path, "404 Not Found"
                )
                text = f"{status}\n"
                fields = f"content-type: text/plain\r\ncontent-length: {len(text)}\r\nconnection: close"
                head = f"HTTP/1.1 {status}\r\n{fields}\r\n\r\n"
                await stream.send(f"{head}{text}".encode())

    async def aclose(self) -> None:
        """Stop answering."""
        if self._listener is not None:
            with anyio.CancelScope(shield=True):
                await self._listener.aclose()
