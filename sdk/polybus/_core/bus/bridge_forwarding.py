"""Forwards messages across a bridge, and translates bodies and errors."""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import AsyncIterator, Callable, Sequence
from itertools import chain
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

import anyio
from attrs import define, field, frozen
from msgspec import Struct

from ..._util.logs import ViolationCounter, log_fields
from ...errors import (
    BadReply,
    BusError,
    Code,
    ConnectFailed,
    DeadlineExceeded,
    Disconnected,
    EncodeError,
    LocalProtocolError,
    QueueFull,
    RequestError,
    ReservedSubject,
    Unavailable,
    Unsupported,
)
from ...headers import VIA
from ...message import MISSING, RELAYED, Kind, Message
from ...plugins import Closed
from ...subjects import is_pattern, matches
from ..handlers.handler import Handler, SubscriberSpec
from ..pubsub.handler_subscription import HandlerSubscription
from ..pubsub.publisher import OF_PEERS
from ..rpc.call import Call, ChannelCall
from ..rpc.channel import Channel, ChannelContext
from ..rpc.loopback import HandlerParty
from ..runtime.loop_prevention import TRACE, ViaHeader, depth_of_sender, too_far
from ..runtime.memory_budgets import AnswerSizes
from ..tunnel import WINDOW, FrameChannel, too_large
from .bridge_routes import Route
from .tunnel_listener import TunnelListener, hops_of, tunnel_call

if TYPE_CHECKING:
    from ..peer.peer_core import PeerCore
    from ..runtime.services import Services
    from .bus_parts import BusParts

logger: logging.Logger = logging.getLogger("polybus")

LEAVING: Final = "the bridge is leaving: try again later"
USUAL: Final = 30.0
"""Timeout in seconds for messages without a deadline."""
_REMEMBERED: Final = 1024
"""Number of target subjects that a route caches."""
_SET_OUT: Final = (Kind.REQUEST, Kind.NOTIFY, Kind.PUBLISH)
_CARRIED: Final = ("id", "priority")
_MISUSE: Final = (EncodeError, LocalProtocolError, ReservedSubject, Unsupported)


def carried(kind: Kind, message: Message) -> dict[str, Any] | None:
    """Return the attributes to forward: the id and priority of a request, notification or publication."""
    if kind not in _SET_OUT:
        return None
    known = message.attributes
    facts = known.get(RELAYED)  # from an earlier bridge
    if not isinstance(facts, dict):
        facts = {name: value for name in _CARRIED if isinstance(value := known.get(name), str)}
    return {RELAYED: facts} if facts else None


async def applied(convert: Callable[..., Any] | None, body: Any, message: Message) -> Any:
    if convert is None:
        return body
    found = convert(body, message)
    return await found if inspect.isawaitable(found) else found


def translated(error: BaseException) -> RequestError:
    """Return the error to send to the client for a failure on the other side of the bridge."""
    if isinstance(error, RequestError):
        return error.relay() if error.received else error
    if isinstance(error, DeadlineExceeded) and error.text:
        return RequestError(Code.DEADLINE_EXCEEDED, error.text, reason=error.reason, detail=error.detail)
    if isinstance(error, TimeoutError):
        return RequestError(Code.DEADLINE_EXCEEDED, "no answer from the other side of the bridge in time")
    if isinstance(error, QueueFull):
        return RequestError(Code.RESOURCE_EXHAUSTED, f"the other side of the bridge is slow: {error}")
    if isinstance(error, (Disconnected, ConnectFailed)):
        return Unavailable("the other side of the bridge is unavailable: try again later")
    if isinstance(error, _MISUSE):
        return RequestError(Code.INVALID_ARGUMENT, f"the other side of the bridge cannot carry this: {error}")
    if isinstance(error, BadReply):
        return RequestError(Code.INTERNAL, "the answer from the other side of the bridge is malformed")
    return RequestError(Code.UNAVAILABLE, "the other side of the bridge cannot be reached now")


def first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return translated(error) if isinstance(error, BusError) else error


