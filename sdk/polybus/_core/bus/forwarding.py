"""Forwards clients' messages to another bus or to another node of the cluster, and translates errors."""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import AsyncIterator, Callable, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

import anyio
from attrs import define, field, frozen

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
from ...outcomes import first_of
from ...plugins import Closed
from ...subjects import matches
from ..rpc.call import Call, ChannelCall
from ..rpc.channel import Channel, ChannelContext
from ..rpc.loopback import HandlerParty
from ..runtime.loop_prevention import ViaHeader, depth_of_sender, too_far
from ..runtime.memory_budgets import AnswerSizes
from ..tunnel import WINDOW, FrameChannel, too_large
from .tunnel_listener import TunnelListener, hops_of, tunnel_call

if TYPE_CHECKING:
    from ..peer.peer_core import PeerCore
    from .bus_parts import BusParts

logger: logging.Logger = logging.getLogger("polybus")

LEAVING: Final = "the bridge is leaving: try again later"
USUAL: Final = 30.0
"""Timeout in seconds for messages without a deadline."""
_SET_OUT: Final = (Kind.REQUEST, Kind.NOTIFY, Kind.PUBLISH)
_OF_CLUSTER: Final = frozenset(("request", "stream", "channel", "tunnel"))
_CARRIED: Final = ("id", "priority")
_MISUSE: Final = (EncodeError, LocalProtocolError, ReservedSubject, Unsupported)


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
    error = first_of(errors)
    return translated(error) if isinstance(error, BusError) else error


