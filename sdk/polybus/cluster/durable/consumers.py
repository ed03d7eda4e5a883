"""Consumers: the engine's record of a store reader's position; and the readers of one bus."""

from __future__ import annotations

import datetime
import itertools
import json
import logging
import math
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import anyio
from attrs import define, field, frozen

from ...errors import BusError, LocalProtocolError
from ...plugins.tools import shown, sources
from ...protocols.nats.cluster.subjects import REPLAY, covers
from ...stats import DurableStats
from ...subjects import is_pattern
from .dead_letters import count_few_letters
from .delivery import GIVEN_BACK, Fate, HandlerTaker, SubscriptionTaker
from .jetstream import NANOSECONDS, NO_CONSUMER, JetStream, JetStreamError, config_of, count_of
from .reader import Consumer, Pull, StoreReader, Taker, say
from .storage import MOST, DurableSpec, ReplaySpec

if TYPE_CHECKING:
    from ...integrations import IteratedQueue, PeerParty, Services, SubscriberSpec
    from ...message import Message
    from ...nodes import Start
    from ...protocols.nats.stored import ToReader
    from .dead_letters import Graveyard

logger: logging.Logger = logging.getLogger("polybus.cluster")

_MARKS: Final = 99_991
"""Number of different marks: two configurations share one by a chance of one in so many."""
_IDLE: Final = 60.0
"""Seconds without a request after which the engine removes a replay's consumer."""


@frozen
class FoundStreams:
    """The streams that store what a pattern matches.

    Attributes:
        names: Of all that store a part of it.
        whole: The one that stores all of it; or empty.
        created: When that one was created, which tells it from an earlier one of the same name; empty if unknown.
    """

    names: list[str]
    whole: str = ""
    created: str = ""

    def is_anew(self, before: FoundStreams) -> bool:
        """True if this stream replaces a lost one of the same name: its numbers begin at 1 again."""
        return self.whole == before.whole and before.created not in ("", self.created)


async def find_streams(jetstream: JetStream, subject: str) -> FoundStreams:
    """Find the streams that store what a wire pattern matches, and whether one stores all of it.

    Raises:
        JetStreamError, LocalProtocolError, Disconnected, Forbidden, DeadlineExceeded: As `JetStream.ask`.
    """
    found = await jetstream.streams(subject)
    if len(found) == 1:
        info = await jetstream.ask(f"STREAM.INFO.{found[0]}")
        subjects = config_of(info).get("subjects")
        if isinstance(subjects, list) and any(covers(str(wide), subject) for wide in subjects):
            return FoundStreams(found, found[0], str(info.get("created") or ""))
    return FoundStreams(found)


