"""One route in one direction: what is asked, told and opened on the one side, done on the other."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from ..calls import Answer, Call, ChannelCall
from ..errors import BusError, Code, RequestError
from ..headers import VIA
from ..message import Kind, Message
from ..subjects import matches
from .conversations import Conversations
from .publications import Publications
from .route import Route
from .translation import LEAVING, USUAL, applied, translated
from .underpass import Underpass

if TYPE_CHECKING:
    from ..bus import Bus
    from ..peer import Peer

__all__ = ["Passage"]

_TRACE: Final = "traceparent"
_ADDED: Final = (VIA, _TRACE)
"""Headers that cross unasked: who cannot read them does without."""
_REMEMBERED: Final = 1024


class Passage:
    """One route in one direction, as the bus that it begins at sees it."""

    def __init__(self, route: Route, here: Bus, there: Bus) -> None:
        self.route: Route = route
        self.here: Bus = here
        self.there: Bus = there
        self._known: dict[str | int, str | int] = {}
        self.is_open: bool = False
        self.calls: dict[Call, None] = {}
        """Requests, streams and channels that are under way."""
        self.publications: Publications = Publications(self)
        self.conversations: Conversations = Conversations(self)
        self.underpass: Underpass = Underpass(self)

    # -- its life --------------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Take what comes from now on."""
        self.is_open = True
        self.here._open_passage(self)
        if "publish" in self.route.kinds:
            await self.publications.open()

    def close(self) -> None:
        """Take nothing more."""
        self.is_open = False
        self.here._close_passage(self)
        self.publications.close()

    def busy(self, *, lasting: bool) -> bool:
        """Whether anything is under way; with `lasting` also what need not come to an end by itself."""
        return self.publications.busy or any(lasting or not isinstance(call, ChannelCall) for call in self.calls)

    def end_streams(self) -> None:
        """Streams and channels have had their time."""
        for call in list(self.calls):
            if isinstance(call, ChannelCall):
                call.cut(Code.UNAVAILABLE, LEAVING)

    def stop(self) -> None:
        """Cut what is still under way."""
        self.end_streams()
        for call in list(self.calls):
            if isinstance(call, PassingCall):
                call.refuse(Code.UNAVAILABLE, LEAVING)
        self.underpass.end()
        self.publications.stop()

    # -- what is done to a message ---------------------------------------------------------------------------------------

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

    def hop(self, subject: str | int, hops: int) -> int:
        """One bridge more, for what lasts: a stream, channel or tunnel.

        Raises:
            RequestError: It is one too many.
        """
        limit = self.here.limits.hops
        if hops >= limit:
            text = f"{subject!r} has come through {hops} bridges and tunnels: the limit is {limit} (Limits.hops)"
            raise RequestError(Code.FAILED_PRECONDITION, text)
        return hops + 1

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
        if self.there._id in buses or self.here._id in buses:
            text = f"nobody handles {message.subject!r}: the bridges lead back to where it has been"
            raise RequestError(Code.UNIMPLEMENTED, text)
        if len(buses) >= limit:
            text = f"{message.subject!r} has crossed {len(buses)} bridges: the limit is {limit} (Limits.hops)"
            raise RequestError(Code.FAILED_PRECONDITION, text)
        return f"{via},{self.here._id}"

    async def _answer(self, on: Message, deadline: float) -> Message:
        there = self.there
        runtime = there._running
        began = runtime.time()
        timeout = USUAL if deadline == math.inf else max(0.0, deadline - began)
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


class PassingCall(Call):
    """A request while the other side answers it."""

    __slots__ = ("_passage",)
    away = True

    def __init__(self, passage: Passage, origin: Answer, peer: Peer | None, message: Message, deadline: float) -> None:
        super().__init__(passage.here, origin, peer, None, message, deadline)  # type: ignore[arg-type]  # no handler
        self._passage = passage
        passage.calls[self] = None

    def refuse(self, code: Code, text: str) -> None:
        """Give up, and say why."""
        if not self.ended:
            self.origin.refuse(self, code, text, None, None)
            self.stop()

    def end(self) -> None:
        self._passage.calls.pop(self, None)
        super().end()

    async def invoke(self, message: Message) -> Any:
        """In place of a handler."""
        return await self._passage.ask(message, self.deadline)

    async def outcome(self) -> Any:
        deadline = None if self.deadline == math.inf else self.deadline
        return await self.bus._execution.around(self.message, deadline, self.invoke)