class RouteParty:
    """An open route of a bridge. Receives messages on the source bus and sends them on the target bus."""

    style: Final = "route"
    inward: bool = False
    """True if the route leads to the other nodes of the cluster, where it is not announced."""

    def __init__(self, route: Route, here: BusParts, there: BusParts) -> None:
        self.route: Route = route
        self.here: BusParts = here
        self.there: BusParts = there
        self._known: dict[str | int, str | int] = {}
        self.is_open: bool = False
        self.calls: dict[BridgedCall | ChannelCall, None] = {}
        self._losses = ViolationCounter()
        self.requests: RouteHandler = RouteHandler(route.source, "async", self._invoke)
        self._publications: PublicationForwarder | None = None
        self.tunnels: dict[FrameChannel, None] = {}
        """Channels on this side of the tunnels that cross the bridge."""

    # -- opening and closing ---------------------------------------------------------------------------------------------

    async def open(self) -> None:
        self.is_open, self._losses = True, ViolationCounter()
        here, source = self.here.pubsub, self.route.source
        self.here.lookup.routes.append(self)
        if "request" in self.route.kinds:
            here.announcer.add_handler(source)
            await here.announcer.known()
        if "publish" in self.route.kinds:
            self._publications = PublicationForwarder(self)
            here.add_handler_queue(self._publications)
            try:
                await here.announcer.announce(source)
            except Unsupported as error:
                if "request" not in self.route.kinds or is_pattern(source):
                    raise
                text = "route %r to %r: requests cross, but publications do not: %s"
                logger.info(text, source, self.route.target, error)

    def close(self) -> None:
        """Stop accepting messages. Publications that are already queued are still forwarded."""
        self.is_open = False
        lookup, here = self.here.lookup, self.here.pubsub
        if self in lookup.routes:
            lookup.routes.remove(self)
            if "request" in self.route.kinds:
                here.announcer.remove_handlers({self.route.source} - {*lookup.answered(patterns=True)})
        if self._publications is not None:
            here.remove_handler_queue(self._publications)

    def idle(self, *, lasting: bool) -> bool:
        """Return True if no message is in flight. Streams and channels, which may never end, only count with `lasting`."""
        if self._publications is not None and self._publications.busy:
            return False
        return not any(lasting or not isinstance(call, ChannelCall) for call in self.calls)

    def end_streams(self) -> None:
        for call in [one for one in self.calls if isinstance(one, ChannelCall)]:
            call.cut(Code.UNAVAILABLE, LEAVING)

    def stop(self) -> None:
        for call in list(self.calls):
            call.cut(Code.UNAVAILABLE, LEAVING)
        self.calls.clear()
        for near in list(self.tunnels):
            near.cut(Closed(1001, LEAVING))
        if self._publications is not None:
            self._publications.clear()

    # -- messages of peers -----------------------------------------------------------------------------------------------

    def fits(self, subject: str | int, kind: str) -> bool:
        return kind in self.route.kinds and matches(self.route.source, subject)

    def call(self, peer: PeerCore, message: Message, deadline: float, channel: Channel[Any, Any] | None = None) -> Any:
        call: BridgedCall | ChannelCall
        if channel is not None:
            services, calls = self.here.services, self.calls
            call = ChannelCall(
                services,
                peer.inbound,
                peer,
                self._channel_handler(message.attributes.get("mode", "stream")),
                message,
                deadline,
                channel=channel,
                on_discard=lambda it: calls.pop(it, None),
            )
        elif message.kind is Kind.OPEN:
            return tunnel_call(self, peer, message, deadline, TunnelListener.channel_for(peer, message, text=True))
        else:
            call = BridgedCall(self.here.services, peer.inbound, peer, self.requests, message, deadline, _route=self)
        self.calls[call] = None
        return call

    async def _invoke(self, message: Message, deadline: float | None) -> Message | None:
        if message.kind is Kind.NOTIFY:
            await self.forward_notification(message)
            return None
        return await self.forward(message, math.inf if deadline is None else deadline)

    # -- requests and notifications --------------------------------------------------------------------------------------

    async def forward(self, message: Message, deadline: float) -> Message:
        """Forward a request to the other bus. Raises `RequestError` with the error for the client."""
        try:
            on = await self._onward(Kind.REQUEST, message)
            until = self.there.services.running.time() + USUAL if deadline == math.inf else deadline
            answer: Message = await self._find(on.subject, "request").forward(on, until)
        except (BusError, ConnectionError) as error:
            raise translated(error) from error
        headers = self.headers(answer, None)
        if self.route.reply is not None:
            return await self.converted(self.route.reply, answer, Kind.RESPONSE, answer.subject, headers)
        answer.headers = headers
        return answer

    async def forward_notification(self, message: Message) -> None:
        """Forward a notification to the other bus. Failures are only counted, because no caller is waiting."""
        try:
            on = await self._onward(Kind.NOTIFY, message)
            await self._find(on.subject, "request").forward_notification(on)
        except BusError as error:
            self.lost(message, error)

    def _find(self, subject: str | int, kind: str) -> Any:
        return self.there.routing.find_beyond(subject, kind, self.here)

    async def _onward(self, kind: Kind, message: Message) -> Message:
        target, headers = self.target(message.subject), self.headers(message, self._via(message))
        return await self.converted(self.route.request, message, kind, target, headers)

    def _via(self, message: Message) -> ViaHeader:
        """Return a request's header. Raises `RequestError` if it has already passed one of the buses or has too many hops."""
        via = ViaHeader.of(message)
        if not {self.here.services.id, self.there.services.id}.isdisjoint(via.buses):
            text = f"no handler for {message.subject!r}: the bridges lead back to a bus that it has passed"
            raise RequestError(Code.UNIMPLEMENTED, text)
        via = via.add_hops(depth_of_sender(message))
        self.hop(message.subject, via.hops)
        return via.add_hops(1).extend(self.here.services.id)

    # -- streams and channels --------------------------------------------------------------------------------------------

    async def open_channel(
        self, subject: str | int, body: Any, mode: str, timeout: float | None, hops: int, headers: dict[str, str] | None
    ) -> Channel[Any, Any]:
        party = HandlerParty(self.here.loopback, self._channel_handler(mode))
        return party.converse(subject, body, mode, timeout, hops, headers)

    def _channel_handler(self, mode: str) -> RouteHandler:
        return RouteHandler(self.route.source, mode, self._stream if mode == "stream" else self._converse)

    def _opening(self, message: Message, mode: str, body: Any) -> ChannelContext[Any, Any]:
        target, headers = self.target(message.subject), self.headers(message, None)
        hops = self.hop(message.subject, hops_of(message))
        return ChannelContext(
            lambda: self._find(target, mode).open_channel(target, body, mode, None, hops, headers), mode == "stream"
        )

    async def _stream(self, message: Message, deadline: float | None, near: Channel[Any, Any]) -> AsyncIterator[Any]:
        try:
            on = await self.converted(self.route.request, message, Kind.OPEN, message.subject)
            async with self._opening(message, "stream", on.body) as items:
                async for item in items:
                    yield await applied(self.route.reply, item, message)
        except BusError as error:
            raise translated(error) from error

    async def _converse(self, message: Message, deadline: float | None, near: Channel[Any, Any]) -> None:
        try:
            async with self._opening(message, "channel", None) as far, anyio.create_task_group() as group:
                group.start_soon(_copy_items, near, far, self.route.request, message)
                await _copy_items(far, near, self.route.reply, message)
        except BaseExceptionGroup as errors:
            raise first(errors) from errors
        except BusError as error:
            raise translated(error) from error

    # -- tunnels -------------------------------------------------------------------------------------------------------

    async def admit(self, peer: PeerCore, message: Message, near: FrameChannel) -> None:
        far: FrameChannel | None = None
        try:
            routes, beyond, name, hops = self._way(message.subject, hops_of(message))
            far = FrameChannel(beyond, name, 0, text=True)
            with anyio.fail_after(routes[-1].there.services.limits.connect_timeout):
                await beyond.streams.open_channel(far, message.body, "tunnel", None, WINDOW, hops)
                await far.acceptance()
        except BaseException as error:
            if far is not None and far.id is not None:
                far.cut(Closed(1000, "the opener cancelled"))
            if isinstance(error, (BusError, TimeoutError)):
                raise translated(error) from error
            raise
        if near.failed is not None:
            far.cut(Closed(1006, str(near.failed)))
            return
        if not all(route.is_open for route in routes):
            far.cut(Closed(1001, LEAVING))
            raise Unavailable(LEAVING)
        near.accept()
        for route in routes:
            route.tunnels[near] = None
        near.attach(FrameRelay(far, lambda: [route.tunnels.pop(near, None) for route in routes]))
        far.attach(FrameRelay(near))

    def _way(self, name: str | int, hops: int) -> tuple[list[RouteParty], PeerCore, str | int, int]:
        """Find the routes in this process that a tunnel takes, the peer behind them, and the tunnel's name and hops there."""
        routes: list[RouteParty] = []
        party: Any = self
        while isinstance(party, RouteParty):
            routes.append(party)
            name, hops = party.target(name), party.hop(name, hops)
            party = party.there.routing.find_beyond(name, "tunnel", party.here)
        if isinstance(party, TunnelListener):
            raise RequestError(Code.UNIMPLEMENTED, f"the tunnel {name!r} ends in this process: serve it on this side too")
        routes[-1].hop(name, hops)  # the tunnel counts as a hop, too
        return routes, party, name, hops

    # -- what crosses ----------------------------------------------------------------------------------------------------

    def target(self, subject: str | int) -> str | int:
        """Return the subject on the target bus. Raises `LocalProtocolError` or `ReservedSubject` if it is not valid there."""
        found = self._known.get(subject)
        if found is None:
            found = self.route.rewritten(subject)
            self.there.services.subjects.check(found)
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[subject] = found
        return found

    def headers(self, message: Message, via: ViaHeader | None) -> dict[str, str] | None:
        kept = {} if via is None else {VIA: str(via)}
        named = {*self.route.headers, TRACE}
        kept.update((name, value) for name, value in (message.headers or {}).items() if name.lower() in named)
        return kept or None

    async def converted(
        self,
        convert: Callable[..., Any] | None,
        message: Message,
        kind: Kind,
        subject: str | int,
        headers: dict[str, str] | None = None,
    ) -> Message:
        facts = carried(kind, message)
        if convert is not None:
            return Message(kind, subject, headers=headers, attributes=facts, body=await applied(convert, message.body, message))
        value = message.body if message.raw is None and message.has_body else MISSING
        on = Message(kind, subject, None, message.raw, message.format, headers, attributes=facts, body=value)
        on.checked = message.checked
        return on

    def hop(self, subject: str | int, hops: int) -> int:
        limit = self.here.services.limits.hops
        if hops >= limit:
            raise RequestError(Code.FAILED_PRECONDITION, too_far(subject, hops, limit))
        return hops + 1

    # -- losses ----------------------------------------------------------------------------------------------------------

    def lost(self, message: Message, error: BusError) -> None:
        """Count a message that could not be forwarded, and log it with a rate limit so that peers cannot fill the log."""
        here, route = self.here, self.route
        here.services.counters.dropped += 1
        here.services.dead_letter(message.peer, message, translated(error).code, f"not bridged: {error}")
        if self._losses.add(monotonic()) == 1:
            text = "%r could not cross the bridge (%r to %r): %s"
            logger.warning(text, message.subject, route.source, route.target, error, extra=log_fields(message=message))


