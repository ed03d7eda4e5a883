"""Bridges: what one bus is asked or told goes on to another, under another name, in another protocol.

A `Route` says what crosses. In each bus the bridge stands where a handler or a subscription would: it asks and tells the other
bus as a program there would, and translates what comes back.
"""

from __future__ import annotations

import inspect
import logging
import math
import re
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

import anyio
from attrs import field, frozen

from .calls import Answer, Call, ChannelCall
from .channel import Channel, Opening
from .errors import (
    BadReply,
    BusError,
    Code,
    ConnectFailed,
    Disconnected,
    EncodeError,
    LocalProtocolError,
    QueueFull,
    RequestError,
    ReservedSubject,
    Unavailable,
    Unsupported,
)
from .handlers import plan
from .headers import VIA, check_headers
from .message import Kind, Message
from .plugins import Closed
from .router import Listen
from .subjects import canonical, check_pattern, check_subject, matches
from .subscription import HandlerInbox
from .tunnel import WINDOW, FrameChannel, limits_of
from .tunnels import Entrance, TunnelCall, hops_of

if TYPE_CHECKING:
    from .bus import Bus
    from .link import Link
    from .peer import Peer
    from .runtime import Runtime

__all__ = ["Bridge", "Route", "bridge"]

KINDS: Final = ("request", "publish", "stream", "channel", "tunnel")
_NAME: Final = re.compile(r"\{(\w*)\}")
_TRACE: Final = "traceparent"
_USUAL: Final = 30.0
"""Seconds for a request that says nothing of its deadline."""
_REMEMBERED: Final = 1024
_EXTENSIONS: Final = frozenset(("stream", "channel", "tunnel"))
logger: logging.Logger = logging.getLogger("polybus")
_MISUSE: Final = (EncodeError, LocalProtocolError, ReservedSubject, Unsupported)


def _kinds(kinds: Any) -> frozenset[str]:
    given = frozenset((kinds,) if isinstance(kinds, str) else kinds)
    unknown = sorted(map(repr, given.difference(KINDS)))
    if unknown or not given:
        raise ValueError(f"kinds: {', '.join(unknown) or 'none at all'}; one or more of {', '.join(KINDS)}")
    return given


def _names(names: Any) -> tuple[str, ...]:
    if isinstance(names, str):
        raise TypeError(f"headers={names!r}: several names, for example headers=[{names!r}]")
    return tuple(name.lower() if isinstance(name, str) else name for name in names)


def _check_target(target: object) -> None:
    if not isinstance(target, (str, int)) or isinstance(target, bool):
        raise TypeError(f"target={target!r}: a subject, text or a number, not {type(target).__name__}")


@frozen
class Route:
    """What crosses a bridge, in one direction.

    Args:
        source: Subject or pattern, on `left`; with `reverse` on `right`.
        target: What it is called on the other side. ``{1}``, ``{2}`` are what the ``*`` of the source stand for, ``{rest}`` is
            that of ``>`` (or of an only wildcard), ``{name}`` that of ``{name}``.
        kinds: Of ``request``, ``publish``, ``stream``, ``channel``, ``tunnel``.
        reverse: From `right` to `left`.
        request: ``request(body, message) -> body``, plain or async: converts what crosses. Without it bodies cross untouched.
        reply: ``reply(body, message) -> body``: converts answers and items that come back.
        headers: Names of the headers that cross, besides ``traceparent``.

    Raises:
        ValueError: A kind is not known, or `target` names what `source` does not have.
        LocalProtocolError, ReservedSubject: A subject or header is not possible.
        TypeError: A converter cannot be called, or an argument is of a wrong type.
    """

    source: str | int
    target: str | int
    kinds: frozenset[str] = field(default=frozenset(("request", "publish")), converter=_kinds)
    reverse: bool = field(default=False, kw_only=True)
    request: Callable[..., Any] | None = field(default=None, kw_only=True)
    reply: Callable[..., Any] | None = field(default=None, kw_only=True)
    headers: tuple[str, ...] = field(default=(), kw_only=True, converter=_names)

    def __attrs_post_init__(self) -> None:
        check_pattern(self.source)
        _check_target(self.target)
        have = _places(self.source)
        wanted = _NAME.findall(self.target) if isinstance(self.target, str) else []
        for name in wanted:
            if name not in have:
                known = ", ".join(f"{{{name}}}" for name in have) or "no wildcard"
                raise ValueError(f"target {self.target!r}: {{{name}}} is not in the source {self.source!r}, which has {known}")
        check_subject(self.target if isinstance(self.target, int) else _NAME.sub("x", self.target))
        for name, converter in (("request", self.request), ("reply", self.reply)):
            if converter is not None and not callable(converter):
                raise TypeError(f"{name}={converter!r}: a function, {name}(body, message) -> body")
        check_headers(dict.fromkeys(self.headers, ""), 1 << 16)

    def rewritten(self, subject: str | int) -> str | int:
        """The name on the other side of a subject that `source` matches."""
        if isinstance(self.target, int) or "{" not in self.target:
            return self.target
        have = _places(self.source)
        tokens = canonical(str(subject)).split(_separator(self.source))
        separator = _separator(self.target)
        return _NAME.sub(lambda found: separator.join(tokens[have[found[1]]]), self.target)


