"""Requests and notifications that cross a bridge."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from .._core.answer_sizes import Foresight
from .._core.via import Via, depth_of, hide, via_of
from .._rpc.call import Answer, Call
from ..errors import BusError, Code, RequestError
from ..headers import VIA
from ..message import Kind, Message
from .translation import TRACE, USUAL, translated

if TYPE_CHECKING:
    from .._peer.peer import Peer
    from .route_side import Passage

__all__ = ["PassingCall", "Requests"]

_ADDED: Final = (VIA, TRACE)
"""Headers that cross unasked: who cannot read them does without."""


class Requests:
    """What a passage has in place of handlers of requests: it asks, or tells, the other side."""

    def __init__(self, passage: Passage) -> None:
        self._passage = passage
        self.answers: Foresight = Foresight()

    def call(self, origin: Answer, peer: Peer | None, message: Message, deadline: float) -> Call:
        """A request or notification on its way to the other side."""
        return PassingCall(self._passage, origin, peer, message, deadline)

    async def ask(self, message: Message, deadline: float) -> Message:
        """The answer of the other side.

        Raises:
            RequestError: What went wrong, as the asker shall see it.
        """
        passage = self._passage
        try:
            answer = await self._answer(await self._onward(Kind.REQUEST, message), deadline)
        except (BusError, ConnectionError) as error:
            raise translated(error) from error
        if passage.route.reply is None:
            return answer
        return await passage.converted(passage.route.reply, answer, Message(Kind.RESPONSE, answer.subject))

    async def tell(self, message: Message) -> None:
        """A notification: nobody waits for what becomes of it."""
        try:
            on = await self._onward(Kind.NOTIFY, message)
            there = self._passage.there
            if (own := there._handler(on.subject)) is not None:
                hide(on)
                there._loopback.notify(own, on.body, on.headers)
            elif (further := there._passage(on.subject, "request")) is not None:
                await further.requests.tell(on)
            else:
                peer = there._route(on.subject)
                await self._fit(on, peer)
                peer.fit_body(on)
                await there._tell(peer, on)
        except BusError as error:
            self._passage.lost(message, error)

    async def _onward(self, kind: Kind, message: Message) -> Message:
        passage = self._passage
        on = Message(kind, passage.target(message.subject), headers=passage.headers(message, self._via(message)))
        return await passage.converted(passage.route.request, message, on)

    def _via(self, message: Message) -> Via:
        """Where a request has been, and that it leaves this bus.

        Raises:
            RequestError: It has been here or on the other side already, or has come too far.
        """
        here, there = self._passage.here, self._passage.there
        via = via_of(message)
        if there._services.id in via.buses or here._services.id in via.buses:
            text = f"nobody handles {message.subject!r}: the bridges lead back to where it has been"
            raise RequestError(Code.UNIMPLEMENTED, text)
        via = via.over(depth_of(message.peer))
        self._passage.hop(message.subject, via.crossed)
        return via.over(1).left(here._services.id)

    async def _answer(self, on: Message, deadline: float) -> Message:
        there = self._passage.there
        runtime = there._services.running
        began = runtime.time()
        timeout = USUAL if deadline == math.inf else max(0.0, deadline - began)
        if (own := there._handler(on.subject)) is not None:
            hide(on)
            reply = there._loopback.request(own, on.subject, on.body, timeout, Any, on.headers)
        elif (further := there._passage(on.subject, "request")) is not None:
            answer: Message = await further.requests.ask(on, began + timeout)
            return answer
        else:
            peer = there._route(on.subject)
            await self._fit(on, peer)
            reply = peer.pass_on(on, max(0.0, timeout - (runtime.time() - began)))
        await reply
        assert reply.message is not None
        return reply.message

    @staticmethod
    async def _fit(on: Message, peer: Peer) -> None:
        """Leave out what a bridge adds of its own, where the peer would not understand a message that has headers."""
        if on.headers and not await peer.negotiation.reads_headers():
            on.headers = {name: value for name, value in on.headers.items() if name.lower() not in _ADDED} or None


class PassingCall(Call):
    """A request while the other side answers it, or a notification until it has been handed over."""

    __slots__ = ("_passage",)
    away = True

    def __init__(self, passage: Passage, origin: Answer, peer: Peer | None, message: Message, deadline: float) -> None:
        super().__init__(passage.here._services, origin, peer, passage.requests, message, deadline)  # type: ignore[arg-type]  # in its place
        self._passage = passage
        passage.calls[self] = None

    @property
    def function(self) -> str:
        return f"a function of the bridge of {self._passage.route.source!r}"

    def cut(self, code: Code, text: str) -> None:
        """Give up, and say why."""
        if not self.ended:
            self.origin.refuse(self, code, text, None, None)
            self.stop()

    def end(self) -> None:
        self.discard()
        super().end()

    def discard(self) -> None:  # all that is called for one that still waits when its peer goes
        self._passage.calls.pop(self, None)

    async def invoke(self, message: Message) -> Any:
        """In place of a handler."""
        if message.kind is Kind.NOTIFY:
            return await self._passage.requests.tell(message)
        return await self._passage.requests.ask(message, self.deadline)

    async def outcome(self) -> Any:
        deadline = None if self.deadline == math.inf else self.deadline
        return await self.services.executor.around(self.message, deadline, self.invoke)