class ForwardingRoute:
    """Forwards clients' requests, streams, channels and tunnels to another party. Looked up in place of a handler.

    Loops end at `Limits.hops`, and requests do not return to a bus that they have passed. Subclasses can override `target`,
    `passed_headers`, `attributes` and `find`.

    Args:
        source: Subject or pattern on the bus `here`.
        kinds: Any of ``request``, ``stream``, ``channel`` and ``tunnel``.
        here: Bus with the clients.
        there: Bus that sends what the clients have sent.
        name: Name of the route in logs, which is the source by default.
        request: Plain or async function that converts bodies on the way to the other party.
        reply: Plain or async function that converts answers and items on the way back.
    """

    style: Final = "route"
    is_open: bool = True
    """False while tunnels that are being opened must not cross."""
    inward: bool = False
    """True if the route leads to the other nodes of the cluster, where it is not announced."""

    def __init__(
        self,
        source: str | int,
        kinds: frozenset[str],
        here: BusParts,
        there: BusParts,
        *,
        name: str = "",
        request: Callable[..., Any] | None = None,
        reply: Callable[..., Any] | None = None,
    ) -> None:
        self._name = name or repr(source)
        self.source: str | int = source
        self.kinds: frozenset[str] = kinds
        self.here: BusParts = here
        self.there: BusParts = there
        self.request: Callable[..., Any] | None = request
        self.reply: Callable[..., Any] | None = reply
        self.requests: RouteHandler = RouteHandler(source, "async", self._invoke)
        self.calls: dict[ForwardedCall | ChannelCall, None] = {}
        self.tunnels: dict[FrameChannel, None] = {}
        """Channels on this side of the tunnels that cross the route."""
        self._losses = ViolationCounter()

    # -- what a route changes --------------------------------------------------------------------------------------------

    def target(self, subject: str | int) -> str | int:
        """Return the subject for the other party. Raises `LocalProtocolError` or `ReservedSubject` if it is not valid there."""
        return subject

    def passed_headers(self, message: Message) -> dict[str, str]:
        """Return the headers to forward, as a new dict."""
        return {**(message.headers or {})}

    def attributes(self, kind: Kind, message: Message) -> dict[str, Any] | None:
        """Return the attributes to forward: the id and priority of a request, notification or publication."""
        if kind not in _SET_OUT:
            return None
        known = message.attributes
        facts = known.get(RELAYED)  # from an earlier bridge
        if not isinstance(facts, dict):
            facts = {name: value for name in _CARRIED if isinstance(value := known.get(name), str)}
        return {RELAYED: facts} if facts else None

    def find(self, subject: str | int, kind: str) -> Any:
        """Find the other party, as in `MessageRouting.find_beyond`."""
        return self.there.routing.find_beyond(subject, kind, self.here)

    # -- ending ----------------------------------------------------------------------------------------------------------

    def idle(self, *, lasting: bool) -> bool:
        """Return True if no message is in flight. Streams and channels, which may never end, only count with `lasting`."""
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

    # -- messages of peers -----------------------------------------------------------------------------------------------

    def fits(self, subject: str | int, kind: str) -> bool:
        return kind in self.kinds and matches(self.source, subject)

    def call(self, peer: PeerCore, message: Message, deadline: float, channel: Channel[Any, Any] | None = None) -> Any:
        call: ForwardedCall | ChannelCall
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
            return tunnel_call(self, peer, message, deadline, text=True)
        else:
            call = ForwardedCall(self.here.services, peer.inbound, peer, self.requests, message, deadline, _route=self)
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
            answer: Message = await self.find(on.subject, "request").forward(on, until)
        except (BusError, ConnectionError) as error:
            raise translated(error) from error
        headers = self.passed_headers(answer) or None
        if self.reply is not None:
            return await self.converted(self.reply, answer, Kind.RESPONSE, answer.subject, headers)
        answer.headers = headers
        return answer

    async def forward_notification(self, message: Message) -> None:
        """Forward a notification to the other bus. Failures are only counted, because no caller is waiting."""
        try:
            on = await self._onward(Kind.NOTIFY, message)
            await self.find(on.subject, "request").forward_notification(on)
        except BusError as error:
            self.lost(message, error)

    async def _onward(self, kind: Kind, message: Message) -> Message:
        target, via = self.target(message.subject), self._via(message)
        headers = {**self.passed_headers(message), VIA: str(via)}
        return await self.converted(self.request, message, kind, target, headers)

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
        return RouteHandler(self.source, mode, self._stream if mode == "stream" else self._converse)

    def _opening(self, message: Message, mode: str, body: Any) -> ChannelContext[Any, Any]:
        target, headers = self.target(message.subject), self.passed_headers(message) or None
        hops = self.hop(message.subject, hops_of(message))
        return ChannelContext(
            lambda: self.find(target, mode).open_channel(target, body, mode, None, hops, headers), mode == "stream"
        )

    async def _stream(self, message: Message, deadline: float | None, near: Channel[Any, Any]) -> AsyncIterator[Any]:
        try:
            body = await applied(self.request, message.body, message)
            async with self._opening(message, "stream", body) as items:
                async for item in items:
                    yield await applied(self.reply, item, message)
        except BusError as error:
            raise translated(error) from error

    async def _converse(self, message: Message, deadline: float | None, near: Channel[Any, Any]) -> None:
        try:
            async with self._opening(message, "channel", None) as far, anyio.create_task_group() as group:
                group.start_soon(_copy_items, near, far, self.request, message)
                await _copy_items(far, near, self.reply, message)
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

    def _way(self, name: str | int, hops: int) -> tuple[list[ForwardingRoute], PeerCore, str | int, int]:
        """Find the routes in this process that a tunnel takes, the peer behind them, and the tunnel's name and hops there."""
        routes: list[ForwardingRoute] = []
        party: Any = self
        while isinstance(party, ForwardingRoute):
            routes.append(party)
            name, hops = party.target(name), party.hop(name, hops)
            party = party.find(name, "tunnel")
        if isinstance(party, TunnelListener):
            raise RequestError(Code.UNIMPLEMENTED, f"the tunnel {name!r} ends in this process: serve it on this side too")
        routes[-1].hop(name, hops)  # the tunnel counts as a hop, too
        return routes, party, name, hops

    async def converted(
        self,
        convert: Callable[..., Any] | None,
        message: Message,
        kind: Kind,
        subject: str | int,
        headers: dict[str, str] | None,
    ) -> Message:
        """Return a message to send on, with its body converted unless `convert` is None."""
        facts = self.attributes(kind, message)
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
        here = self.here
        here.services.counters.dropped += 1
        here.services.dead_letter(message.peer, message, translated(error).code, f"not bridged: {error}")
        if self._losses.add(monotonic()) == 1:
            text = "%r could not cross the bridge (%s): %s"
            logger.warning(text, message.subject, self._name, error, extra=log_fields(message=message))


async def _copy_items(
    source: Channel[Any, Any], sink: Channel[Any, Any], convert: Callable[..., Any] | None, message: Message
) -> None:
    async for item in source:
        await sink.send(await applied(convert, item, message))
    await sink.send_eof()


class InnerRoute(ForwardingRoute):
    """A route within a cluster, to the peer that `choose` returns. It leaves subjects and headers unchanged."""

    def __init__(self, source: str | int, here: BusParts, choose: Callable[[], PeerCore], *, inward: bool = False) -> None:
        super().__init__(source, _OF_CLUSTER, here, here)
        self.inward = inward
        self._choose = choose

    def find(self, subject: str | int, kind: str) -> PeerCore:
        return self._choose()

    def attributes(self, kind: Kind, message: Message) -> dict[str, Any] | None:
        facts = super().attributes(kind, message)
        key = None if message.peer is None else message.peer.identity_key
        return facts if key is None else {**(facts or {}), "user": key}


class ForwardedCall(Call, eq=False, kw_only=True):
    """A request that is waiting for the other bus to answer, or a notification that has not been sent yet."""

    forwards: bool = True
    _route: ForwardingRoute

    @property
    def function(self) -> str:
        return f"a function of the bridge of {self._route.source!r}"

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