def _separator(pattern: str | int) -> str:
    return "/" if "/" in str(pattern) else "."


def _places(source: str | int) -> dict[str, slice]:
    """The tokens that each name of a target stands for."""
    if isinstance(source, int):
        return {}
    places: dict[str, slice] = {}
    stars = 0
    tokens = canonical(source).split(_separator(source))
    for at, token in enumerate(tokens):
        if token == ">":
            places["rest"] = slice(at, None)
        elif token == "*":
            stars += 1
            places[str(stars)] = slice(at, at + 1)
        elif "/" not in source and (named := _NAME.fullmatch(token)):
            places[named[1]] = slice(at, at + 1)
    if len(places) == 1:
        places.setdefault("rest", next(iter(places.values())))
    return places


class Passage:
    """One route in one direction, as the bus that it begins at sees it."""

    def __init__(self, route: Route, here: Bus, there: Bus) -> None:
        self.route: Route = route
        self.here: Bus = here
        self.there: Bus = there
        self._known: dict[str | int, str | int] = {}
        self._inbox: Crossing | None = None
        self.underpass: Underpass = Underpass(self)

    def fits(self, subject: str | int, kind: str) -> bool:
        """Whether a message crosses here."""
        return kind in self.route.kinds and matches(self.route.source, subject)

    def target(self, subject: str | int) -> str | int:
        """Its name on the other side.

        Raises:
            LocalProtocolError, ReservedSubject: That is no subject.
        """
        found = self._known.get(subject)
        if found is None:
            found = self.route.rewritten(subject)
            self.there._check_subject(found)
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[subject] = found
        return found

    def headers(self, message: Message, via: str | None) -> dict[str, str] | None:
        """What crosses of the headers."""
        kept = {} if via is None else {VIA: via}
        named = {*self.route.headers, _TRACE}
        kept.update((name, value) for name, value in (message.headers or {}).items() if name.lower() in named)
        return kept or None

    async def converted(self, convert: Callable[..., Any] | None, message: Message, on: Message) -> Message:
        """`on` with the body of a message, converted or as it is."""
        if convert is None:
            on.raw, on.format = message.raw, message.format
            if message.raw is None and message.has_body:
                on._value = message.body
            return on
        on._value = await _applied(convert, message.body, message)
        return on

    # -- requests --------------------------------------------------------------------------------------------------------

    def call(self, origin: Answer, peer: Peer | None, message: Message, deadline: float) -> Call:
        """A request on its way to the other side."""
        return PassingCall(self, origin, peer, message, deadline)

    async def ask(self, message: Message, deadline: float) -> Message:
        """The answer of the other side.

        Raises:
            RequestError: What went wrong, as the asker shall see it.
        """
        try:
            on = Message(Kind.REQUEST, self.target(message.subject), headers=self.headers(message, self._onward(message)))
            on = await self.converted(self.route.request, message, on)
            answer = await self._answer(on, deadline)
        except (BusError, ConnectionError) as error:
            raise _translated(error) from error
        if self.route.reply is None:
            return answer
        return await self.converted(self.route.reply, answer, Message(Kind.RESPONSE, answer.subject))

    def _onward(self, message: Message) -> str:
        """Where a request has been, and that it leaves this bus.

        Raises:
            RequestError: It has been on the other side already, or on too many.
        """
        via = (message.headers or {}).get(VIA) or "-"
        buses = via.split(",")[1:]
        limit = self.here.limits.hops
        if self.there._id in buses:
            text = f"nobody handles {message.subject!r}: the bridges lead back to where it came from"
            raise RequestError(Code.UNIMPLEMENTED, text)
        if len(buses) >= limit:
            text = f"{message.subject!r} has crossed {len(buses)} bridges: the limit is {limit} (Limits.hops)"
            raise RequestError(Code.FAILED_PRECONDITION, text)
        return f"{via},{self.here._id}"

    async def _answer(self, on: Message, deadline: float) -> Message:
        there = self.there
        runtime = there._running
        timeout = _USUAL if deadline == math.inf else max(0.0, deadline - runtime.time())
        if on.subject in there._handlers:
            reply = there._loopback.request(on.subject, on.body, timeout, Any, on.headers)
        elif (further := there._passage(on.subject, "request")) is not None:
            answer: Message = await further.ask(on, runtime.time() + timeout)
            return answer
        else:
            reply = there._route(on.subject)._pass_on(on, timeout)
        await reply
        assert reply.message is not None
        return reply.message

    # -- streams and channels --------------------------------------------------------------------------------------------

    def channel_call(self, peer: Peer, message: Message, deadline: float, channel: Channel[Any, Any]) -> ChannelCall:
        """A stream or channel on its way to the other side."""
        mode = message.attributes.get("mode", "stream")
        handler = plan(message.subject, self._streamed if mode == "stream" else self._conversed)
        return ChannelCall(self.here, peer, peer, handler, message, deadline, channel)

    def _opening(self, message: Message, mode: str, body: Any) -> Opening[Any, Any]:
        """The other side's stream or channel, one hop further on.

        Raises:
            RequestError: That is one too many.
        """
        hops, limit = hops_of(message.peer, message) + 1, self.here.limits.hops
        if hops > limit:
            text = f"{message.subject!r} has crossed {hops - 1} bridges and tunnels: the limit is {limit} (Limits.hops)"
            raise RequestError(Code.FAILED_PRECONDITION, text)
        there, target = self.there, self.target(message.subject)
        return Opening(lambda: there._open(target, body, mode, None, Any, None, hops), half_closed=mode == "stream")

    async def _streamed(self, message: Message) -> AsyncIterator[Any]:
        try:
            on = await self.converted(self.route.request, message, Message(Kind.OPEN))
            async with self._opening(message, "stream", on.body) as items:
                async for item in items:
                    yield await _applied(self.route.reply, item, message)
        except BusError as error:
            raise _translated(error) from error

    async def _conversed(self, message: Message, near: Channel[Any, Any]) -> None:
        try:
            async with self._opening(message, "channel", None) as far, anyio.create_task_group() as group:
                group.start_soon(self._there, near, far, message)
                async for item in far:
                    await near.send(await _applied(self.route.reply, item, message))
                await near.send_eof()
        except BaseExceptionGroup as errors:
            raise _first(errors) from errors
        except BusError as error:
            raise _translated(error) from error

    async def _there(self, near: Channel[Any, Any], far: Channel[Any, Any], message: Message) -> None:
        async for item in near:
            await far.send(await _applied(self.route.request, item, message))
        await far.send_eof()

    # -- publications ----------------------------------------------------------------------------------------------------

    async def start(self, runtime: Runtime) -> None:
        """Take publications from now on."""
        here = self.here
        listen = Listen(plan(self.route.source, self._publish, publication=True), 1000, "block", 1)
        inbox = self._inbox = Crossing(here, runtime, listen)
        here._inboxes.append(inbox)
        here._distribution.local.add(inbox.pattern, inbox)
        here._distribution.want(inbox.pattern)
        await here._distribution.announce(inbox.pattern)

    def stop(self) -> None:
        """Take no more."""
        here, inbox = self.here, self._inbox
        if inbox is not None and inbox in here._inboxes:
            here._inboxes.remove(inbox)
            here._distribution.local.remove(inbox.pattern, inbox)
            here._distribution.unwant(inbox.pattern)
            inbox.clear()
        self._inbox = None

    async def _publish(self, message: Message) -> None:
        there = self.there
        journeys = there._distribution.journeys
        target = self.target(message.subject)
        via = journeys.crossed((message.headers or {}).get(VIA, ""), self.here._id, target, self.here.limits.hops)
        if via is None:
            return
        on = Message(Kind.PUBLISH, target, headers=self.headers(message, via))
        await self.converted(self.route.request, message, on)
        if message.expires is not None:
            now = there._running.time()
            on.expires, on.ttl = message.expires, message.expires - now
        try:
            await there._distribution.publish_crossed(on, self.here._running.time() + _USUAL)
        except _MISUSE as error:  # of some peer's wire; the others have got it
            logger.warning("polybus: %r could not cross the bridge as %r: %s", message.subject, target, error)
            self.here._dead_letter(message.peer, message, Code.INVALID_ARGUMENT, f"not bridged: {error}")