@define(eq=False)
class Consumers:
    _jetstream: JetStream

    async def durable(
        self,
        spec: DurableSpec,
        beginning: Callable[[FoundStreams], dict[str, Any]],
        subject: str,
        pattern: str | int,
        *,
        again: bool,
    ) -> FoundStreams:
        """Create the consumer of a durable name unless it exists; returns its stream as `FoundStreams.whole`.

        Args:
            spec: The durable handler or subscription.
            beginning: Returns the members with the start of a new consumer.
            subject: The pattern's form on the wire.
            pattern: Subjects that it handles.
            again: The consumer existed before: log if it was removed.

        Raises:
            LocalProtocolError: No store keeps the pattern, or the consumer exists and differs, or cannot be created.
            Disconnected, Forbidden, DeadlineExceeded: As `JetStream.ask`.
        """
        try:
            found = await self._stream_of(subject, pattern)
            stream, wanted = found.whole, _members(spec, subject)
            there = await self._find(stream, spec.name)
            if there is None:
                if again:
                    logger.warning("the durable handler %s of the store %s was removed: it begins again", spec.name, stream)
                there = await self._make(stream, spec, {**wanted, **beginning(found)})
        except JetStreamError as error:
            raise _not_made(f"durable={spec.name!r}", pattern, error) from None
        for member, wants in _OURS.items():
            if there.get(member) not in wants:
                raise LocalProtocolError(
                    f"durable={spec.name!r} exists already and was made by others: {member} is {shown(there.get(member))}, "
                    f"and publications may be lost unless it is {shown(wants[0])}. Change the consumer of the stream "
                    f"{stream!r}, or take another name"
                )
        for member, argument in _ARGUMENTS.items():
            if there.get(member) != wanted[member]:
                raise LocalProtocolError(
                    f"durable={spec.name!r} exists already and has another {argument}: "
                    f"{_readable(member, there.get(member))}, not {_readable(member, wanted[member])}. polybus never changes a "
                    f"consumer: use the same value or another name, or change the consumer of the stream {stream!r} with the "
                    "tools of NATS (a removed one begins again)"
                )
        return found

    async def replay(
        self, name: str, start: Callable[[FoundStreams], Start], subject: str, pattern: str | int
    ) -> tuple[FoundStreams, int]:
        """Create a consumer that only reads, and that the engine removes once idle.

        Returns the stream, and the number of the last publication before its start.

        Args:
            name: Of the consumer.
            start: Returns where it begins in a stream.
            subject: The pattern's form on the wire.
            pattern: Subjects that it reads.

        Raises:
            BusError: As `durable`.
        """
        config = {
            "name": name,
            "ack_policy": "none",
            "filter_subject": subject,
            "inactive_threshold": round(_IDLE * NANOSECONDS),
            "max_waiting": MOST,
            "mem_storage": True,
            "num_replicas": 1,
        }
        begins: Start = "all"
        try:
            found = await self._stream_of(subject, pattern)
            begins = start(found)
            members = {"stream_name": found.whole, "config": {**config, **beginning_of(begins)}}
            made = await self._jetstream.ask(f"CONSUMER.CREATE.{found.whole}.{name}.{subject}", members)
        except JetStreamError as error:
            raise _not_made(f"a subscription with start={shown(begins)}", pattern, error) from None
        return found, count_of(made.get("delivered"), "stream_seq")

    async def progress(self, durables: Iterable[tuple[str, str]], place: tuple[str, str] | None) -> tuple[DurableStats, ...]:
        """Ask for the state of durable consumers, given by stream and name, and for the number of their dead letters.

        Raises:
            BusError, JetStreamError: As `JetStream.ask`.
        """
        letters = None if place is None else await count_few_letters(self._jetstream, *place)
        found = []
        for stream, name in durables:
            info = await self._jetstream.ask(f"CONSUMER.INFO.{stream}.{name}")
            found.append(
                DurableStats(
                    durable=name,
                    store=stream,
                    pending=count_of(info, "num_pending"),
                    given=count_of(info, "num_ack_pending"),
                    redelivered=count_of(info, "num_redelivered"),
                    dead_letters=None if letters is None else letters.get(name, 0),
                )
            )
        return tuple(found)

    def asked_at(self, stream: str, name: str) -> str:
        return f"{self._jetstream.api}CONSUMER.MSG.NEXT.{stream}.{name}"

    async def remove(self, stream: str, name: str) -> None:
        """Try to remove a consumer; the engine removes it later in any case."""
        with suppress(JetStreamError, BusError):
            await self._jetstream.ask(f"CONSUMER.DELETE.{stream}.{name}")

    async def _stream_of(self, subject: str, pattern: str | int) -> FoundStreams:
        if isinstance(pattern, str) and "/" in pattern and is_pattern(pattern):
            raise LocalProtocolError(
                f"stored publications of {pattern!r}: a pattern of URIs would also take and acknowledge others: name one URI"
            )
        found = await find_streams(self._jetstream, subject)
        if found.whole:
            return found
        kept = "no store keeps it"
        if len(found.names) == 1:
            kept = f"the store {found.names[0]} keeps only a part of it"
        elif found.names:
            kept = f"several stores keep parts of it ({', '.join(found.names)[:200]})"
        raise LocalProtocolError(
            f"stored publications of {pattern!r}: {kept}. {self._jetstream.advice.no_store.format(pattern)}"
        )

    async def _find(self, stream: str, name: str) -> dict[str, Any] | None:
        try:
            return config_of(await self._jetstream.ask(f"CONSUMER.INFO.{stream}.{name}"))
        except JetStreamError as error:
            if error.number == NO_CONSUMER:
                return None
            raise

    async def _make(self, stream: str, spec: DurableSpec, config: dict[str, Any]) -> dict[str, Any]:
        members = {"stream_name": stream, "config": config, "action": "create"}
        if self._jetstream.is_old:  # an old server ignores `action` and would change what others have created
            members["config"] = {**config, "max_waiting": MOST + _mark(config)}
        try:
            made = config_of(await self._jetstream.ask(f"CONSUMER.DURABLE.CREATE.{stream}.{spec.name}", members))
        except JetStreamError:
            there = await self._find(stream, spec.name)  # another node may have created it
            if there is None:
                raise
            return there
        logger.info("the durable handler %s of the store %s is new", spec.name, stream)
        return made


