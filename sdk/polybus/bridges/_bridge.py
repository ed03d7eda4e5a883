"""Bridges, which forward requests, publications and streams from one bus to another, under another name or protocol.

A route acts like a handler or subscription. It calls the other bus as a program there would, and translates the answers.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import partial
from itertools import chain
from typing import Any, Final, Self

import anyio

from .. import Bus
from ..errors import BusError, LocalProtocolError, Unsupported
from ..headers import TRACE, VIA
from ..integrations import (
    DRAIN,
    OF_PEERS,
    STREAMS_SHARE,
    BusParts,
    ForwardingRoute,
    Handler,
    HandlerSubscription,
    Runtime,
    SubscriberSpec,
    parts_of,
)
from ..message import Kind, Message
from ..plugins.tools import check_given, shown, to_the_end
from ..subjects import is_pattern, matches
from ._route import Route

logger: logging.Logger = logging.getLogger("polybus")

_REMEMBERED = 1024
"""Number of target subjects that a route caches."""
_LONGEST = 30.0
"""Maximum seconds that a publication waits for space on the target bus."""
_EXTENSIONS: Final = frozenset(("stream", "channel", "tunnel"))


class Crossing(ForwardingRoute):
    """An open route of a bridge. Receives messages on the source bus and sends them on the target bus."""

    is_open = False

    def __init__(self, route: Route, here: BusParts, there: BusParts) -> None:
        name = f"{route.source!r} to {route.target!r}"
        super().__init__(route.source, route.kinds, here, there, name=name, request=route.request, reply=route.reply)
        self.route: Route = route
        self._known: dict[str | int, str | int] = {}
        self._named: frozenset[str] = frozenset((*route.headers, TRACE))
        self._publications: PublicationForwarder | None = None

    # -- opening and closing ---------------------------------------------------------------------------------------------

    async def open(self) -> None:
        self.is_open = True
        here, source = self.here.pubsub, self.source
        self.here.lookup.routes.append(self)
        if "request" in self.kinds:
            here.announcer.add_handler(source)
            await here.announcer.known()
        if "publish" in self.kinds:
            self._publications = PublicationForwarder(self)
            here.add_handler_queue(self._publications)
            try:
                await here.announcer.announce(source)
            except Unsupported as error:
                if "request" not in self.kinds or is_pattern(source):
                    raise
                text = "route %r to %r: requests cross, but publications do not: %s"
                logger.info(text, source, self.route.target, error)

    def close(self) -> None:
        """Stop accepting messages. Publications that are already queued are still forwarded."""
        self.is_open = False
        lookup, here = self.here.lookup, self.here.pubsub
        if self in lookup.routes:
            lookup.routes.remove(self)
            if "request" in self.kinds:
                here.announcer.remove_handlers({self.source} - {*lookup.answered(patterns=True)})
        if self._publications is not None:
            here.remove_handler_queue(self._publications)

    def idle(self, *, lasting: bool) -> bool:
        busy = self._publications is not None and self._publications.busy
        return not busy and super().idle(lasting=lasting)

    def stop(self) -> None:
        super().stop()
        if self._publications is not None:
            self._publications.clear()

    # -- what crosses ----------------------------------------------------------------------------------------------------

    def target(self, subject: str | int) -> str | int:
        found = self._known.get(subject)
        if found is None:
            found = self.route.rewritten(subject)
            self.there.services.subjects.check(found)
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[subject] = found
        return found

    def passed_headers(self, message: Message) -> dict[str, str]:
        return {name: value for name, value in (message.headers or {}).items() if name.lower() in self._named}

    async def publish(self, message: Message) -> None:
        """Publish a message on the target bus, unless it has been there. Failures are counted."""
        here, there = self.here.pubsub, self.there.pubsub
        try:
            target = self.target(message.subject)
            via = here.deduplicator.via_of(message)
            if there.deduplicator.is_own(via):
                return  # the target bus published it, so nothing is lost
            if via.hops >= self.here.services.limits.hops:
                here.relay.stop(message, via.hops)
                return
            via = via.extend(self.here.services.id).add_hops(1)
            if not there.deduplicator.is_news(via, target):
                return
            headers = self.passed_headers(message) or None
            on = await self.converted(self.request, message, Kind.PUBLISH, target, headers)
            now = self.there.services.running.time()
            if message.expires is not None:
                on.expires, on.ttl = message.expires, message.expires - now
            await there.publisher.publish_bridged(on, via, now + _LONGEST, of_peers=OF_PEERS in message.shared)
        except BusError as error:  # one peer failed; the others have the publication
            self.lost(message, error)


class PublicationForwarder(HandlerSubscription):
    """A queue of publications for an open route, which publishes them on the target bus."""

    __slots__ = ("_here",)
    leads_on = True

    def __init__(self, crossing: Crossing) -> None:
        services = crossing.here.services
        handler = Handler(crossing.source, crossing.publish, "async")
        handler.only_body = lambda message: message  # takes the whole message, without parsing a signature
        super().__init__(services, services.running, SubscriberSpec(handler, 1000, "block", 1))
        self._here = crossing.here.pubsub

    def offer(self, message: Message) -> None:
        on = message.with_headers(message.headers)
        if message.subject != self.pattern and not matches(self.pattern, message.subject):
            on.subject = self._spelled(message)
        on.extras = message.attributes or None  # some kinds of messages create attributes on access
        on.shared[VIA] = str(self._here.deduplicator.via_of(message)).encode()
        on.peer = message.peer
        if message.peer is not None or OF_PEERS in message.shared:
            on.shared[OF_PEERS] = b""
        super().offer(on)

    offer_shared = offer

    def _spelled(self, message: Message) -> str | int:
        own = self._here.publisher.spellings(message.subject).values()
        spellings = chain(message.spellings, chain.from_iterable(own))
        return next((one for one in spellings if matches(self.pattern, one)), message.subject)


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
        LocalProtocolError: On entry, if the bridge is already entered.
        Unsupported: On entry, if a bus has links but none of them supports a route.
    """
    return Bridge(left, right, routes)
