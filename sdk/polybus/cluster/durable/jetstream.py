"""Client for the engine's JSON API (NATS documentation, "JetStream wire API Reference"), and publishing with confirmation."""

from __future__ import annotations

import json
import math
import re
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeGuard

import anyio
from attrs import define, evolve, field, frozen

from ...errors import BusError, Code, DeadlineExceeded, Disconnected, Forbidden, LocalProtocolError, NoHandler, QueueFull
from ...events import BusEvent, DeadLettered
from ...message import Kind, Message
from ...nodes import as_seconds
from ...plugins.tools import SubjectIndex, sources
from ...protocols.nats.cluster.subjects import escape_subject
from ...protocols.nats.stored import ToEngine, ToStore, api_of

if TYPE_CHECKING:
    from ...integrations import PeerCore, Services
    from ...nodes import Store

NANOSECONDS: Final = 1_000_000_000  # Nanoseconds per second. The engine's times are in nanoseconds.
_EACH: Final = 2.0  # Seconds until a request is repeated. Servers do not answer while they have no leader.
_PAUSE: Final = 0.25
_UNAVAILABLE: Final = 503
_NOT_STORED: Final = 10077
"""Error number with several possible causes, such as a limit or a stream that is being closed. The text explains the cause."""
_FULL: Final = frozenset((10002, 10023, 10028, 10047, 10122))  # Error numbers for a store, account or server that is full
_PASSING: Final = frozenset((10008, 10009, 10158, 10167))
"""Error numbers for temporary failures: no leader yet, a publication with the same id in progress, or too many requests."""
NO_STREAM: Final = 10059  # Error number for a stream that does not exist
_MISSING: Final = frozenset((NO_STREAM, 10014, 10037))  # Error numbers for a stream, consumer or message that does not exist
_STREAM: Final = re.compile(r"(?:(?![.*>/\\])[!-~]){1,255}")
_NEW: Final = (2, 10)
_HEARS_WHY: Final = (2, 10, 4)  # First server release that accepts a reason after ``+TERM``
_LISTS_COPYING: Final = (2, 14)  # First server release that lists the consumers that it uses for copying
_DISABLED: Final = frozenset((10035, 10039, 10076))
"""Error numbers that mean that JetStream is not enabled for the server, the account or the system."""
_MOST_PAGES: Final = 98  # Maximum number of pages to request. Each page contains up to 1,024 names.


class JetStreamError(LocalProtocolError):
    """The engine rejected a request. `number` is its ``err_code``."""

    def __init__(self, number: int, text: str, code: Any = None) -> None:
        super().__init__(f"the NATS server says: {text}")
        self.number = number
        self.full: bool = number in _FULL or (number == _NOT_STORED and text.startswith("maximum"))
        self.missing: bool = number in _MISSING
        self.passes: bool = number in _PASSING or (code == _UNAVAILABLE and not self.full)
        """True if a retry can succeed, for example because servers are electing a leader."""


class EngineLink(Protocol):
    """A link to the engine: a `backbone.Backbone` or, for an external network, an `integrations.Link`."""

    @property
    def peer(self) -> PeerCore | None:
        """The engine, or `None` before the first connection."""
        ...


@frozen
class Advice:
    keeps_nothing: str
    no_store: str  # formatted with the pattern
    gone: str  # formatted with the subject
    full: str
    forbidden: str = ""


OF_CLUSTER: Final = Advice(
    keeps_nothing=(
        "JetStream is not enabled in the cluster's NATS server: start it with nats-server -js -sd FOLDER; for run(workers=...) "
        "set POLYBUS_STORE to a folder"
    ),
    no_store="Add it to a store, for example Cluster(stores=[Store('orders', {!r})])",
    gone=(
        "{!r} is not stored: its store was removed or lost. `polybus store add` creates it again, as does a bus with "
        "Cluster(stores=...) when it is entered or reconnects to the engine"
    ),
    full="the store is full (max_bytes=), or the server or its account has reached a limit",
)


def again(pause: float) -> str:
    """Return the acknowledgement that requests redelivery after `pause` seconds."""
    return f"-NAK {json.dumps({'delay': round(pause * NANOSECONDS)})}"