def _mark(config: dict[str, Any]) -> int:
    """Number that identifies a configuration, for the one member that no server changes in an existing consumer."""
    return 1 + zlib.crc32(json.dumps(config, sort_keys=True).encode()) % _MARKS


@define(eq=False)
class DurableConsumer:
    """The consumer that all workers of one durable name share. Implements `reader.Consumer`."""

    _consumers: Consumers
    _spec: DurableSpec
    _subject: str
    """On the wire."""
    _pattern: str | int
    stream: str = field(default="", init=False)
    _beginning: dict[str, Any] = field(init=False)
    _seen: int = field(default=0, init=False)
    _found: FoundStreams = field(factory=lambda: FoundStreams([]), init=False)
    """The stream as last found."""

    def __attrs_post_init__(self) -> None:
        self._beginning = beginning_of(self._spec.start)  # now: a timedelta counts from here

    @property
    def name(self) -> str:
        return self._spec.name

    @property
    def created(self) -> str:
        return self._found.created

    @property
    def asked_at(self) -> str:
        return self._consumers.asked_at(self.stream, self.name)

    @property
    def title(self) -> str:
        return f"the durable handler {self._spec.name}"

    @property
    def ack_wait(self) -> float:
        return self._spec.ack_wait

    async def prepare(self) -> None:
        again = bool(self.stream)
        found = await self._consumers.durable(self._spec, self._beginning_in, self._subject, self._pattern, again=again)
        if found != self._found:
            self._seen = 0
        self.stream, self._found = found.whole, found

    def _beginning_in(self, found: FoundStreams) -> dict[str, Any]:
        if found.is_anew(self._found):  # everything in it was published while this consumer existed
            return beginning_of("all")
        # With start="all", duplicates are better than gaps.
        goes_on = self._seen and self._spec.start == "new" and found == self._found
        return beginning_of(self._seen + 1) if goes_on else self._beginning

    def accepts(self, to: ToReader) -> bool:
        self._seen = max(self._seen, to.number)
        return True

    async def remove(self) -> None:
        """Leave the consumer: it keeps its position."""


@define(eq=False)
class ReplayConsumer:
    """A consumer that reads stored publications in order, and is created again when one is missing.

    Implements `reader.Consumer`. The engine numbers the consumer's publications from 1. A gap shows that one was lost with a
    connection or a server.
    """

    _consumers: Consumers
    _spec: ReplaySpec
    _subject: str
    _pattern: str | int
    name: str = field(default="", init=False)
    stream: str = field(default="", init=False)
    _last: int = field(default=0, init=False)
    """Highest number of a publication that was received, or that is before the start."""
    _place: int = field(default=0, init=False)
    _found: FoundStreams = field(factory=lambda: FoundStreams([]), init=False)

    @property
    def created(self) -> str:
        return self._found.created

    @property
    def asked_at(self) -> str:
        return self._consumers.asked_at(self.stream, self.name)

    @property
    def title(self) -> str:
        return f"the subscription to {self._pattern!r} with start="

    @property
    def ack_wait(self) -> float:
        return math.inf

    async def prepare(self) -> None:
        if self.name:
            await self.remove()
        name = f"{REPLAY}{sources.get().urandom(8).hex()}"
        found, before = await self._consumers.replay(name, self._start_in, self._subject, self._pattern)
        last = self._last if found == self._found else 0
        self.stream, self._found = found.whole, found
        self.name, self._place, self._last = name, 0, max(last, before)

    def _start_in(self, found: FoundStreams) -> Start:
        if found.is_anew(self._found):  # everything in it was published while this consumer existed
            return "all"
        return self._last + 1 if self._last and found == self._found else self._spec.start

    def accepts(self, to: ToReader) -> bool | None:
        if to.consumer != self.name:
            return False  # from the previous consumer
        if to.place != self._place + 1:
            return None
        self._place, self._last = to.place, to.number
        return True

    async def remove(self) -> None:
        await self._consumers.remove(self.stream, self.name)


