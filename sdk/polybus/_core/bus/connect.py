"""The one-line client."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

from ..._util.misuse import CONNECT, explains
from ..._validation import check_type
from ...backoff import Backoff
from ...limits import Limits
from .bus import Bus, parts_of
from .dialer import Connecting, Headers

if TYPE_CHECKING:
    import ssl

    from ...plugins import Connector, ProtocolAdapter


@explains("connect", CONNECT)
def connect(
    target: str | Connector,
    *,
    bus: Bus | None = None,
    protocol: str | ProtocolAdapter | None = None,
    serves: Iterable[str | int] = (),
    headers: Headers = None,
    tls: ssl.SSLContext | None = None,
    backoff: Backoff | None = None,
    wait: float = 0.0,
    limits: Limits | None = None,
    record: str | os.PathLike[str] | None = None,
) -> AbstractAsyncContextManager[Bus]:
    """Open a link: ``async with connect("ubre+ws://127.0.0.1:8000/bus") as bus: ...``

    The first connect fails fast; an established link is retried, and its subscriptions are restored before other traffic.
    Leaving the block drains.

    Args:
        target: A URL ``<protocol>+<transport>://<address>``, or a transport object.
        bus: Add the link to this bus in place of a new one.
        protocol: For a transport object: name or adapter. With a URL: an adapter with options that no URL can say.
        serves: Patterns of the requests that belong to this link, where a bus opens several.
        headers: For the handshake; a callable (plain or async) is called before every attempt. What it raises is a failed
            attempt, `Unauthorized` and `Forbidden` are refusals.
        tls: A client-side context for ``tls`` and ``wss``; the default verifies against the system's authorities.
        backoff: Waits between attempts to come back.
        wait: Seconds during which the first connect is retried; `math.inf` for as long as it takes.
        limits: For a new bus; see `Limits`.
        record: A folder: every frame of this link is written there, as by `Bus.record` with its defaults.

    Raises:
        ValueError: The URL or an option is wrong, or `limits` is given together with `bus`.
        TypeError: An option is of a wrong type.
        ConnectFailed: (on entering) With the address and the reason.
        Unauthorized, Forbidden: (on entering) The server refuses us; never retried.
    """
    check_type(bus, Bus, "bus", "bus=Bus()")
    if bus is None:
        bus = Bus(limits=limits)
    elif limits is not None:
        raise ValueError("limits belong to the bus: pass Bus(limits=...) or connect(limits=...), not both")
    return Connecting(parts_of(bus), target, protocol, serves, headers, tls, backoff, wait, record, gives_bus=True)