class Underpass:
    """Tunnels that lead on: what a `tunnels.Entrance` is for those that end here."""

    style = "tunnel"

    def __init__(self, passage: Passage) -> None:
        self._passage = passage

    def call(self, peer: Peer, message: Message, deadline: float) -> TunnelCall:
        """What opens one more."""
        return TunnelCall(self, peer, message, deadline, Entrance.channel_for(peer, message, text=True))

    async def admit(self, peer: Peer, message: Message, near: FrameChannel) -> None:
        """Open the other half, and let frames through.

        Raises:
            RequestError: The other side does not take it.
        """
        passage = self._passage
        name = passage.target(message.subject)
        hops, limit = hops_of(peer, message) + 1, passage.here.limits.hops
        far: FrameChannel | None = None
        try:
            if hops >= limit:
                raise RequestError(
                    Code.FAILED_PRECONDITION, f"tunnels and bridges are {hops + 1}: the limit is {limit} (Limits.hops)"
                )
            onward = passage.there._entrance(name)
            if onward is not None and isinstance(onward, Entrance):
                raise RequestError(Code.UNIMPLEMENTED, f"the tunnel {name!r} ends in this process: serve it on this side too")
            beyond = passage.there._route(name)
            far = FrameChannel(beyond, name, 0, limits_of(beyond, True, str(name)))
            with anyio.fail_after(passage.there.limits.connect_timeout):
                await beyond._open_channel(far, message.body, "tunnel", None, WINDOW, hops)
                await far.acceptance()
        except BaseException as error:
            if far is not None and far.id is not None:
                far.cut(Closed(1000, "the opener gave up"))
            if isinstance(error, (BusError, TimeoutError)):
                raise _translated(error) from error
            raise
        if near.failed is not None:
            far.cut(Closed(1006, str(near.failed)))
            return
        near.accept()
        near.attach(Splice(far))
        far.attach(Splice(near))


