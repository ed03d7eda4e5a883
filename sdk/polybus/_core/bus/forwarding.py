"""Messages that cross a bridge, with translated bodies and errors."""

from __future__ import annotations

import inspect
import math
from collections.abc import AsyncIterator, Callable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, Final

import anyio
from attrs import define, field, frozen

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
from ...message import RELAYED, Kind, Message
from ...plugins import Closed
from ...subjects import matches
from ..handlers.handler import Handler
from ..handlers.subscriber import SubscriberSpec
from ..pubsub.handler_subscription import HandlerSubscription
from ..pubsub.publisher import OF_PEERS
from ..rpc.call import Call, ChannelCall
from ..rpc.channel import Channel, ChannelContext
from ..runtime.memory import AnswerSizes
from ..runtime.via import ViaHeader, depth_of_sender
from ..tunnel import WINDOW, FrameChannel, too_large
from ..tunnel.endpoint import Entrance, TunnelCall, hops_of

if TYPE_CHECKING:
    from ..peer.party import PeerParty
    from ..rpc.call import ResponseSink
    from .routes import RouteSide

LEAVING: Final = "the bridge is leaving: try again later"
TRACE: Final = "traceparent"
USUAL: Final = 30.0
"""Seconds for messages without a deadline."""
_SET_OUT: Final = (Kind.REQUEST, Kind.NOTIFY, Kind.PUBLISH)
_CARRIED: Final = ("id", "priority")
_MISUSE: Final = (EncodeError, LocalProtocolError, ReservedSubject, Unsupported)


def carried(kind: Kind, message: Message) -> dict[str, Any] | None:
    """Choose the attributes that cross: a new message keeps its id and priority."""
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
    """Make the client's error for a failure beyond the bridge."""
    if isinstance(error, RequestError):
        return error.relay() if error.received else error
    if isinstance(error, DeadlineExceeded) and error.text:
        return RequestError(Code.DEADLINE_EXCEEDED, error.text, reason=error.reason, detail=error.detail)
    if isinstance(error, TimeoutError):
        return RequestError(Code.DEADLINE_EXCEEDED, "no answer from the other side of the bridge in time")
    if isinstance(error, QueueFull):
        return RequestError(Code.RESOURCE_EXHAUSTED, f"the other side of the bridge is slow: {error}")
    if isinstance(error, (Disconnected, ConnectFailed)):
        return Unavailable("the other side of the bridge is not there now: try again later")
    if isinstance(error, _MISUSE):
        return RequestError(Code.INVALID_ARGUMENT, f"the other side of the bridge cannot carry this: {error}")
    if isinstance(error, BadReply):
        return RequestError(Code.INTERNAL, "the answer from the other side of the bridge is malformed")
    return RequestError(Code.UNAVAILABLE, "the other side of the bridge cannot be asked now")


def first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return translated(error) if isinstance(error, BusError) else error


_ADDED: Final = (VIA, TRACE)
"""Headers that always cross, to peers that can read them."""


