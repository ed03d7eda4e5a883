"""Bridges, which forward requests, publications and streams from one bus to another, under another name or protocol.

A route acts like a handler or subscription. It calls the other bus as a program there would, and translates the answers.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, Final, Self

import anyio

from .. import Bus
from ..errors import LocalProtocolError, Unsupported
from ..integrations import DRAIN, STREAMS_SHARE, BusParts, Runtime, parts_of
from ..plugins.tools import check_given, shown, to_the_end
from ._crossing import Crossing
from ._route import Route

_EXTENSIONS: Final = frozenset(("stream", "channel", "tunnel"))


class Bridge:
    def __init__(self, left: Bus, right: Bus, routes: Iterable[Route]) -> None:
        for name, bus in (("left", left), ("right", right)):
            check_given(bus, Bus, name, f"{name}=Bus(), which gets links from connect(url, bus=bus) or bus.serve(url)")
        if left is right:
            raise ValueError("a bridge joins two buses, but left and right are the same")
        self.left: Bus = left
        self.right: Bus = right
        if isinstance(routes, Route) or not isinstance(routes, Iterable):
            raise TypeError(
                f"routes={shown(routes)} must be a list, for example routes=[Route('door.>', 'vehicle.door.{{rest}}')]"
            )
        self.routes: tuple[Route, ...] = tuple(routes)
        for route in self.routes:
            if not isinstance(route, Route):
                raise TypeError(f"routes: {route!r} is not a Route")
        if not self.routes:
            raise ValueError("routes= is empty, so the bridge would forward nothing")
        self._ends: tuple[BusParts, BusParts] = (parts_of(left), parts_of(right))
        self._crossings = [Crossing(route, *(self._ends[::-1] if route.reverse else self._ends)) for route in self.routes]
        self._entered: list[tuple[BusParts, Runtime]] = []
        self._patience: anyio.CancelScope | None = None

    async def __aenter__(self) -> Self:
        if self._entered:
            raise LocalProtocolError("this bridge is already entered: create another one with bridge()")
        try:
            for end in self._ends:
                self._entered.append((end, await end.life.enter()))
            for crossing in self._crossings:
                _check(crossing)
            for crossing in self._crossings:
                await crossing.open()
        except BaseException as error:
            await self._leave(error)
            raise
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        await self._leave(error)

    async def _leave(self, error: BaseException | None) -> None:
        for crossing in self._crossings:
            crossing.close()
        await to_the_end(self._end, error)

    async def _end(self, error: BaseException | None) -> None:
        if error is None:
            await self._drain()
        for crossing in self._crossings:
            crossing.stop()
        while self._entered:
            end, runtime = self._entered.pop()
            await end.life.leave(runtime, error)

    async def _drain(self) -> None:
        with anyio.move_on_after(DRAIN) as self._patience:
            with anyio.move_on_after(DRAIN * STREAMS_SHARE):
                await self._until_idle(lasting=True)
            for crossing in self._crossings:
                crossing.end_streams()
            await self._until_idle(lasting=False)

    def hurry(self) -> None:
        if self._patience is not None:
            self._patience.cancel()

    async def _until_idle(self, *, lasting: bool) -> None:
        for crossing in self._crossings:
            if (runtime := crossing.here.services.runtime) is not None:
                await runtime.notifier.until(partial(crossing.idle, lasting=lasting))


def _check(crossing: Crossing) -> None:
    """Raise `Unsupported` if a bus has links but none of them supports the route."""
    route = crossing.route
    for end, subject, which in ((crossing.here, route.source, "source"), (crossing.there, route.target, "target")):
        adapters = [*end.links.adapters()]
        faults = [fault for adapter in adapters if (fault := _fault(adapter, subject, route))]
        if faults and len(faults) == len(adapters):
            raise Unsupported(f"route {route.source!r} to {route.target!r}: its {which} side cannot carry that: {faults[0]}")


def _fault(adapter: Any, subject: str | int, route: Route) -> str | None:
    capabilities = adapter.session("client").capabilities
    if isinstance(subject, int) and not capabilities.numbers:
        return f"{adapter.name} does not support integers as subjects, such as {subject:#x}"
    if "publish" in route.kinds and not capabilities.publish:
        return f"{adapter.name} does not support publications"
    extended = sorted(route.kinds & _EXTENSIONS)
    if extended and not capabilities.extensions:
        return f"{adapter.name} does not support {', '.join(extended)}"
    if route.headers and not capabilities.headers:
        return f"{adapter.name} does not support headers, but the route passes {', '.join(route.headers)}"
    return None


def bridge(left: Bus, right: Bus, *, routes: Iterable[Route]) -> Bridge:
    """Connect two buses so that messages from one reach the other.

    Use the result as an async context manager, which enters both buses: ``async with bridge(left, right,
    routes=[Route("door.>", "vehicle.door.{rest}")]): ...``

    The target bus treats a message as if a local program had sent it: the message goes to a local handler, over another bridge,
    or over a link that the target bus opened. Deadlines are reduced by the elapsed time, cancellations are forwarded, and
    errors are returned unchanged. Only ``traceparent`` and the headers that the route lists are forwarded. Each publication
    crosses each bridge only once, even if bridges form a ring.

    Args:
        left: One bus.
        right: The other bus.
        routes: Messages to forward. A request uses the first matching route, and a publication uses all matching routes.

    Raises:
        TypeError, ValueError: If the routes are invalid, or `left` and `right` are the same bus.
        LocalProtocolError: On entry, if the bridge has already been entered.
        Unsupported: On entry, if a bus has links but none of them supports a route.
    """
    return Bridge(left, right, routes)
