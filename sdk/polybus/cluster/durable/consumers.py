"""Consumers: the engine's record of a store reader's position."""

from __future__ import annotations

import datetime
import json
import logging
import math
import zlib
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from attrs import define, field, frozen

from ...errors import BusError, LocalProtocolError
from ...plugins.tools import shown, sources
from ...protocols.nats.cluster.subjects import REPLAY, covers
from ...subjects import is_pattern
from .jetstream import NANOSECONDS, JetStream, JetStreamError, config_of, count_of
from .storage import MOST, DurableSpec, ReplaySpec
from .stores import check_same

if TYPE_CHECKING:
    from ...nodes import Start
    from ...protocols.nats.stored import ToReader

logger: logging.Logger = logging.getLogger("polybus.cluster")

_MARKS: Final = 99_991
"""Number of different marks: two configurations have the same mark with a probability of 1 in this number."""
_IDLE: Final = 60.0
"""Seconds without a request after which the engine removes a replay's consumer."""


@frozen
class FoundStreams:
    """The streams that store what a pattern matches.

    Attributes:
        names: All streams that store a part of it.
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
        BusError: As `JetStream.ask`.
    """
    found = await jetstream.streams(subject)
    if len(found) == 1:
        info = await jetstream.ask(f"STREAM.INFO.{found[0]}")
        subjects = config_of(info).get("subjects")
        if isinstance(subjects, list) and any(covers(str(wide), subject) for wide in subjects):
            return FoundStreams(found, found[0], str(info.get("created") or ""))
    return FoundStreams(found)