class RequestForwarder:
    """The handler of a route: forwards requests and notifications to the other bus."""

    style: Final = "async"

    def __init__(self, side: RouteSide) -> None:
        self._side = side
        self.answers: AnswerSizes = AnswerSizes()
        self.subject: str | int = side.route.source

    def call(self, origin: ResponseSink, peer: PeerParty | None, message: Message, deadline: float) -> Call:
        return BridgedCall(self._side, origin, peer, message, deadline)

    def checked(self, value: Any) -> Any:
        """Unchanged: the other bus has checked it."""
        return value

    async def invoke(self, services: Any, message: Message, deadline: float | None) -> Message | None:
        """Forward a request or notification, in place of a handler.

        Raises:
            RequestError: The failure, translated for the client.
        """
        if message.kind is Kind.NOTIFY:
            await self.tell(message)
            return None
        return await self.ask(message, math.inf if deadline is None else deadline)

    async def ask(self, message: Message, deadline: float) -> Message:
        """Send a request to the other bus.

        Raises:
            RequestError: The failure, translated for the client.
        """
        side = self._side
        try:
            answer = await self._answer(await self._onward(Kind.REQUEST, message), deadline)
        except (BusError, ConnectionError) as error:
            raise translated(error) from error
        headers = side.headers(answer, None)
        if side.route.reply is not None:
            return await side.converted(side.route.reply, answer, Kind.RESPONSE, answer.subject, headers)
        answer.headers = headers
        return answer

    async def tell(self, message: Message) -> None:
        """Notify the other bus; no caller waits."""
        try:
            on = await self._onward(Kind.NOTIFY, message)
            there = self._side.there
            if (own := there.lookup.find(on.subject)) is not None:
                ViaHeader.strip(on)
                there.loopback.notify(own, on.body, on.headers)
            elif (further := there.lookup.side(on.subject, "request", back_to=self._side.here)) is not None:
                await further.requests.tell(on)
            else:
                peer = there.links.choose(on.subject)
                await self._fit(on, peer)
                peer.fit_body(on)
                await peer.send_notification(on)
        except BusError as error:
            self._side.lost(message, error)

    async def _onward(self, kind: Kind, message: Message) -> Message:
        side = self._side
        target, headers = side.target(message.subject), side.headers(message, self._via(message))
        return await side.converted(side.route.request, message, kind, target, headers)

    def _via(self, message: Message) -> ViaHeader:
        """Make the header of a leaving request.

        Raises:
            RequestError: It has passed one of the two buses before, or exceeds the limit of hops.
        """
        here, there = self._side.here, self._side.there
        via = ViaHeader.of(message)
        if there.services.id in via.buses or here.services.id in via.buses:
            text = f"nobody handles {message.subject!r}: the bridges lead back to where it has been"
            raise RequestError(Code.UNIMPLEMENTED, text)
        via = via.add_hops(depth_of_sender(message))
        self._side.hop(message.subject, via.hops)
        return via.add_hops(1).extend(here.services.id)

    async def _answer(self, on: Message, deadline: float) -> Message:
        there = self._side.there
        runtime = there.services.running
        began = runtime.time()
        timeout = USUAL if deadline == math.inf else max(0.0, deadline - began)
        if (own := there.lookup.find(on.subject)) is not None:
            ViaHeader.strip(on)
            reply = there.loopback.request(own, on.subject, on.body, timeout, Any, on.headers)
        elif (further := there.lookup.side(on.subject, "request", back_to=self._side.here)) is not None:
            answer: Message = await further.requests.ask(on, began + timeout)
            return answer
        else:
            peer = there.links.choose(on.subject)
            await self._fit(on, peer)
            reply = peer.pass_on(on, max(0.0, timeout - (runtime.time() - began)))
        await reply
        assert reply.message is not None
        return reply.message

    @staticmethod
    async def _fit(on: Message, peer: PeerParty) -> None:
        """Remove a bridge's headers for a peer that cannot read any."""
        if on.headers and not await peer.negotiation.reads_headers():
            on.headers = {name: value for name, value in on.headers.items() if name.lower() not in _ADDED} or None


class BridgedCall(Call):
    """A request while the other bus answers it, or a notification until it is sent."""

    __slots__ = ("_side",)
    forwards: ClassVar[bool] = True

    def __init__(
        self, side: RouteSide, origin: ResponseSink, peer: PeerParty | None, message: Message, deadline: float
    ) -> None:
        super().__init__(side.here.services, origin, peer, side.requests, message, deadline)  # type: ignore[arg-type]  # in its place
        self._side = side
        side.calls[self] = None

    @property
    def function(self) -> str:
        return f"a function of the bridge of {self._side.route.source!r}"

    def cut(self, code: Code, text: str) -> None:
        if not self.ended:
            self.origin.refuse(self, code, text, None, None)
            self.stop()

    def end(self) -> None:
        self.discard()
        super().end()

    def discard(self) -> None:  # the only call for one that still waits when its peer leaves
        self._side.calls.pop(self, None)


@frozen(eq=False)
class CrossingHandler:
    """A bridge's function in place of a handler. Implements `_core.rpc.call.LocalHandler`."""

    subject: str | int
    style: str
    function: Callable[[Message, Channel[Any, Any]], Any]
    answers: AnswerSizes = field(factory=AnswerSizes, init=False)
    places: None = field(default=None, init=False)

    @property
    def name(self) -> str:
        return self.function.__qualname__

    def checked(self, value: Any) -> Any:
        """Unchanged: the other bus has checked it."""
        return value

    def invoke(self, services: Any, message: Message, deadline: float | None, channel: Channel[Any, Any]) -> Any:
        return self.function(message, channel)