class Splice:
    """Hands the frames of one half of a tunnel to the other; implements `plugins.Receiver`."""

    def __init__(self, other: FrameChannel) -> None:
        self._other = other

    def frames_received(self, frames: Sequence[bytes]) -> None:
        try:
            for frame in frames:
                self._other.put(frame)
        except BusError as error:
            self._other.cut(Closed(1009, str(error)))

    def closed(self, why: Closed) -> None:
        self._other.close(why if why.code != 1006 else Closed(1011, why.reason))

    def pause_writing(self) -> None:
        """The half that it belongs to is full: the other one is not read until there is room."""
        self._other.listen(on=False)

    def resume_writing(self) -> None:
        self._other.listen(on=True)


class Crossing(HandlerInbox):
    """The publications of a passage, each with where it has been."""

    def offer(self, message: Message, link: Link | None) -> None:
        via = self._bus._distribution.via_of(message)
        on = Message(Kind.PUBLISH, message.subject, None, message.raw, message.format, {**(message.headers or {}), VIA: via})
        if message.raw is None and message.has_body:
            on._value = message.body
        on.expires, on.peer = message.expires, message.peer
        super().offer(on, link)


class PassingCall(Call):
    """A request while the other side answers it."""

    __slots__ = ("_passage",)
    away = True

    def __init__(self, passage: Passage, origin: Answer, peer: Peer | None, message: Message, deadline: float) -> None:
        super().__init__(passage.here, origin, peer, None, message, deadline)  # type: ignore[arg-type]  # no handler
        self._passage = passage

    async def invoke(self, message: Message) -> Any:
        """In place of a handler."""
        return await self._passage.ask(message, self.deadline)

    async def outcome(self) -> Any:
        deadline = None if self.deadline == math.inf else self.deadline
        return await self.bus._execution.around(self.message, deadline, self.invoke)


