"""The engine's own API for what it keeps (NATS documentation, "JetStream wire API Reference"): questions in JSON.

Behind them publications to a store, which are sent until the engine has said that it has them.
"""

from __future__ import annotations

import math
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeGuard

import anyio
from attrs import define, evolve, field, frozen

from ...errors import BusError, DeadlineExceeded, Disconnected, Forbidden, LocalProtocolError, NoHandler, QueueFull
from ...message import Kind, Message
from ...nodes import as_seconds
from ...plugins.tools import SubjectIndex, sources
from ...protocols.nats.cluster.subjects import escape_subject
from ...protocols.nats.stored import ToEngine, ToStore, api_of

if TYPE_CHECKING:
    from ...nodes import Store
    from ...plugins.parts import BusPeer, BusServices

NANOSECONDS: Final = 1_000_000_000
"""In a second: the engine writes times so."""
_EACH: Final = 2.0
"""Seconds for an answer, after which it is asked again: servers that have no leader yet are silent."""
_PAUSE: Final = 0.25
_UNAVAILABLE: Final = 503
_NOT_STORED: Final = 10077
"""The number of an error whose text says why: a limit, or a store that is about to be closed."""
_FULL: Final = frozenset((10002, 10023, 10028, 10047, 10122))
"""Numbers of errors: no room."""
_PASSING: Final = frozenset((10008, 10009, 10158, 10167))
"""Numbers of errors: no leader yet, the same id is being stored, too many at once."""
NOT_FOUND: Final = 10059
"""The number of an error: there is no such stream."""
NO_CONSUMER: Final = 10014
"""The same of a consumer."""
_STREAM: Final = re.compile(r"(?:(?![.*>/\\])[!-~]){1,255}")
_NEW: Final = (2, 10)
_HEARS_WHY: Final = (2, 10, 4)
"""The first servers that hear why a publication is not to come again."""
_DISABLED: Final = frozenset((10035, 10039, 10076))
"""JetStream is not enabled: in the server, in the account, in the system."""
_MOST_PAGES: Final = 98
"""Pages of names that are asked for, one after the other: an engine gives 1,024 names on each."""


class JetStreamError(Exception):
    """An answer that is an error.

    Attributes:
        number: The engine's number of it (``err_code``).
        text: Its description.
        full: There is no room: in the store, the account or the server.
        passes: It may pass: servers have not found together yet, or are at the same publication.
    """

    def __init__(self, number: int, text: str, code: Any = None) -> None:
        super().__init__(f"{text} ({number})")
        self.number = number
        self.text = text
        self.full: bool = number in _FULL or (number == _NOT_STORED and text.startswith("maximum"))
        self.passes: bool = number in _PASSING or (code == _UNAVAILABLE and not self.full)


class EngineLink(Protocol):
    """The link to the engine: of a cluster `backbone.Backbone`, to a network of others `foreign.ForeignStreams`."""

    @property
    def peer(self) -> BusPeer | None:
        """The engine, as the peer of the link; None while there is none."""
        ...


@frozen
class Advice:
    """Texts of errors that say what to do, which depends on whose engine it is.

    Attributes:
        keeps_nothing: It has no JetStream.
        no_store: Behind why no store keeps a pattern, which it has a place for.
        gone: No store keeps a subject that was published, which it has a place for.
        full: Where there is no room.
        forbidden: Behind what the engine does not allow; empty where that says enough.
    """

    keeps_nothing: str
    no_store: str
    gone: str
    full: str
    forbidden: str = ""


OF_CLUSTER: Final = Advice(
    keeps_nothing=(
        "the NATS server of the cluster keeps nothing: start it with JetStream (nats-server -js -sd FOLDER); that of "
        "run(workers=...) keeps stores in the folder that POLYBUS_STORE names"
    ),
    no_store="Name one in Cluster(stores=[Store('orders', {!r})])",
    gone=(
        "{!r} is not stored: the engine has no store for it any more, which was removed or lost. A bus that names it in "
        "Cluster(stores=...) makes it anew when it is entered or comes back to the engine, and `polybus store add` does"
    ),
    full="the store is full (max_bytes=), or what the server or its account may keep",
)


def config_of(answer: dict[str, Any]) -> dict[str, Any]:
    """The configuration in an answer that tells of a stream or a consumer; empty where there is none."""
    config = answer.get("config")
    return config if isinstance(config, dict) else {}


def is_stream_name(name: Any) -> TypeGuard[str]:
    """True for what can be the name of a stream: anything else would be another subject."""
    return isinstance(name, str) and _STREAM.fullmatch(name) is not None


def count_of(members: Any, name: str) -> int:
    """A number among the members of an answer; 0 where there is none."""
    value = members.get(name) if isinstance(members, dict) else None
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def read_answer(answer: Any, advice: Advice) -> dict[str, Any]:
    """Take the members of an answer.

    Raises:
        JetStreamError: It says that something is wrong, or is no answer.
        LocalProtocolError: The engine keeps nothing.
    """
    if not isinstance(answer, dict):
        raise JetStreamError(0, f"the engine has answered {answer!r:.100}, which is no object")
    error = answer.get("error")
    if not isinstance(error, dict):
        return answer
    number = count_of(error, "err_code")
    text = str(error.get("description") or error)[:500]
    if number in _DISABLED:
        raise LocalProtocolError(f"{advice.keeps_nothing} (it says: {text})")
    raise JetStreamError(number, text, error.get("code"))


