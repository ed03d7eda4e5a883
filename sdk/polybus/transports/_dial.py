"""Dialling: one attempt to reach a server, bounded in time, with its failures in plain words."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import anyio

from ..errors import ConnectFailed
from ._wire import Wire, plain_reason

if TYPE_CHECKING:
    from ..plugins import Host

__all__ = ["bounded", "dial_tcp", "dial_unix"]


@contextmanager
def bounded(url: str, seconds: float, step: str) -> Iterator[None]:
    """Gives what is inside so many seconds.

    Raises:
        ConnectFailed: It failed or took too long.
    """
    scope = anyio.CancelScope()
    try:
        with anyio.move_on_after(seconds) as scope:
            yield
    except (OSError, EOFError, UnicodeError, anyio.BrokenResourceError, anyio.EndOfStream, anyio.ClosedResourceError) as error:
        if isinstance(error, ConnectFailed):
            raise
        raise ConnectFailed(url, plain_reason(error)) from error
    if scope.cancelled_caught:
        raise ConnectFailed(url, f"timed out after {seconds:g} s {step}")


async def dial_tcp(url: str, host: str, port: int, tls: ssl.SSLContext | None, bus: Host) -> Wire:
    """A wire to a TCP address, after the TLS handshake where there is one.

    Raises:
        ConnectFailed: With the reason.
    """
    limits = bus.limits
    seconds = limits.connect_timeout + (limits.handshake_timeout if tls is not None else 0)
    with bounded(url, seconds, "while connecting"):
        if bus.backend == "asyncio":
            from . import _wire_asyncio

            wire: Wire = await _wire_asyncio.dial_tcp(host, port, tls, limits)
        else:
            from . import _wire_pump

            wire = await _wire_pump.dial_tcp(host, port, tls, bus)
    return wire


async def dial_unix(url: str, path: str, bus: Host) -> Wire:
    """A wire to a Unix socket.

    Raises:
        ConnectFailed: With the reason.
    """
    with bounded(url, bus.limits.connect_timeout, "while connecting"):
        if bus.backend == "asyncio":
            from . import _wire_asyncio

            wire: Wire = await _wire_asyncio.dial_unix(path)
        else:
            from . import _wire_pump

            wire = await _wire_pump.dial_unix(path, bus)
    return wire