async def _applied(convert: Callable[..., Any] | None, body: Any, message: Message) -> Any:
    """What crosses of a body."""
    if convert is None:
        return body
    found = convert(body, message)
    return await found if inspect.isawaitable(found) else found


def _translated(error: BaseException) -> RequestError:
    """What an asker is told of a failure on the other side of the bridge."""
    if isinstance(error, RequestError):
        return error.relay() if error.received else error
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


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """What is told of a conversation that failed."""
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return _translated(error) if isinstance(error, BusError) else error


class Bridge:
    """What `bridge` gives: both buses entered, and the routes open, while it is entered."""

    def __init__(self, left: Bus, right: Bus, routes: Iterable[Route]) -> None:
        self.left: Bus = left
        self.right: Bus = right
        self.routes: tuple[Route, ...] = tuple(routes)
        for route in self.routes:
            if not isinstance(route, Route):
                raise TypeError(f"routes: {route!r} is no Route")
        if left is right:
            raise ValueError("a bridge joins two buses: left and right are the same one")
        self._passages = [
            Passage(route, right, left) if route.reverse else Passage(route, left, right) for route in self.routes
        ]
        self._entered: list[tuple[Bus, Runtime]] = []

    async def __aenter__(self) -> Self:
        try:
            for bus in (self.left, self.right):
                self._entered.append((bus, await bus._enter()))
            for passage in self._passages:
                _check(passage)
            for passage in self._passages:
                passage.here._open_passage(passage)
                if "publish" in passage.route.kinds:
                    await passage.start(passage.here._running)
        except BaseException as error:
            await self._leave(error)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._leave(error)

    async def _leave(self, error: BaseException | None) -> None:
        for passage in self._passages:
            passage.here._close_passage(passage)
            passage.stop()
        with anyio.CancelScope(shield=True):
            while self._entered:
                bus, runtime = self._entered.pop()
                await bus._leave(runtime, error)


def _check(passage: Passage) -> None:
    """
    Raises:
        Unsupported: One of the two buses has links, and none of them can carry what the route says.
    """
    route = passage.route
    for bus, subject, side in ((passage.here, route.source, "source"), (passage.there, route.target, "target")):
        adapters = {link.adapter for link in bus._running.links} | {listener._gate._adapter for listener in bus._listeners}
        faults = [fault for adapter in adapters if (fault := _fault(adapter, subject, route))]
        if faults and len(faults) == len(adapters):
            raise Unsupported(f"route {route.source!r} to {route.target!r}: its {side} side cannot carry that: {faults[0]}")


def _fault(adapter: Any, subject: str | int, route: Route) -> str | None:
    """What a protocol cannot carry."""
    capabilities = adapter.session("client").capabilities
    if isinstance(subject, int) and not capabilities.numbers:
        return f"{adapter.name} has no numbers for subjects, as {subject:#x} is one"
    if "publish" in route.kinds and not capabilities.publish:
        return f"{adapter.name} has no publications"
    extended = sorted(route.kinds & _EXTENSIONS)
    if extended and not capabilities.extensions:
        return f"{adapter.name} has no {', '.join(extended)}"
    if route.headers and not capabilities.headers:
        return f"{adapter.name} has no headers, and {', '.join(route.headers)} shall cross"
    return None


def bridge(left: Bus, right: Bus, *, routes: Iterable[Route]) -> Bridge:
    """Join two buses: ``async with bridge(left, right, routes=[Route("door.>", "vehicle.door.{rest}")]): ...``

    Both are entered. What a peer of the one asks or tells goes on to the other as if a program there did it: to its own
    handler, to the bridge further on, or over the link that it opened. Deadlines are shortened by the time spent, a cancelled
    request is cancelled there, errors come back as they are. Only the headers that a route names, and ``traceparent``, cross.
    Each publication crosses each bridge once, also in a ring.

    Args:
        left: One bus.
        right: The other.
        routes: What crosses. The first route that fits takes a request; a publication crosses by each that fits.

    Raises:
        TypeError, ValueError: The routes are none, or left and right are one.
        Unsupported: (on entering) What a side with links cannot carry by any of them.
    """
    return Bridge(left, right, routes)