def config_of(answer: dict[str, Any]) -> dict[str, Any]:
    config = answer.get("config")
    return config if isinstance(config, dict) else {}


def is_stream_name(name: Any) -> TypeGuard[str]:
    """Return True for a valid stream name. An invalid name could change the subject of a request."""
    return isinstance(name, str) and _STREAM.fullmatch(name) is not None


def count_of(members: Any, name: str) -> int:
    value = members.get(name) if isinstance(members, dict) else None
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def read_answer(answer: Any, advice: Advice) -> dict[str, Any]:
    """Return the members of an answer. Raises the error that it contains, as documented for `JetStream.ask`."""
    if not isinstance(answer, dict):
        raise JetStreamError(0, f"{answer!r:.100}, which is not an object")
    error = answer.get("error")
    if not isinstance(error, dict):
        return answer
    number = count_of(error, "err_code")
    text = str(error.get("description") or error)[:500]
    if number in _DISABLED:
        raise LocalProtocolError(f"{advice.keeps_nothing} (the NATS server says: {text})")
    raise JetStreamError(number, text, error.get("code"))


@define(eq=False)
class JetStream:
    _link: EngineLink
    _patience: float = 5.0  # Seconds to wait for an answer, including repetitions of the request
    advice: Advice = OF_CLUSTER
    domain: str = ""  # JetStream domain of the streams, or an empty string for the server's own domain

    @property
    def api(self) -> str:
        return api_of(self.domain)

    @property
    def peer(self) -> PeerCore | None:
        return self._link.peer

    @property
    def version(self) -> str:
        """Server version, or an empty string if unknown."""
        session: Any = None if self.peer is None else self.peer.link.session
        return "" if session is None else str(session.server.version or "")

    @property
    def is_old(self) -> bool:
        """True before 2.10, where full stores may drop publications and creating a consumer changes an existing one."""
        return 1 < len(self._numbers) and self._numbers < _NEW

    @property
    def hears_why(self) -> bool:
        return self._numbers >= _HEARS_WHY

    @property
    def keeps_copying(self) -> float:
        """Seconds for which the server keeps a consumer that it has used for copying and does not list, or 0."""
        return 0.0 if self._numbers >= _LISTS_COPYING else 7.0 if self.is_old else 12.0  # measured: up to 6.0 and 10.1

    @property
    def _numbers(self) -> tuple[int, ...]:
        release = self.version.partition("-")[0].split(".")[:3]
        return tuple(int(digits) for digits in release if digits.isascii() and digits.isdigit())

    async def streams(self, subject: str) -> list[str]:
        return await self._names("STREAM.NAMES", "streams", {"subject": subject})

    async def consumers(self, stream: str) -> list[str]:
        return await self._names(f"CONSUMER.NAMES.{stream}", "consumers", {})

    async def find(self, word: str, members: dict[str, Any] | None = None) -> dict[str, Any] | None:
        """Send a request like `ask`, but return None if the stream, consumer or message does not exist."""
        try:
            return await self.ask(word, members)
        except JetStreamError as error:
            if error.missing:
                return None
            raise

    async def create(self, word: str, members: dict[str, Any], info: str) -> tuple[dict[str, Any], bool]:
        """Create a stream or consumer, unless another node has just created it.

        Returns the configuration, and True if it was created by this call.
        """
        try:
            return config_of(await self.ask(word, members)), True
        except JetStreamError:
            there = await self.find(info)
            if there is None:
                raise
            return config_of(there), False

    async def _names(self, word: str, member: str, members: dict[str, Any]) -> list[str]:
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
        """Send a request to ``$JS.API.<word>`` or the domain's API, and repeat it during elections and reconnects.

        Raises:
            JetStreamError: If the engine rejects the request.
            LocalProtocolError: If JetStream is not enabled.
            Disconnected, Forbidden, DeadlineExceeded: If the engine is down, rejects this user, or does not answer.
        """
        peer = self.peer
        assert peer is not None  # there is a link, and the peer stays the same after a reconnect
        runtime = peer.link.runtime
        removes = ".DELETE." in word  # repeating it could fail, or remove a new object with that name
        end, each = runtime.time() + self._patience, math.inf if removes else _EACH
        while True:
            try:
                answer = await peer.pass_on(_question(self.api + word, members), min(each, max(end - runtime.time(), 0)))
                return read_answer(answer, self.advice)
            except NoHandler:
                elsewhere = f"; domain={self.domain!r} does not answer" if self.domain else ""
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


