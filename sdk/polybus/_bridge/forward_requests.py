"""Requests and notifications that cross a bridge."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar, Final

from .._core.rpc.call import Call
from .._core.runtime.memory import AnswerSizes
from .._core.runtime.via import ViaHeader, depth_of
from ..errors import BusError, Code, RequestError
from ..headers import VIA
from ..message import Kind, Message
from .translation import TRACE, USUAL, translated

if TYPE_CHECKING:
    from .._core.peer.peer import Peer
    from .._core.rpc.ports import ResponseSink
    from .route_side import RouteSide

_ADDED: Final = (VIA, TRACE)
"""Headers that cross unasked: a peer that cannot read them does without."""


class RequestForwarder:
    """The handler of the requests of a route: sends requests and notifications on to the other bus."""

    style: Final = "async"

    def __init__(self, side: RouteSide) -> None:
        self._side = side
        self.answers: AnswerSizes = AnswerSizes()
        self.subject: str | int = side.route.source

    def call(self, origin: ResponseSink, peer: Peer | None, message: Message, deadline: float) -> Call:
        """Make the call of a request or notification that goes to the other bus."""
        return BridgedCall(self._side, origin, peer, message, deadline)

    def checked(self, value: Any) -> Any:
        """The answer as it came: the other bus has looked at it."""
        return value

    async def invoke(self, services: Any, message: Message, deadline: float | None) -> Message | None:
        """Send a request or notification on, in place of a handler.

        Raises:
            RequestError: The failure, as the client shall see it.
        """
        if message.kind is Kind.NOTIFY:
            await self.tell(message)
            return None
        return await self.ask(message, math.inf if deadline is None else deadline)

    async def ask(self, message: Message, deadline: float) -> Message:
        """Ask the other bus.

        Raises:
            RequestError: The failure, as the client shall see it.
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
        """Notify the other bus: no caller waits for what becomes of it."""
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
        """Make the header of a request that leaves this bus.

        Raises:
            RequestError: It has been here or on the other side already, or has come too far.
        """
        here, there = self._side.here, self._side.there
        via = ViaHeader.of(message)
        if there.services.id in via.buses or here.services.id in via.buses:
            text = f"nobody handles {message.subject!r}: the bridges lead back to where it has been"
            raise RequestError(Code.UNIMPLEMENTED, text)
        via = via.add_hops(depth_of(message.peer))
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
    async def _fit(on: Message, peer: Peer) -> None:
        """Leave out the headers that a bridge adds, where the peer would not understand a message that has headers."""
        if on.headers and not await peer.negotiation.reads_headers():
            on.headers = {name: value for name, value in on.headers.items() if name.lower() not in _ADDED} or None


class BridgedCall(Call):
    """The call of a request while the other bus answers it, or of a notification until it has been handed over."""

    __slots__ = ("_side",)
    forwards: ClassVar[bool] = True

    def __init__(self, side: RouteSide, origin: ResponseSink, peer: Peer | None, message: Message, deadline: float) -> None:
        super().__init__(side.here.services, origin, peer, side.requests, message, deadline)  # type: ignore[arg-type]  # in its place
        self._side = side
        side.calls[self] = None

    @property
    def function(self) -> str:
        return f"a function of the bridge of {self._side.route.source!r}"

    def cut(self, code: Code, text: str) -> None:
        """Give up, and say why."""
        if not self.ended:
            self.origin.refuse(self, code, text, None, None)
            self.stop()

    def end(self) -> None:
        self.discard()
        super().end()

    def discard(self) -> None:  # the only one called where it still waits when its peer goes
        self._side.calls.pop(self, None)