async def _copy_items(
    source: Channel[Any, Any], sink: Channel[Any, Any], convert: Callable[..., Any] | None, message: Message
) -> None:
    async for item in source:
        await sink.send(await applied(convert, item, message))
    await sink.send_eof()


class PeerTarget(Struct, frozen=True):
    services: Services
    choose: Callable[[], PeerCore]

    @property
    def routing(self) -> PeerTarget:
        return self

    def find_beyond(self, subject: str | int, kind: str, came_from: Any) -> PeerCore:
        return self.choose()


class InnerRoute(RouteParty):
    """A route within a cluster. Unlike a bridge, it leaves names and all headers unchanged."""

    def __init__(self, pattern: str | int, here: BusParts, choose: Callable[[], PeerCore], *, inward: bool = False) -> None:
        kinds = frozenset(("request", "stream", "channel", "tunnel"))
        super().__init__(Route(pattern, "same", kinds), here, PeerTarget(here.services, choose))  # type: ignore[arg-type]  # it has what a route needs of a bus
        self.inward: bool = inward
        self.is_open: bool = True

    def target(self, subject: str | int) -> str | int:
        return subject

    def headers(self, message: Message, via: ViaHeader | None) -> dict[str, str] | None:
        kept = {**(message.headers or {})}
        if via is not None:
            kept[VIA] = str(via)
        return kept or None

    async def converted(
        self,
        convert: Callable[..., Any] | None,
        message: Message,
        kind: Kind,
        subject: str | int,
        headers: dict[str, str] | None = None,
    ) -> Message:
        on = await super().converted(convert, message, kind, subject, headers)
        key = None if message.peer is None else message.peer.identity_key
        if key is not None and kind is not Kind.RESPONSE:
            on.attributes["user"] = key
        return on