_CERTAIN: Final = 2
"""Number of consecutive answers without a stream that count as final. Servers may not know all streams at first."""
_OF_ENGINE: Final = "nats-"  # Prefix of headers that contain instructions for the engine
_UNKNOWN: Final = "the engine did not confirm it, but it may be stored: publish it again with the same id= to store it once"
_NOT_SENT: Final = "it was not sent to the engine, so it is not stored"
_NOT_TAKEN: Final = (
    "no stream accepted it, so it is not stored: its stream does not exist, or has no leader (servers are missing or elect one)"
)
_OTHER: Final = (
    "{subject!r} is not stored: the store already has id={id!r} for {other!r}, and ids are unique across its subjects: use "
    "a different id, for example id={better!r}"
)


@define(eq=False)
class StoredPublishing:
    _services: Services
    jetstream: JetStream
    _prefix: str
    _each: float = math.inf  # Seconds until an unconfirmed publication is resent. Infinite if the session resends publications.
    _known: float = math.inf  # Seconds during which external streams remember an id
    _kept: SubjectIndex[tuple[str, float]] = field(factory=lambda: SubjectIndex[tuple[str, float]]())
    """Name of each store of this bus and the seconds during which it remembers an id, by subject."""

    def add(self, store: Store) -> None:
        window = as_seconds(store.dedup, "dedup")
        if store.max_age is not None:
            window = min(window, as_seconds(store.max_age, "max_age"))
        for pattern in store.subjects:
            self._kept.add(pattern, (store.name, window / 2))  # a publication may be in flight for the other half

    def keeps(self, subject: str | int) -> bool:
        return bool(self._kept.match(subject))

    async def publish(self, message: Message, id: str | None, deadline: float) -> None:
        """Publish a message, and return once the engine has stored it.

        Raises `LocalProtocolError` if the message has headers for the engine, or the id belongs to a publication to another
        subject, and otherwise the errors of `store`.
        """
        subject = message.subject
        for name in message.headers or ():
            if name.lower().startswith(_OF_ENGINE):
                raise LocalProtocolError(
                    f"the header {name!r} is an instruction for the engine that stores {subject!r}: leave it out, and use id= "
                    "for an id"
                )
        known = min((window for _, window in self._kept.match(subject)), default=self._known)
        answer = await self.store(message, sources.get().urandom(12).hex() if id is None else id, deadline, known=known)
        if id is not None and answer.get("duplicate") is True:
            other = await self._other(self._written(subject), answer)
            if other is not None:
                raise LocalProtocolError(_OTHER.format(subject=subject, id=id, other=other, better=f"{subject}:{id}"))

    async def publish_kept(self, message: Message, deadline: float) -> bool:
        """Publish a message only if a stream stores the subject. Returns False if nothing was published."""
        kept = False
        with anyio.move_on_after(deadline - self._services.running.time()), suppress(BusError):
            for name in await self.jetstream.streams(self._written(message.subject)):
                config = config_of(await self.jetstream.ask(f"STREAM.INFO.{name}"))
                kept = kept or not config.get("no_ack")
        if kept:
            await self.publish(message, None, deadline)
        return kept

    async def refusal(self, subject: str | int, events: AsyncIterator[BusEvent], deadline: float) -> str:
        """Wait until the engine has processed all publications, and return why it refused one to this subject.

        Returns an empty string if the bus's `events` do not mention a refusal.
        """
        written = self._written(subject)
        with anyio.move_on_after(deadline - self._services.running.time()):
            assert self.jetstream.peer is not None
            await self.jetstream.peer.link.confirmed()
        with anyio.move_on_after(0):
            async for event in events:
                if isinstance(event, DeadLettered) and (event.code, event.subject) == (Code.PERMISSION_DENIED, written):
                    return event.reason
        return ""

    def _written(self, subject: str | int) -> str:
        return f"{self._prefix}{escape_subject(subject)}" if self._prefix else str(subject)

    async def _is_kept(self, subject: str, left: float) -> bool | None:
        """Return True if a stream stores a wire subject, or None if the engine does not answer in time.

        Raises `LocalProtocolError` if JetStream is not enabled. Servers may also report this during an election.
        """
        with anyio.move_on_after(left):
            try:
                return bool(await self.jetstream.streams(subject))
            except BusError as error:
                if type(error) is LocalProtocolError:
                    raise
        return None

    async def _other(self, subject: str, answer: dict[str, Any]) -> str | None:
        """Return the other subject that already has this id in the store, or None if the subject is the same or unknown."""
        with suppress(BusError):
            found = await self.jetstream.ask(f"STREAM.MSG.GET.{answer.get('stream')}", {"seq": answer.get("seq")})
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
        """Send a publication repeatedly until the engine confirms it.

        Returns the engine's answer: the stream, the number in the stream, and whether the publication is a duplicate.

        Args:
            message: The publication.
            id: The engine stores only one publication per id.
            deadline: Time after which to give up.
            at: Wire subject, if not the default one.
            only: Name of the only durable handler that should receive the publication, or an empty string for all.
            block: Headers, if they are already encoded.
            known: Seconds during which the engine remembers the id. After that, the publication is not resent.

        Raises:
            QueueFull: If the store or the link's queue is full.
            LocalProtocolError: If there is no longer a store for the subject.
            DeadlineExceeded: If the engine does not confirm in time. The publication may or may not be stored.
            Disconnected, EncodeError, TooLarge, Forbidden: As for a request.
        """
        runtime, subject = self._services.running, message.subject
        began, may_be_stored, not_kept = runtime.time(), False, 0
        to = ToStore(id, at, only, block=block, until=began + known)
        last: BusError | None = None
        while (left := deadline - runtime.time()) > 0:
            peer = self.jetstream.peer
            if peer is None or (may_be_stored and runtime.time() >= to.until):
                break
            question = _asking_to_store(message, evolve(to, again=may_be_stored))
            try:
                return read_answer(await peer.pass_on(question, min(left, self._each)), self.jetstream.advice)
            except JetStreamError as error:
                sent_before: ToStore = question.attributes["to"]  # the session may also have repeated it
                last = self._refused(subject, error, sent_before.again)
                if not error.passes:
                    raise last from None
                may_be_stored = True
            except DeadlineExceeded as error:
                last, may_be_stored = error, True
                if self._each >= left:
                    break
            except NoHandler as error:  # nobody listens, which servers also report during an election
                last, kept = error, None
                try:
                    kept = await self._is_kept(at or self._written(subject), deadline - runtime.time())
                except LocalProtocolError as nothing:
                    last = nothing
                not_kept = not_kept + 1 if kept is False else 0
                if not_kept == _CERTAIN and not may_be_stored:
                    raise LocalProtocolError(self.jetstream.advice.gone.format(subject)) from None
            except Disconnected as error:  # the link reconnects
                if peer.gone:
                    raise
                last, may_be_stored = error, may_be_stored or error.sent
            await anyio.sleep(min(_PAUSE, max(deadline - runtime.time(), 0)))
        if isinstance(last, LocalProtocolError) and not may_be_stored:
            raise last
        said = _UNKNOWN if may_be_stored else _NOT_TAKEN if isinstance(last, NoHandler) else _NOT_SENT
        if (peer := self.jetstream.peer) is not None and (absence := peer.link.absence()):
            said = f"{said}; {absence}"
        raise DeadlineExceeded(subject, runtime.time() - began, "local", said) from last

    def _refused(self, subject: str | int, error: JetStreamError, may_be_stored: bool) -> BusError:
        is_not = "may be stored, as it was sent before without an answer; now" if may_be_stored else "is not stored:"
        said = f"{subject!r} {is_not} {error.text}"
        return QueueFull(f"{said}; {self.jetstream.advice.full}") if error.full else LocalProtocolError(said)


def _asking_to_store(message: Message, to: ToStore) -> Message:
    """Create a request that contains a publication. Each try requires a new request."""
    asked = Message(Kind.REQUEST, message.subject, None, message.raw, message.format, message.headers, attributes={"to": to})
    asked.decoded, asked.checked = message.decoded, message.checked
    return asked