def _not_made(what: str, pattern: str | int, error: JetStreamError) -> LocalProtocolError:
    text = f"{what} of {pattern!r} cannot be made: the NATS server says: {error.text}{_WORK.get(error.number, '')}"
    return LocalProtocolError(text)


_ONE_EACH: Final = (
    "; the durable= names of a store with work=True must not share a subject: each publication is for one, and its workers use "
    "the same name. `polybus store show` lists the names, `polybus store remove --durable` removes an unused one"
)
_WORK: Final = {10099: _ONE_EACH, 10100: _ONE_EACH, 10101: "; start= of a store with work=True is 'all'"}
"""Advice by error number."""


def _members(spec: DurableSpec, subject: str) -> dict[str, Any]:
    return {
        "durable_name": spec.name,
        "ack_policy": "explicit",
        "ack_wait": round(spec.ack_wait * NANOSECONDS),
        "filter_subject": subject,
        "max_ack_pending": 1 if spec.ordered else MOST,
        "max_deliver": -1,
        "max_waiting": MOST,
    }


_OURS: Final[dict[str, tuple[Any, ...]]] = {
    "ack_policy": ("explicit",),
    "max_deliver": (-1, None, 0),
    "headers_only": (False, None),
    "deliver_subject": ("", None),
}
"""Required values, also in a consumer that others have created."""
_ARGUMENTS: Final = {"filter_subject": "pattern", "ack_wait": "ack_wait", "max_ack_pending": "ordered"}
"""Members that a handler sets, and the arguments they come from."""


def _readable(member: str, value: Any) -> str:
    if member == "ack_wait" and isinstance(value, int):
        return f"{value / NANOSECONDS:g} s"
    if member == "max_ack_pending":
        return "True" if value == 1 else f"False (max_ack_pending {shown(value)})"
    return shown(value)


def beginning_of(start: Start) -> dict[str, Any]:
    """Return the members that say where a consumer begins."""
    if isinstance(start, datetime.timedelta):
        at = datetime.datetime.now(datetime.UTC) - start
        return {"deliver_policy": "by_start_time", "opt_start_time": at.isoformat().replace("+00:00", "Z")}
    if isinstance(start, int):
        return {"deliver_policy": "by_start_sequence", "opt_start_seq": start}
    return {"deliver_policy": start}


PACE: Final = 10.0
"""Seconds between two requests for the progress of durable handlers."""


def check_names(specs: Iterable[SubscriberSpec]) -> None:
    """Check that each durable name belongs to one handler, before the engine creates anything.

    Raises:
        LocalProtocolError: Two handlers share one.
    """
    names = dict[str, str]()
    for spec in specs:
        if spec.reading is not None:
            name, handler = spec.reading.name, spec.handler.name
            if name in names:
                raise LocalProtocolError(
                    f"durable={name!r} is the name of two handlers, {names[name]} and {handler}, and the publications would be "
                    "split between them at random: give each handler a name of its own"
                )
            names[name] = handler