class StreamForwarder:
    """The handler of a route's streams and channels: opens the other bus's."""

    def __init__(self, side: RouteSide) -> None:
        self._side = side

    def call(self, peer: PeerParty, message: Message, deadline: float, channel: Channel[Any, Any]) -> ChannelCall:
        handler = self.handler(message.attributes.get("mode", "stream"))
        calls, services = self._side.calls, self._side.here.services
        call = ChannelCall(
            services, peer.inbound, peer, handler, message, deadline, channel=channel, on_discard=lambda it: calls.pop(it, None)
        )
        calls[call] = None
        return call

    def handler(self, mode: str) -> CrossingHandler:
        return CrossingHandler(self._side.route.source, mode, self._streamed if mode == "stream" else self._conversed)

    def _opening(self, message: Message, mode: str, body: Any) -> ChannelContext[Any, Any]:
        """Open the other bus's stream or channel.

        Raises:
            RequestError: That exceeds the limit of hops.
        """
        side = self._side
        there, target = side.there, side.target(message.subject)
        hops = side.hop(message.subject, hops_of(message))
        headers = side.headers(message, None)

        async def opened() -> Channel[Any, Any]:
            if (own := there.lookup.find(target)) is not None:
                return there.loopback.open(own, body, mode, None, headers=headers)
            if (further := there.lookup.side(target, mode, back_to=side.here)) is not None:
                return there.loopback.converse(further.streams.handler(mode), target, body, None, hops, headers=headers)
            peer = there.links.choose(target)
            kept = headers if peer.link.carries_headers else None
            return await peer.streams.open(target, body, mode, None, hops, headers=kept)

        return ChannelContext(opened, mode == "stream")

    async def _streamed(self, message: Message, near: Channel[Any, Any]) -> AsyncIterator[Any]:
        route = self._side.route
        try:
            on = await self._side.converted(route.request, message, Kind.OPEN, message.subject)
            async with self._opening(message, "stream", on.body) as items:
                async for item in items:
                    yield await applied(route.reply, item, message)
        except BusError as error:
            raise translated(error) from error

    async def _conversed(self, message: Message, near: Channel[Any, Any]) -> None:
        reply = self._side.route.reply
        try:
            async with self._opening(message, "channel", None) as far, anyio.create_task_group() as group:
                group.start_soon(self._there, near, far, message)
                async for item in far:
                    await near.send(await applied(reply, item, message))
                await near.send_eof()
        except BaseExceptionGroup as errors:
            raise first(errors) from errors
        except BusError as error:
            raise translated(error) from error

    async def _there(self, near: Channel[Any, Any], far: Channel[Any, Any], message: Message) -> None:
        async for item in near:
            await far.send(await applied(self._side.route.request, item, message))
        await far.send_eof()


@define(eq=False, repr=False)
class TunnelForwarder:
    """The near end of a route's tunnels: opens their second halves on the other bus."""

    style = "tunnel"

    side: RouteSide
    _through: dict[FrameChannel, None] = field(factory=dict)

    def end(self) -> None:
        for near in list(self._through):
            near.cut(Closed(1001, LEAVING))

    def call(self, peer: PeerParty, message: Message, deadline: float) -> TunnelCall:
        return TunnelCall(self, peer, message, deadline, Entrance.channel_for(peer, message, text=True))

    async def admit(self, peer: PeerParty, message: Message, near: FrameChannel) -> None:
        """Open the other half, and relay frames.

        Raises:
            RequestError: The other side refuses it.
        """
        far: FrameChannel | None = None
        try:
            bridges, name, hops = self._way(message.subject, hops_of(message))
            there = bridges[-1].side.there
            beyond = there.links.choose(name)
            far = FrameChannel(beyond, name, 0, text=True)
            with anyio.fail_after(there.services.limits.connect_timeout):
                await beyond.streams.open_channel(far, message.body, "tunnel", None, WINDOW, hops)
                await far.acceptance()
        except BaseException as error:
            if far is not None and far.id is not None:
                far.cut(Closed(1000, "the opener gave up"))
            if isinstance(error, (BusError, TimeoutError)):
                raise translated(error) from error
            raise
        if near.failed is not None:
            far.cut(Closed(1006, str(near.failed)))
            return
        if not all(bridge.side.is_open for bridge in bridges):
            far.cut(Closed(1001, LEAVING))
            raise Unavailable(LEAVING)
        near.accept()
        for bridge in bridges:
            bridge._through[near] = None
        near.attach(FrameRelay(far, lambda: [bridge._through.pop(near, None) for bridge in bridges]))
        far.attach(FrameRelay(near))

    def _way(self, name: str | int, hops: int) -> tuple[list[TunnelForwarder], str | int, int]:
        """Find all bridges of this process on a tunnel's route, and its name and hops behind them.

        Raises:
            RequestError: It ends in this process, or exceeds the limit of hops.
        """
        bridges: list[TunnelForwarder] = [self]
        while True:
            side = bridges[-1].side
            name, hops = side.target(name), side.hop(name, hops)
            onward = side.there.lookup.tunnel_end(name, back_to=side.here)
            if not isinstance(onward, TunnelForwarder):
                break
            bridges.append(onward)
        if onward is not None:
            raise RequestError(Code.UNIMPLEMENTED, f"the tunnel {name!r} ends in this process: serve it on this side too")
        side.hop(name, hops)  # the tunnel counts as a hop, too
        return bridges, name, hops


