"""Consumers, which the engine uses to keep track of a reader's position."""

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
from ...plugins.tools import shown, shown_duration, sources
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
"""Number of different marks. Two configurations have the same mark with a probability of 1 to this number."""
_IDLE: Final = 60.0  # Seconds without a request after which the engine removes the consumer of a replay


@frozen
class FoundStreams:
    names: list[str]  # Every stream that stores some of a pattern's subjects
    whole: str = ""  # The stream that stores all of the subjects, or an empty string if there is none
    created: str = ""  # Creation time of `whole`, useful to tell it from an earlier stream of that name. Empty if unknown.

    def is_anew(self, before: FoundStreams) -> bool:
        """Return True if `whole` replaces a lost stream of the same name. Its numbers then start at 1 again."""
        return self.whole == before.whole and before.created not in ("", self.created)


async def find_streams(jetstream: JetStream, subject: str) -> FoundStreams:
    """Find the streams that store the subjects of a wire pattern. Raises the errors of `JetStream.ask`."""
    found = await jetstream.streams(subject)
    if len(found) == 1:
        info = await jetstream.ask(f"STREAM.INFO.{found[0]}")
        subjects = config_of(info).get("subjects")
        if isinstance(subjects, list) and any(covers(str(wide), subject) for wide in subjects):
            return FoundStreams(found, found[0], str(info.get("created") or ""))
    return FoundStreams(found)


@define(eq=False)
class Consumer(ABC):
    _jetstream: JetStream
    subject: str  # The pattern as a wire subject
    _pattern: str | int
    stream: str = field(default="", init=False)
    _found: FoundStreams = field(factory=lambda: FoundStreams([]), init=False)
    name: str = field(default="", init=False)
    title: str = field(default="", init=False)  # Description for logs
    _wanted: str = field(default="", init=False)  # Arguments from the application, for error texts
    ack_wait: float = field(default=math.inf, init=False)  # Seconds after which an unacknowledged publication is redelivered

    @property
    def created(self) -> str:
        return self._found.created

    @property
    def asked_at(self) -> str:
        return f"{self._jetstream.api}CONSUMER.MSG.NEXT.{self.stream}.{self.name}"

    async def prepare(self) -> None:
        """Find the consumer, or create it if it does not exist.

        Raises `LocalProtocolError` if no store covers the pattern, or the consumer cannot be created or has different settings.
        """
        try:
            await self._prepare(await self._stream())
        except JetStreamError as error:
            raise LocalProtocolError(
                f"{self._wanted} of {self._pattern!r} cannot be created: {error.text}{_WORK.get(error.number, '')}"
            ) from None

    @abstractmethod
    async def _prepare(self, found: FoundStreams) -> None: ...

    @abstractmethod
    def accepts(self, to: ToReader) -> bool | None:
        """Return whether to deliver a publication, or None if reading must restart because an earlier one is missing."""

    async def remove(self) -> None:  # noqa: B027  # most consumers stay
        """Remove the consumer if no other reader uses it."""

    async def _stream(self) -> FoundStreams:
        pattern, subject = self._pattern, self.subject
        if isinstance(pattern, str) and "/" in pattern and is_pattern(pattern):
            raise LocalProtocolError(
                f"stored publications of {pattern!r}: a pattern of URIs would also acknowledge publications that it does not "
                "match: use a single URI"
            )
        found = await find_streams(self._jetstream, subject)
        if found.whole:
            return found
        kept = "no store has this subject"
        if len(found.names) == 1:
            kept = f"the store {found.names[0]} only has some of these subjects"
        elif found.names:
            kept = f"several stores have some of these subjects ({', '.join(found.names)[:200]})"
        raise LocalProtocolError(
            f"stored publications of {pattern!r}: {kept}. {self._jetstream.advice.no_store.format(pattern)}"
        )


@define(eq=False)
class DurableConsumer(Consumer):
    _spec: DurableSpec
    _beginning: dict[str, Any] = field(init=False)
    _seen: int = field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self._beginning = beginning_of(self._spec.start)  # now, because a timedelta is relative to this moment
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
        if self._jetstream.is_old:  # an old server ignores `action`, and would change an existing consumer
            members["config"] = {**config, "max_waiting": MOST + _mark(config)}
        word = f"CONSUMER.DURABLE.CREATE.{stream}.{self.name}"
        made, is_new = await self._jetstream.create(word, members, f"CONSUMER.INFO.{stream}.{self.name}")
        if is_new:
            logger.info("the durable handler %s of the store %s is new", self.name, stream)
        return made

    def _beginning_in(self, found: FoundStreams) -> dict[str, Any]:
        if found.is_anew(self._found):  # all of it was published after this consumer was created
            return beginning_of("all")
        # With start="all", duplicates are better than gaps.
        goes_on = self._seen and self._spec.start == "new" and found == self._found
        return beginning_of(self._seen + 1) if goes_on else self._beginning

    def accepts(self, to: ToReader) -> bool:
        self._seen = max(self._seen, to.number)
        return True


def _mark(config: dict[str, Any]) -> int:
    """Hash a configuration into `max_waiting`, a setting that servers never change in an existing consumer."""
    return 1 + zlib.crc32(json.dumps(config, sort_keys=True).encode()) % _MARKS


@define(eq=False)
class ReplayConsumer(Consumer):
    """A consumer that reads stored publications in order and does not acknowledge them. The engine removes it when it is idle.

    The engine numbers deliveries to a consumer from 1. A gap means that a publication was lost together with a connection or a
    server, so the consumer is recreated.
    """

    _spec: ReplaySpec
    _last: int = field(default=0, init=False)  # Highest number among received publications and those before the start
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
            return False  # it is from an earlier consumer
        if to.place != self._place + 1:
            return None
        self._place, self._last = to.place, to.number
        return True

    async def remove(self) -> None:
        if self.name:
            with suppress(BusError):  # otherwise the engine removes it later
                await self._jetstream.ask(f"CONSUMER.DELETE.{self.stream}.{self.name}")


_ONE_EACH: Final = (
    "; in a store with work=True, durable= names must not share a subject, because each publication is for one name only, and "
    "workers share a name. `polybus store show` lists the names, and `polybus store remove --durable` removes an unused name"
)
_WORK: Final = {10099: _ONE_EACH, 10100: _ONE_EACH, 10101: "; a store with work=True requires start='all'"}
"""Advice to the user, by error number."""


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
"""Settings that a consumer must have, even if polybus did not create it."""
_ARGUMENTS: Final = {"filter_subject": "pattern", "ack_wait": "ack_wait", "max_ack_pending": "ordered"}
"""Argument that sets each member of the configuration."""


def _readable(member: str, value: Any) -> str:
    if member == "ack_wait" and isinstance(value, int):
        return shown_duration(value)
    if member == "max_ack_pending":
        return "True" if value == 1 else f"False (max_ack_pending {shown(value)})"
    return shown(value)


def beginning_of(start: Start) -> dict[str, Any]:
    if isinstance(start, datetime.timedelta):
        at = datetime.datetime.now(datetime.UTC) - start
        return {"deliver_policy": "by_start_time", "opt_start_time": at.isoformat().replace("+00:00", "Z")}
    if isinstance(start, int):
        return {"deliver_policy": "by_start_sequence", "opt_start_seq": start}
    return {"deliver_policy": start}