class BridgedCall(Call, eq=False, kw_only=True):
    """A request that is waiting for the other bus to answer, or a notification that has not been sent yet."""

    forwards: bool = True
    _route: RouteParty

    @property
    def function(self) -> str:
        return f"a function of the bridge of {self._route.route.source!r}"

    def cut(self, code: Code, text: str) -> None:
        if not self.ended:
            self.origin.refuse(self, code, text, None, None)
            self.stop()

    def end(self) -> None:
        self.discard()
        super().end()

    def discard(self) -> None:  # called instead of `end` if a peer leaves while its request is waiting
        self._route.calls.pop(self, None)


@frozen(eq=False)
class RouteHandler:
    """The function of a route, used like a handler. Implements `_core.runtime.ports.RequestHandler`."""

    subject: str | int
    style: str
    function: Callable[..., Any]
    """Function that is called with the message, the deadline and, if there is one, the channel."""
    answers: AnswerSizes = field(factory=AnswerSizes, init=False)
    places: None = field(default=None, init=False)

    @property
    def name(self) -> str:
        return self.function.__qualname__

    def checked(self, value: Any) -> Any:
        """Return the value unchanged, because the other bus has already checked it."""
        return value

    def invoke(self, services: Any, message: Message, deadline: float | None, *channel: Channel[Any, Any]) -> Any:
        return self.function(message, deadline, *channel)


