"""One route in one direction: what is asked, told and opened on the one side, done on the other."""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, Final

import anyio

from ..calls import Answer, Call, ChannelCall
from ..channel import Channel, Opening
from ..errors import BusError, Code, RequestError
from ..handlers import plan
from ..headers import VIA
from ..message import Kind, Message
from ..router import Listen
from ..subjects import matches
from ..subscription import HandlerInbox
from ..tunnels import hops_of
from .route import Route
from .translation import MISUSE, applied, first, translated
from .underpass import Underpass

if TYPE_CHECKING:
    from ..bus import Bus
    from ..link import Link
    from ..peer import Peer
    from ..runtime import Runtime

__all__ = ["Passage"]

_TRACE: Final = "traceparent"
_ADDED: Final = (VIA, _TRACE)
"""Headers that cross unasked: who cannot read them does without."""
_USUAL: Final = 30.0
"""Seconds for a request that says nothing of its deadline."""
_REMEMBERED: Final = 1024


logger: logging.Logger = logging.getLogger("polybus")


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
        on._value = await applied(convert, message.body, message)
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
            raise translated(error) from error
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
        began = runtime.time()
        timeout = _USUAL if deadline == math.inf else max(0.0, deadline - began)
        if on.subject in there._handlers:
            reply = there._loopback.request(on.subject, on.body, timeout, Any, on.headers)
        elif (further := there._passage(on.subject, "request")) is not None:
            answer: Message = await further.ask(on, began + timeout)
            return answer
        else:
            peer = there._route(on.subject)
            if not await peer.reads_headers():
                on.headers = {name: value for name, value in (on.headers or {}).items() if name.lower() not in _ADDED} or None
            reply = peer._pass_on(on, max(0.0, timeout - (runtime.time() - began)))
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
                    yield await applied(self.route.reply, item, message)
        except BusError as error:
            raise translated(error) from error

    async def _conversed(self, message: Message, near: Channel[Any, Any]) -> None:
        try:
            async with self._opening(message, "channel", None) as far, anyio.create_task_group() as group:
                group.start_soon(self._there, near, far, message)
                async for item in far:
                    await near.send(await applied(self.route.reply, item, message))
                await near.send_eof()
        except BaseExceptionGroup as errors:
            raise first(errors) from errors
        except BusError as error:
            raise translated(error) from error

    async def _there(self, near: Channel[Any, Any], far: Channel[Any, Any], message: Message) -> None:
        async for item in near:
            await far.send(await applied(self.route.request, item, message))
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
        except MISUSE as error:  # of some peer's wire; the others have got it
            logger.warning("polybus: %r could not cross the bridge as %r: %s", message.subject, target, error)
            self.here._dead_letter(message.peer, message, Code.INVALID_ARGUMENT, f"not bridged: {error}")


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
