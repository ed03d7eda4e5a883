"""Publications to a store: sent until the engine has said that it has them."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import anyio
from attrs import define, evolve, field

from ..._util.pattern_index import SubjectIndex
from ..._util.sources import sources
from ...errors import BusError, DeadlineExceeded, Disconnected, LocalProtocolError, NoHandler, QueueFull
from ...message import Kind, Message
from ...nodes import as_seconds
from ...protocols.nats.cluster.subjects import escape_subject
from ...protocols.nats.stored import ToStore
from .jetstream import JetStreamError, config_of, read_answer

if TYPE_CHECKING:
    from ..._core.runtime.services import Services
    from ...nodes import Store
    from .jetstream import EngineLink, JetStream

_PAUSE: Final = 0.25
"""Seconds until one is sent again which the engine could not take."""
_CERTAIN: Final = 2
"""Times in a row that the engine says that nothing keeps it: servers that find together may not know all streams at first."""
_OF_ENGINE: Final = "nats-"
"""The beginning of headers that tell the engine what to do."""
_UNKNOWN: Final = (
    "the engine has not said that it is stored, and it may be: published again under the same id=, it is stored once"
)
_NOT_SENT: Final = "it was not sent to the engine, so it is not stored"
_NOT_TAKEN: Final = (
    "nobody has taken it, so it is not stored: what keeps it has no leader, as long as servers are missing or have not found "
    "together, or is not there"
)
_OTHER: Final = (
    "{subject!r} is not stored: id={id!r} is that of a publication of {other!r} of the same store, where an id is stored once, "
    "whatever its subject: say which it is, for example id={better!r}"
)


@define(eq=False)
class StoredPublishing:
    """Publishes to stores."""

    _services: Services
    _link: EngineLink
    _jetstream: JetStream
    _prefix: str
    """The beginning of the subjects of publications on the wire; empty where they stand there as they are."""
    _each: float = math.inf
    """Seconds after which one is sent again of which nothing is heard, where the session does not do so."""
    _known: float = math.inf
    """Seconds for which an engine surely knows the id of what no store of this bus keeps."""
    _kept: SubjectIndex[tuple[str, float]] = field(factory=lambda: SubjectIndex[tuple[str, float]]())
    """The names of stores by what they keep, each with the seconds for which it surely knows an id."""

    def add(self, store: Store) -> None:
        """Take note of what a store keeps."""
        window = as_seconds(store.dedup, "dedup")
        if store.max_age is not None:
            window = min(window, as_seconds(store.max_age, "max_age"))
        for pattern in store.subjects:
            self._kept.add(pattern, (store.name, window / 2))  # what is on its way may take as long

    def keeps(self, subject: str | int) -> bool:
        """Tell whether publications of a subject are stored."""
        return bool(self._kept.match(subject))

    async def publish(self, message: Message, id: str | None, deadline: float) -> None:
        """Return when the engine has stored a publication of a store's subject.

        Raises:
            LocalProtocolError: Its headers are for the engine, or its id is that of a publication of another subject.
            BusError: As `store`.
        """
        subject = message.subject
        for name in message.headers or ():
            if name.lower().startswith(_OF_ENGINE):
                raise LocalProtocolError(
                    f"the header {name!r} is for the engine that stores {subject!r}: leave it out; an id is said by id="
                )
        known = min((window for _, window in self._kept.match(subject)), default=self._known)
        answer = await self.store(message, sources.get().urandom(12).hex() if id is None else id, deadline, known=known)
        if id is not None and answer.get("duplicate") is True:
            other = await self._other(self._written(subject), answer)
            if other is not None:
                raise LocalProtocolError(_OTHER.format(subject=subject, id=id, other=other, better=f"{subject}:{id}"))

    async def publish_kept(self, message: Message, deadline: float) -> bool:
        """Publish what a stream keeps, whoever made that. False where none is known to that would say so: nothing is published.

        Raises:
            BusError: As `publish`.
        """
        kept = False
        with anyio.move_on_after(deadline - self._services.running.time()), suppress(BusError, JetStreamError):
            for name in await self._jetstream.streams(self._written(message.subject)):
                config = config_of(await self._jetstream.ask(f"STREAM.INFO.{name}"))
                kept = kept or not config.get("no_ack")
        if kept:
            await self.publish(message, None, deadline)
        return kept

    def _written(self, subject: str | int) -> str:
        """The subject on the wire."""
        return f"{self._prefix}{escape_subject(subject)}" if self._prefix else str(subject)

    async def _is_kept(self, subject: str, left: float) -> bool | None:
        """Tell whether a stream keeps a subject on the wire; None where the engine does not say so within some seconds.

        Raises:
            LocalProtocolError: It says that it keeps nothing at all, as one may that has not found the others yet.
        """
        with anyio.move_on_after(left):
            try:
                return bool(await self._jetstream.streams(subject))
            except LocalProtocolError:
                raise
            except (BusError, JetStreamError):
                return None
        return None

    async def _other(self, subject: str, answer: dict[str, Any]) -> str | None:
        """Find the subject on the wire of a publication whose id came twice; None where it is this one, or cannot be found."""
        with suppress(BusError, JetStreamError):
            found = await self._jetstream.ask(f"STREAM.MSG.GET.{answer.get('stream')}", {"seq": answer.get("seq")})
            there = found.get("message")
            at = there.get("subject") if isinstance(there, dict) else None
            if isinstance(at, str) and at != subject:
                return at.removeprefix(self._prefix)
        return None

    async def store(
        self,
        message: Message,
        id: str,
        deadline: float,
        at: str = "",
        only: str = "",
        block: bytes = b"",
        known: float = math.inf,
    ) -> dict[str, Any]:
        """Return when the engine has stored a publication; sent again under its id as long as it does not say so.

        Gives what the engine says: the stream, the number there, and whether it had it already.

        Args:
            message: The publication.
            id: Under which it is stored once.
            deadline: Time until which it is tried.
            at: Its subject on the wire, where that is another one than of a publication.
            only: The one durable handler that it is for, where that is not all.
            block: Its headers on the wire, where they are not to be written anew.
            known: Seconds for which the engine knows its id. It is not sent again later, and its answer still waited for.

        Raises:
            QueueFull: The store is full, or waits for room to this engine.
            LocalProtocolError: The engine stores no such subject any more.
            DeadlineExceeded: It has not said so in time: it may be stored, and may not.
            Disconnected, EncodeError, TooLarge, Forbidden: As a request.
        """
        runtime, subject = self._services.running, message.subject
        began, may_be_stored, not_kept = runtime.time(), False, 0
        to = ToStore(id, at, only, block=block, until=began + known)
        last: BusError | None = None
        while (left := deadline - runtime.time()) > 0:
            peer = self._link.peer
            if peer is None or (may_be_stored and runtime.time() >= to.until):
                break
            question = _question(message, evolve(to, again=may_be_stored))
            try:
                return read_answer(await peer.pass_on(question, min(left, self._each)), self._jetstream.advice)
            except JetStreamError as error:
                sent_before: ToStore = question.attributes["to"]  # by the session, too
                last = self._refused(subject, error, sent_before.again)
                if not error.passes:
                    raise last from None
                may_be_stored = True
            except DeadlineExceeded as error:
                last, may_be_stored = error, True
                if self._each >= left:
                    break
            except NoHandler as error:  # nobody has heard it; servers that have not found together yet say so, too
                last, kept = error, None
                try:
                    kept = await self._is_kept(at or self._written(subject), deadline - runtime.time())
                except LocalProtocolError as nothing:
                    last = nothing
                not_kept = not_kept + 1 if kept is False else 0
                if not_kept == _CERTAIN and not may_be_stored:
                    raise LocalProtocolError(self._jetstream.advice.gone.format(subject)) from None
            except Disconnected as error:  # the engine is about to come back
                if peer.gone:
                    raise
                last, may_be_stored = error, may_be_stored or error.sent
            await anyio.sleep(min(_PAUSE, max(deadline - runtime.time(), 0)))
        if isinstance(last, LocalProtocolError) and not may_be_stored:
            raise last
        said = _UNKNOWN if may_be_stored else _NOT_TAKEN if isinstance(last, NoHandler) else _NOT_SENT
        if (peer := self._link.peer) is not None and (absence := peer.link.absence()):
            said = f"{said}; {absence}"
        raise DeadlineExceeded(subject, runtime.time() - began, "local", said) from last

    def _refused(self, subject: str | int, error: JetStreamError, may_be_stored: bool) -> BusError:
        is_not = "may be stored, as it was sent before without an answer; now" if may_be_stored else "is not stored:"
        said = f"{subject!r} {is_not} the NATS server says: {error.text}"
        return QueueFull(f"{said}; {self._jetstream.advice.full}") if error.full else LocalProtocolError(said)


def _question(message: Message, to: ToStore) -> Message:
    """The publication as something that is answered; anew for each time that it is sent."""
    asked = Message(Kind.REQUEST, message.subject, None, message.raw, message.format, message.headers, attributes={"to": to})
    asked.decoded, asked.checked = message.decoded, message.checked
    return asked
