"""Finding out whether a peer is one of ours: the question, its answer however late, and what a bare peer cannot do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .._util.hello import HELLO, is_answer, question_of
from ..errors import BusError, Disconnected, RequestCancelled, Unsupported
from ..message import Kind, Message
from .extension_probe import HELLO_TIMEOUT, LATE, Question
from .inbound_calls import AnsweredPeer

if TYPE_CHECKING:
    from .._pubsub.receiver import Distribution

__all__ = ["AcquaintedPeer"]


class AcquaintedPeer(AnsweredPeer):
    """The part of a `Peer` that knows the extensions."""

    __slots__ = ()

    @property
    def _distribution(self) -> Distribution:
        return self.link.bus._distribution

    async def extended(self) -> bool:
        """Whether the peer is known to be one of ours and to speak the extensions. It is asked when that is first needed.

        An answer or a refusal is final. Silence is not: the peer may be busy. Then this is False, the next use asks again, and
        an answer that comes late counts.

        Raises:
            Disconnected: The link broke meanwhile.
        """
        if self._extended is None:
            await self._told(self.question())
        return bool(self._extended)

    async def reads_headers(self) -> bool:
        """Whether a request to the peer may have headers. Where those are an extension, it is asked who it is; one that was
        silent once is not waited for again.

        Raises:
            Disconnected: It is to be asked, and the link is down or broke meanwhile.
        """
        link = self.link
        session = link.session if link.session is not None else link.adapter.session("client", link.runtime.limits)
        if not session.capabilities.asks_before_headers:
            return session.capabilities.headers
        if self._silent and self.connected:
            _ = self.question()  # nobody waits for it again, but a late answer changes what follows
            return False
        return await self.extended()

    def question(self, *, again: bool = False) -> Question:
        """The question who the peer is, asked unless it is out already: each waits for a second, so that is one a second.

        Args:
            again: On a new connection, of which nobody there knows anything yet.
        """
        asking, link = self._asking, self.link
        ahead = self.connected and link.session is not None and link.initiates and not link.flowing
        if asking is None or asking.done() or (ahead and not asking.sent):
            to_tell = self._distribution.to_tell(self, again=again)  # type: ignore[arg-type]  # every one is a Peer
            asking = self._asking = self._ask({"subscribes": to_tell} if to_tell else {}, ahead=ahead)
        return asking

    async def hello(self, confirm: list[str | int] | None = None) -> list[str | int]:
        """Ask the peer who it is. Also a barrier: what was written before has been handled when this returns.

        Args:
            confirm: Patterns that were just subscribed.

        Returns:
            Those of `confirm` that the peer refused.
        """
        answer = await self._told(self._ask({"confirm": confirm} if confirm else {}))
        refused = answer.get("refused", []) if isinstance(answer, dict) else []
        return refused if isinstance(refused, list) else []

    @staticmethod
    async def _told(question: Question) -> Any:
        """The answer to a question; None where there is none.

        Raises:
            Disconnected: The link broke meanwhile.
        """
        try:
            return await question
        except (Disconnected, RequestCancelled):
            raise
        except (BusError, ConnectionError):
            return None

    def greet(self) -> None:
        """Ask on a new connection before anything else is written there, where that tells whoever answers what it must know.

        What strangers subscribe to is sent to them without headers, on some wires; and who passes publications on gets them
        with where they have been.
        """
        session = self.link.session
        if session is not None and self._extended is not False:
            if self._distribution.passes_on or (self._extended and session.capabilities.asks_before_publishing):
                _ = self.question(again=True)

    def _ask(self, facts: dict[str, Any], *, ahead: bool = False) -> Question:
        link = self.link
        if self._distribution.passes_on:
            facts["passes"] = True
        body = question_of(self.id, **facts)
        runtime = link.runtime
        now = runtime.time()
        question = Question(self, now)  # type: ignore[arg-type]  # every one is a Peer
        message = Message(Kind.REQUEST, HELLO, None, None, link.format, None, runtime.ttl(now, question.deadline))
        question._abandon = self._abandoned
        if link.upstream:
            body |= runtime.ends.introduction(self)  # type: ignore[arg-type]  # every one is a Peer
        try:
            message.format = chosen = link.format_for(body, HELLO)
            message.raw = chosen.encode(body)
            (link.request_ahead if ahead else link.request)(message, question, self)  # type: ignore[arg-type]  # every one is a Peer
        except BusError as error:  # this wire cannot carry it, or not now
            question._fail(error)
        if question.deadline < self._due:
            self._watch(question.deadline)
        return question

    def _answered(self, answer: Any) -> None:
        """It has said who it is."""
        if is_answer(answer):
            self._answers_only = answer.get("answers_only") is True
            self.is_at_an_end(answer.get("proof"))
            self.is_ours(answer.get("subscribes"))
        else:
            self._extended = False
            self.is_at_an_end()

    def is_at_an_end(self, proof: Any = None) -> None:
        """A question who it is has come to its end.

        Args:
            proof: What it said of the bus that it is.
        """
        self.link.runtime.ends.answered(self, proof)  # type: ignore[arg-type]  # every one is a Peer

    def is_ours(self, subscribes: Any = None, passes: Any = None) -> None:
        """It has shown to be one of ours.

        Args:
            subscribes: How many subscriptions it has still to tell.
            passes: Whether it passes publications on to other buses.
        """
        if passes is True and not self.passes_on:
            self.passes_on = True
            self._distribution.routes.clear()
        late = self._silent
        self._extended, self._silent = True, False
        if self.key is None and self.link.session is not None:
            self.link.set_shared()
        distribution = self._distribution
        distribution.known(self, subscribes)  # type: ignore[arg-type]  # every one is a Peer
        if late:
            distribution.known_late(self)  # type: ignore[arg-type]  # every one is a Peer

    def not_extended(self, without: str) -> Unsupported:
        """The error of a verb that takes one of ours.

        Args:
            without: What cannot be done.
        """
        if self._extended is None:
            return Unsupported(
                f"{self!r} has not answered for {HELLO_TIMEOUT:.0f} s: it may be a bare peer, or busy; {without} until it has "
                "said that it is a polybus peer: try again later"
            )
        return Unsupported(f"{self!r} is not a polybus peer: {without}")

    def _unanswered(self, question: Question) -> None:
        """A question is out for long: its answer may still come."""
        late = self._late = self._late if self._late is not None else {}
        late[question.key] = question
        session = self.link.session
        if len(late) > LATE and session is not None:
            oldest = next(iter(late))
            del late[oldest]
            session.forget(oldest, self.link.runtime.time())

    def late_answer(self, id: Any) -> Question | None:
        """The question that an answer to nothing in `pending` is for."""
        return self._late.pop(id, None) if self._late else None