@define(eq=False, repr=False)
class FrameRelay:
    """Passes frames between the halves of a tunnel; implements `plugins.Receiver`."""

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
        """Stop reading the other half while this one is full."""
        self._other.listen(on=False)

    def resume_writing(self) -> None:
        self._other.listen(on=True)


class PublicationForwarder:
    """The subscription of an open route: queues publications with their routes, and publishes them on the other bus. Implements
    `_core.pubsub.pubsub.HandlerQueue`.
    """

    local = True
    leads_on = True
    peers = True
    group = None

    def __init__(self, side: RouteSide) -> None:
        services = side.here.services
        crossing = Handler(side.route.source, self._cross, "async")
        crossing.only_body = lambda message: message  # takes the whole message, without parsing a signature
        spec = SubscriberSpec(crossing, 1000, "block", 1)
        subscription = self._subscription = HandlerSubscription(services, services.running, spec)
        self._side = side
        self.pattern: str | int = side.route.source
        self.queue: int = subscription.queue
        self.room = subscription.room
        self.clear = subscription.clear

    def __len__(self) -> int:
        return len(self._subscription)

    @property
    def busy(self) -> bool:
        return self._subscription.busy

    @property
    def full(self) -> bool:
        return self._subscription.full

    def offer(self, message: Message) -> None:
        """Queue a publication with its route so far."""
        on = message.with_headers(message.headers)
        if message.subject != self.pattern and not matches(self.pattern, message.subject):
            on.subject = self._spelled(message)
        on.extras = message.attributes or None  # some kinds of messages create them on access
        on.shared[VIA] = str(self._side.here.pubsub.deduplicator.via_of(message)).encode()
        on.peer = message.peer
        if message.peer is not None or OF_PEERS in message.shared:
            on.shared[OF_PEERS] = b""
        self._subscription.offer(on)

    offer_shared = offer

    def _spelled(self, message: Message) -> str | int:
        own = self._side.here.pubsub.publisher.spellings(message.subject).values()
        spellings = chain(message.spellings, chain.from_iterable(own))
        return next((one for one in spellings if matches(self.pattern, one)), message.subject)

    async def _cross(self, message: Message) -> None:
        side = self._side
        here, there = side.here.pubsub, side.there.pubsub
        try:
            target = side.target(message.subject)
            via = here.deduplicator.via_of(message)
            if there.deduplicator.is_own(via):
                return  # nothing is lost, even beyond the limit of hops
            if via.hops >= side.here.services.limits.hops:
                here.relay.stop(message, via.hops)
                return
            via = via.extend(side.here.services.id).add_hops(1)
            if not there.deduplicator.is_news(via, target):
                return
            on = await side.converted(side.route.request, message, Kind.PUBLISH, target, side.headers(message, None))
            now = side.there.services.running.time()
            if message.expires is not None:
                on.expires, on.ttl = message.expires, message.expires - now
            await there.publisher.publish_bridged(on, via, now + USUAL, of_peers=OF_PEERS in message.shared)
        except BusError as error:  # from some peer or its wire; the others have it
            side.lost(message, error)