@define(eq=False)
class JetStream:
    """Asks an engine about streams."""

    _link: EngineLink
    _patience: float = 5.0
    """Seconds for an answer, however often it is asked."""
    advice: Advice = OF_CLUSTER
    domain: str = ""
    """The domain whose streams they are; empty for that of the server."""

    @property
    def api(self) -> str:
        """The beginning of the subjects where it is asked."""
        return api_of(self.domain)

    @property
    def version(self) -> str:
        """The version of the server, as it says; empty where it does not."""
        peer = self._link.peer
        session: Any = None if peer is None else peer.link.session
        return "" if session is None else str(session.server.version or "")

    @property
    def is_old(self) -> bool:
        """True for a server before 2.10: it drops at times what it has stored where a store is full, and changes what it is to
        make where that is there already."""
        numbers = self._numbers
        return len(numbers) > 1 and numbers < _NEW

    @property
    def hears_why(self) -> bool:
        """True for a server that takes a reason with the word that a publication is not to come again."""
        return self._numbers >= _HEARS_WHY

    @property
    def _numbers(self) -> tuple[int, ...]:
        release = self.version.partition("-")[0].split(".")[:3]
        return tuple(int(digits) for digits in release if digits.isascii() and digits.isdigit())

    async def streams(self, subject: str) -> list[str]:
        """Find the names of the streams that keep what a pattern on the wire matches, or a part of it.

        Raises:
            JetStreamError, LocalProtocolError, Disconnected, Forbidden, DeadlineExceeded: As `ask`.
        """
        return await self._names("STREAM.NAMES", "streams", {"subject": subject})

    async def consumers(self, stream: str) -> list[str]:
        """Find the names of the consumers of a stream.

        Raises:
            JetStreamError, LocalProtocolError, Disconnected, Forbidden, DeadlineExceeded: As `ask`.
        """
        return await self._names(f"CONSUMER.NAMES.{stream}", "consumers", {})

    async def _names(self, word: str, member: str, members: dict[str, Any]) -> list[str]:
        """Ask page by page, and leave out what can be no name."""
        names, read = list[str](), 0
        for _ in range(_MOST_PAGES):
            answer = await self.ask(word, {**members, "offset": read})
            page = answer.get(member)
            page = page if isinstance(page, list) else []
            names += [name for name in page if is_stream_name(name)]
            read += len(page)
            if not page or read >= count_of(answer, "total"):
                break
        return names

    async def ask(self, word: str, members: dict[str, Any] | None = None) -> dict[str, Any]:
        """Ask ``$JS.API.<word>``, or that of a domain; again where servers do not answer that have not found together yet, or
        the link was lost and is to come back.

        Raises:
            JetStreamError: The engine refuses.
            LocalProtocolError: It keeps nothing.
            Disconnected, Forbidden, DeadlineExceeded: It is not there, does not let this bus, or does not answer.
        """
        peer = self._link.peer
        assert peer is not None  # asked for while there is a link, whose peer stays the same when it comes back
        runtime = peer.link.runtime
        removes = ".DELETE." in word  # asked again, what is removed would not be there, or what was made anew would be removed
        end, each = runtime.time() + self._patience, math.inf if removes else _EACH
        while True:
            try:
                answer = await peer.pass_on(_question(self.api + word, members), min(each, max(end - runtime.time(), 0)))
                return read_answer(answer, self.advice)
            except NoHandler:
                elsewhere = f"; nobody answers for the streams of domain={self.domain!r}" if self.domain else ""
                raise LocalProtocolError(f"{self.advice.keeps_nothing}{elsewhere}") from None
            except Forbidden as error:
                if not self.advice.forbidden:
                    raise
                raise Forbidden(f"{error.text}; {self.advice.forbidden}") from None
            except DeadlineExceeded:
                if runtime.time() >= end:
                    raise
            except Disconnected as error:
                if (removes and error.sent) or peer.gone or runtime.time() >= end:
                    raise
                await anyio.sleep(_PAUSE)
            except JetStreamError as error:
                if not error.passes or runtime.time() >= end:
                    raise
                await anyio.sleep(_PAUSE)


def _question(subject: str, members: dict[str, Any] | None) -> Message:
    asked = Message(Kind.REQUEST, subject, attributes={"to": ToEngine()})
    if members is not None:
        asked.decoded = members
    return asked


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

    _services: BusServices
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
            question = _asking_to_store(message, evolve(to, again=may_be_stored))
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


def _asking_to_store(message: Message, to: ToStore) -> Message:
    """The publication as something that is answered; anew for each time that it is sent."""
    asked = Message(Kind.REQUEST, message.subject, None, message.raw, message.format, message.headers, attributes={"to": to})
    asked.decoded, asked.checked = message.decoded, message.checked
    return asked