@define(eq=False)
class Consumer(ABC):
    """The consumer of one reader.

    Attributes:
        subject: The pattern's form on the wire.
        stream: The stream that it reads.
    """

    _jetstream: JetStream
    subject: str
    _pattern: str | int
    stream: str = field(default="", init=False)
    _found: FoundStreams = field(factory=lambda: FoundStreams([]), init=False)
    """The stream as last found."""

    name: str = field(default="", init=False)
    """Its name in the engine."""
    title: str = field(default="", init=False)
    """Its description for people."""
    _wanted: str = field(default="", init=False)
    """The arguments of the application, for error texts."""
    ack_wait: float = field(default=math.inf, init=False)
    """Seconds until an unacknowledged publication is redelivered."""

    @property
    def created(self) -> str:
        """Creation time of the stream, as the engine writes it; empty if unknown."""
        return self._found.created

    @property
    def asked_at(self) -> str:
        """Subject of pull requests."""
        return f"{self._jetstream.api}CONSUMER.MSG.NEXT.{self.stream}.{self.name}"

    async def prepare(self) -> None:
        """Find the consumer or create it.

        Raises:
            LocalProtocolError: No store keeps the pattern, or the consumer exists and differs, or cannot be created.
            Disconnected, Forbidden, DeadlineExceeded: As `JetStream.ask`.
        """
        try:
            await self._prepare(await self._stream())
        except JetStreamError as error:
            raise LocalProtocolError(
                f"{self._wanted} of {self._pattern!r} cannot be made: {error.text}{_WORK.get(error.number, '')}"
            ) from None

    @abstractmethod
    async def _prepare(self, found: FoundStreams) -> None: ...

    @abstractmethod
    def accepts(self, to: ToReader) -> bool | None:
        """True if a publication may be delivered; None if an earlier one is missing and all have to be requested again."""

    async def remove(self) -> None:  # noqa: B027  # by default nothing is left behind
        """Remove the consumer if no other reader uses it."""

    async def _stream(self) -> FoundStreams:
        pattern, subject = self._pattern, self.subject
        if isinstance(pattern, str) and "/" in pattern and is_pattern(pattern):
            raise LocalProtocolError(
                f"stored publications of {pattern!r}: a pattern of URIs would also acknowledge publications of others: use one "
                "URI"
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


@define(eq=False)
class DurableConsumer(Consumer):
    """The consumer that all workers of one durable name share."""

    _spec: DurableSpec
    _beginning: dict[str, Any] = field(init=False)
    _seen: int = field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self._beginning = beginning_of(self._spec.start)  # now: a timedelta counts from here
        self.name: str = self._spec.name
        self.ack_wait: float = self._spec.ack_wait
        self.title: str = f"the durable handler {self.name}"
        self._wanted = f"durable={self.name!r}"

    async def _prepare(self, found: FoundStreams) -> None:
        stream, spec, wanted = found.whole, self._spec, _members(self._spec, self.subject)
        info = await self._jetstream.find(f"CONSUMER.INFO.{stream}.{spec.name}")
        if info is None:
            if self.stream:
                logger.warning("the durable handler %s of the store %s was removed: it begins again", spec.name, stream)
            there = await self._create(stream, {**wanted, **self._beginning_in(found)})
        else:
            there = config_of(info)
        place = f"the consumer {spec.name!r} of the stream {stream!r}"
        check_same(self._wanted, place, wanted, there, _REQUIRED, _ARGUMENTS, _readable)
        if found != self._found:
            self._seen = 0
        self.stream: str = stream
        self._found = found

    async def _create(self, stream: str, config: dict[str, Any]) -> dict[str, Any]:
        members = {"stream_name": stream, "config": config, "action": "create"}
        if self._jetstream.is_old:  # an old server ignores `action` and would change what others have created
            members["config"] = {**config, "max_waiting": MOST + _mark(config)}
        word = f"CONSUMER.DURABLE.CREATE.{stream}.{self.name}"
        made, is_new = await self._jetstream.create(word, members, f"CONSUMER.INFO.{stream}.{self.name}")
        if is_new:
            logger.info("the durable handler %s of the store %s is new", self.name, stream)
        return made

    def _beginning_in(self, found: FoundStreams) -> dict[str, Any]:
        if found.is_anew(self._found):  # everything in it was published while this consumer existed
            return beginning_of("all")
        # With start="all", duplicates are better than gaps.
        goes_on = self._seen and self._spec.start == "new" and found == self._found
        return beginning_of(self._seen + 1) if goes_on else self._beginning

    def accepts(self, to: ToReader) -> bool:
        self._seen = max(self._seen, to.number)
        return True


def _mark(config: dict[str, Any]) -> int:
    """Identify a configuration by a number, for the one member that no server changes in an existing consumer."""
    return 1 + zlib.crc32(json.dumps(config, sort_keys=True).encode()) % _MARKS


@define(eq=False)
class ReplayConsumer(Consumer):
    """A consumer that reads stored publications in order and without acknowledgement. The engine removes it once idle.

    The engine numbers the consumer's publications from 1. A gap shows that one was lost with a connection or a server; then the
    consumer is created again.
    """

    _spec: ReplaySpec
    _last: int = field(default=0, init=False)
    """Highest number of a publication that was received, or that is before the start."""
    _place: int = field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self.title: str = f"the subscription to {self._pattern!r} with start="
        self._wanted = f"a subscription with start={shown(self._spec.start)}"

    async def _prepare(self, found: FoundStreams) -> None:
        await self.remove()
        name, same = f"{REPLAY}{sources.get().urandom(8).hex()}", found == self._found
        start = "all" if found.is_anew(self._found) else self._last + 1 if self._last and same else self._spec.start
        config = {
            "name": name,
            "ack_policy": "none",
            "filter_subject": self.subject,
            "inactive_threshold": round(_IDLE * NANOSECONDS),
            "max_waiting": MOST,
            "mem_storage": True,
            "num_replicas": 1,
            **beginning_of(start),
        }
        members = {"stream_name": found.whole, "config": config}
        made = await self._jetstream.ask(f"CONSUMER.CREATE.{found.whole}.{name}.{self.subject}", members)
        before = count_of(made.get("delivered"), "stream_seq")
        self.stream: str = found.whole
        self.name: str = name
        self._found, self._place, self._last = found, 0, max(self._last if same else 0, before)

    def accepts(self, to: ToReader) -> bool | None:
        if to.consumer != self.name:
            return False  # from the previous consumer
        if to.place != self._place + 1:
            return None
        self._place, self._last = to.place, to.number
        return True

    async def remove(self) -> None:
        if self.name:
            with suppress(BusError):  # the engine removes it later in any case
                await self._jetstream.ask(f"CONSUMER.DELETE.{self.stream}.{self.name}")


_ONE_EACH: Final = (
    "; the durable= names of a store with work=True must not share a subject: each publication is for one of them, and its "
    "workers use the same name. `polybus store show` lists the names, `polybus store remove --durable` removes an unused one"
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


_REQUIRED: Final[dict[str, tuple[Any, ...]]] = {
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