@define(eq=False, repr=False)
class FrameRelay:
    """Forwards frames from one half of a tunnel to the other. Implements `plugins.Receiver`."""

    _other: FrameChannel
    _over: Callable[[], object] | None = None

    def frames_received(self, frames: Sequence[bytes]) -> None:
        try:
            for frame in frames:
                self._other.put(frame)
        except BusError as error:
            self._other.cut(too_large(error))

    def closed(self, why: Closed) -> None:
        if self._over is not None:
            self._over()
        self._other.close(why if why.code != 1006 else Closed(1011, why.reason))

    def pause_writing(self) -> None:
        """Stop reading from the other half while this half is full."""
        self._other.listen(on=False)

    def resume_writing(self) -> None:
        self._other.listen(on=True)


class PublicationForwarder(HandlerSubscription):
    """A queue of publications for an open route, which publishes them on the target bus."""

    __slots__ = ("_route",)
    leads_on = True

    def __init__(self, route: RouteParty) -> None:
        services = route.here.services
        crossing = Handler(route.route.source, self._cross, "async")
        crossing.only_body = lambda message: message  # takes the whole message, without parsing a signature
        super().__init__(services, services.running, SubscriberSpec(crossing, 1000, "block", 1))
        self._route = route

    def offer(self, message: Message) -> None:
        on = message.with_headers(message.headers)
        if message.subject != self.pattern and not matches(self.pattern, message.subject):
            on.subject = self._spelled(message)
        on.extras = message.attributes or None  # some kinds of messages create attributes on access
        on.shared[VIA] = str(self._route.here.pubsub.deduplicator.via_of(message)).encode()
        on.peer = message.peer
        if message.peer is not None or OF_PEERS in message.shared:
            on.shared[OF_PEERS] = b""
        super().offer(on)

    offer_shared = offer

    def _spelled(self, message: Message) -> str | int:
        own = self._route.here.pubsub.publisher.spellings(message.subject).values()
        spellings = chain(message.spellings, chain.from_iterable(own))
        return next((one for one in spellings if matches(self.pattern, one)), message.subject)

    async def _cross(self, message: Message) -> None:
        route = self._route
        here, there = route.here.pubsub, route.there.pubsub
        try:
            target = route.target(message.subject)
            via = here.deduplicator.via_of(message)
            if there.deduplicator.is_own(via):
                return  # the target bus published it, so nothing is lost
            if via.hops >= route.here.services.limits.hops:
                here.relay.stop(message, via.hops)
                return
            via = via.extend(route.here.services.id).add_hops(1)
            if not there.deduplicator.is_news(via, target):
                return
            on = await route.converted(route.route.request, message, Kind.PUBLISH, target, route.headers(message, None))
            now = route.there.services.running.time()
            if message.expires is not None:
                on.expires, on.ttl = message.expires, message.expires - now
            await there.publisher.publish_bridged(on, via, now + USUAL, of_peers=OF_PEERS in message.shared)
        except BusError as error:  # one peer failed; the others have the publication
            route.lost(message, error)
