"""`polybus bridge`"""

from __future__ import annotations

import logging
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated, Any, Literal

import anyio

from .. import Bus, Peer, Route
from .. import bridge as join
from ..integrations import parts_of
from ..plugins.registry import with_tls
from ..plugins.tools import without_secrets
from .options import Ca, Header, Insecure, Key, OwnCert, Wait, argument, option
from .problems import UsageError, announce, unwrapped
from .routes import read_routes
from .values import client_tls, dialling, server_tls


def bridge(
    left: Annotated[str, argument("LEFT", "One side, for example ubre+ws://127.0.0.1:8000/bus")],
    right: Annotated[str, argument("RIGHT", "The other side, for example csb+tcp://127.0.0.1:9000")],
    routes: Annotated[Path, option("FILE", "Routes in TOML: [[route]] with source and target.")],
    serve: Annotated[
        list[str] | None,
        option("SIDE", "left or right: serve at that URL instead of connecting to it; may be given twice."),
    ] = None,
    insecure: Insecure = False,
    header: Header = None,
    ca: Ca = None,
    cert: OwnCert = None,
    key: Key = None,
    wait: Wait = 0.0,
) -> None:
    """Pass requests and publications between two sides, until SIGINT or SIGTERM.

    Clients must reach the bridge: serve the side with the callers (--serve left), and connect to the side with the handlers.
    """
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    served = set(serve or ())
    if unknown := sorted(served - {"left", "right"}):
        raise UsageError(f"--serve {unknown[0]!r}: left or right")
    if ca is not None and len(served) == 2:
        raise UsageError("--ca: certificate authorities for connections of the bridge, and it serves both sides")
    secure = with_tls((left, right))

    def serving(url: str) -> dict[str, Any]:
        return {"insecure": insecure, "tls": server_tls(cert, key) if url in secure else None}

    def dial(url: str) -> dict[str, Any]:
        return dialling(header, client_tls(ca, cert, key) if url in secure else None, wait)

    unwrapped(lambda: anyio.run(_run, left, right, read_routes(routes), served, serving, dial))


async def _run(
    left: str,
    right: str,
    routes: list[Route],
    served: set[str],
    serving: Callable[[str], dict[str, Any]],
    dial: Callable[[str], dict[str, Any]],
) -> None:
    async def enter(side: Literal["left", "right"], url: str, bus: Bus) -> str:
        if side in served:
            listener = await stack.enter_async_context(bus.serve(url, **serving(url)))
            return f"{side} serves {listener.url}"
        opened[bus] = await stack.enter_async_context(bus.connect(url, **dial(url)))
        return without_secrets(f"{side} is connected to {url}")

    one, two = Bus(), Bus()
    opened: dict[Bus, Peer] = {}
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with anyio.create_task_group() as leaving, AsyncExitStack() as stack:
            stack.callback(leaving.cancel_scope.cancel)  # after everything else
            said = [await enter("left", left, one), await enter("right", right, two)]
            joined = await stack.enter_async_context(join(one, two, routes=routes))
            announce("\n".join(said))
            async with anyio.create_task_group() as group:
                for bus, peer in opened.items():
                    group.start_soon(_while_there, bus, peer)
                await anext(aiter(signals))
                group.cancel_scope.cancel()
            leaving.start_soon(_cut_by_a_second, signals, joined)


async def _cut_by_a_second(signals: AsyncIterator[signal.Signals], joined: Any) -> None:
    """A second signal stops what the first lets finish."""
    await anext(aiter(signals))
    joined.hurry()
    await joined.left.aclose()
    await joined.right.aclose()


async def _while_there(bus: Bus, peer: Peer) -> None:
    """Wait until a link is lost for good, and raise the reason: a bridge needs both sides."""
    raise await parts_of(bus).gone(peer)