@define(eq=False)
class StoreReaders:
    _services: Services
    _published: Callable[[str | int], str]
    _consumers: Consumers
    _graveyard: Graveyard
    _engine: Callable[[], PeerParty]
    _readers: dict[int, StoreReader] = field(factory=dict, init=False)
    _handlers: list[StoreReader] = field(factory=list, init=False)
    _durables: dict[int, DurableConsumer] = field(factory=dict, init=False)
    _of_subscriptions: dict[IteratedQueue, int] = field(factory=dict, init=False)
    _numbers: Iterator[int] = field(factory=lambda: itertools.count(1), init=False)
    _can_bury: bool = field(default=False, init=False)
    """True once dead letters can be kept."""
    progress: tuple[DurableStats, ...] = field(default=(), init=False)
    """Last known state of this bus's durable handlers; empty while the engine is away."""
    _is_up: bool = field(default=True, init=False)
    _watched: anyio.Event | None = field(default=None, init=False)
    """Present while progress is requested; set to end that."""

    @property
    def busy(self) -> bool:
        return any(reader.busy for reader in self._readers.values())

    async def prepare(self, specs: Iterable[SubscriberSpec]) -> None:
        """Create the consumers of durable handlers unless they exist.

        Raises:
            BusError: A consumer or the store of dead letters cannot be created.
        """
        specs = list(specs)
        check_names(specs)
        for spec in specs:
            if isinstance(spec.reading, DurableSpec):
                handler = spec.handler
                fate = self._fate(spec.reading, handler.name)
                taker, pattern = HandlerTaker(self._services, handler, fate), handler.subject
                consumer = DurableConsumer(self._consumers, spec.reading, self._published(pattern), pattern)
                reader = await self._add(consumer, taker, spec.concurrency)
                self._handlers.append(reader)
                self._durables[reader.number] = consumer

    async def subscribe(self, subscription: IteratedQueue, spec: DurableSpec | ReplaySpec) -> None:
        """Deliver stored publications to a subscription until `unsubscribe`.

        Raises:
            BusError: As `Consumers.durable` and `Consumers.replay`.
        """
        pattern, subject = subscription.pattern, self._published(subscription.pattern)
        if isinstance(spec, DurableSpec):
            fate = self._fate(spec, f"durable {spec.name}")
            taker = SubscriptionTaker(self._services, subscription, fate)
            consumer = DurableConsumer(self._consumers, spec, subject, pattern)
            reader = await self._add(consumer, taker, subscription.queue)
            self._durables[reader.number] = consumer
            self._watch()
        else:
            taker = SubscriptionTaker(self._services, subscription, None)
            reader = await self._add(ReplayConsumer(self._consumers, spec, subject, pattern), taker, subscription.queue)
        self._of_subscriptions[subscription] = reader.number
        reader.begin(self._engine())

    def unsubscribe(self, subscription: IteratedQueue) -> None:
        """Stop delivering to a subscription; unknown ones are ignored."""
        number = self._of_subscriptions.pop(subscription, None)
        reader = None if number is None else self._readers.pop(number)
        if number is not None:
            self._durables.pop(number, None)
        if reader is not None:
            reader.leave()

    def _fate(self, spec: DurableSpec, name: str) -> Fate:
        return Fate(self._services, spec, name, self._graveyard)

    async def _add(self, consumer: Consumer, taker: Taker, places: int) -> StoreReader:
        reader = StoreReader(self._services, next(self._numbers), consumer, taker, Pull(places))
        await reader.prepare()
        if taker.fate is not None and not self._can_bury:
            await self._graveyard.prepare(consumer.stream)
            self._can_bury = True
        self._readers[reader.number] = reader
        return reader

    def begin(self) -> None:
        """Start the durable handlers, once the bus is ready."""
        for reader in self._handlers:
            reader.begin(self._engine())
        if self._handlers:
            self._watch()

    def _watch(self) -> None:
        if self._watched is None:
            self._watched = anyio.Event()
            self._services.running.spawn(self._look, self._watched)

    async def _look(self, ended: anyio.Event) -> None:
        """Request the progress of durable handlers periodically, so that statistics never wait for the engine."""
        while not ended.is_set():
            with anyio.move_on_after(PACE):
                await ended.wait()
            if ended.is_set() or not self._is_up:
                continue
            durables = {(consumer.stream, consumer.name): None for consumer in self._durables.values()}
            try:
                self.progress = await self._consumers.progress(durables, self._graveyard.place)
            except (BusError, JetStreamError) as error:
                self.progress = ()
                logger.debug("the engine does not report the progress of durable handlers: %s", error)

    def up(self) -> None:
        self._is_up = True
        if not self._services.leaving:
            for reader in self._readers.values():
                reader.up(self._engine())

    def down(self) -> None:
        self._is_up, self.progress = False, ()
        for reader in self._readers.values():
            reader.down()

    def withdraw(self) -> None:
        """Stop pulling."""
        if self._watched is not None:
            self._watched.set()
            self._watched, self.progress = None, ()
        for reader in self._readers.values():
            reader.withdraw()

    def give_back(self) -> None:
        """Stop pulling, and have the engine redeliver undecided publications at once to other workers."""
        for reader in self._readers.values():
            reader.withdraw()
            reader.give_back()

    def receive(self, message: Message, to: ToReader) -> None:
        """Pass a stored publication to its reader; publications for a closed reader are given back."""
        reader = self._readers.get(to.reader)
        if to.status and to.ack:
            for one in self._readers.values():
                one.forbidden(to)
        elif reader is not None:
            reader.receive(message, to)
        elif to.ack:
            say(self._engine(), to, GIVEN_BACK)
