"""An application's stores as streams of the engine: created once, never changed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import anyio
from attrs import define

from ...errors import BusError, Forbidden, LocalProtocolError
from ...nodes import as_seconds
from ...plugins.tools import shown
from .jetstream import NANOSECONDS, NOT_FOUND, JetStream, JetStreamError, config_of, count_of

if TYPE_CHECKING:
    from ...integrations import Services
    from ...nodes import Store

logger: logging.Logger = logging.getLogger("polybus.cluster")


def stream_name(cluster: str, store: str) -> str:
    return f"{cluster}-{store}"


def stream_members(store: Store, cluster: str, published: Callable[[str | int], str]) -> dict[str, Any]:
    """Return the configuration of a store's stream; `published` converts a pattern to its subject on the wire."""
    age = 0.0 if store.max_age is None else as_seconds(store.max_age, "max_age")
    window = as_seconds(store.dedup, "dedup")
    return {
        "name": stream_name(cluster, store.name),
        "subjects": [published(pattern) for pattern in store.subjects],
        "retention": "workqueue" if store.work else "limits",
        "storage": "file",
        "discard": "new",
        "max_age": round(age * NANOSECONDS),
        "max_bytes": -1 if store.max_bytes is None else store.max_bytes,
        "num_replicas": store.replicas,
        "duplicate_window": round((min(window, age) if age else window) * NANOSECONDS),
    }


def copy_of(stream: str, number: int) -> str:
    return f"{stream}-rest-{number}"


def _copied(stream: str, number: int) -> str:
    return f"A copy of publication {number} of {stream}, whose dead letter has not all of it."


_LOOKS, _PAUSE = 50, 0.1
"""Number of checks whether a copy is complete, and seconds between them."""
_COPIES: Final = "JS_SRC_"
"""Prefix of the consumers that copy out of a stream for a server; releases before 2.10 show none."""
_ARGUMENTS: Final = {
    "subjects": "subjects",
    "retention": "work",
    "max_age": "max_age",
    "max_bytes": "max_bytes",
    "num_replicas": "replicas",
    "duplicate_window": "dedup",
}
"""Members that define a store, and the arguments of `Store` they come from."""


@define(eq=False)
class Stores:
    _jetstream: JetStream

    async def prepare(self, store: Store, members: dict[str, Any]) -> None:
        """Create the stream of a store unless it exists.

        Raises:
            LocalProtocolError: It cannot be created, or it exists and differs; the text names the argument.
            Disconnected, Forbidden, DeadlineExceeded: As `JetStream.ask`.
        """
        if store.max_bytes is not None and self._jetstream.is_old:
            raise LocalProtocolError(
                f"the store {store.name!r}: NATS servers before 2.10 drop the oldest of a store with max_bytes= at times, "
                f"where they should refuse, and this one is {self._jetstream.version}: take a newer one, or no max_bytes="
            )
        _compare(store, members, await self.make_if_absent(members))

    async def prepare_again(self, wanted: Mapping[Store, dict[str, Any]], services: Services) -> None:
        """Create stores again that the engine has lost; failures are logged."""
        for store, members in wanted.items():
            try:
                if await self._find(members["name"]) is None:
                    logger.warning(
                        "the engine has lost the store %s with all its messages: it is created again", members["name"]
                    )
                    await self.prepare(store, members)
            except (BusError, JetStreamError) as error:
                text = "the store %s cannot be checked after the engine was away: %s"
                services.running.warnings.warn(logger, text, members["name"], error, about=store, lines=1)

    async def retention(self, stream: str) -> str:
        """Return a stream's retention policy; empty if unknown.

        Raises:
            BusError: As `JetStream.ask`.
        """
        try:
            return str(config_of(await self._jetstream.ask(f"STREAM.INFO.{stream}")).get("retention", ""))
        except JetStreamError:
            return ""

    async def make_if_absent(self, members: dict[str, Any]) -> dict[str, Any]:
        """Create a stream unless it exists; returns its configuration.

        Raises:
            LocalProtocolError: It cannot be created.
            Disconnected, Forbidden, DeadlineExceeded: As `JetStream.ask`.
        """
        try:
            there = await self._find(members["name"])
            made = await self._make(members) if there is None else there
            if made.get("subjects") != members["subjects"] and members["retention"] == "limits" and members["discard"] == "old":
                raise LocalProtocolError(
                    f"the stream {members['name']!r} of the NATS server keeps {shown(made.get('subjects'))}, and not the dead "
                    f"letters {members['subjects'][0]!r}: a store of another cluster has that name; rename one of them"
                )
            return made
        except JetStreamError as error:
            text = f"the store {members['name']!r} cannot be made: the NATS server says: {error.text}"
            raise LocalProtocolError(text) from None

    async def copy_one(self, stream: str, number: int, subject: str, members: dict[str, Any]) -> bool:
        """Have the engine copy one publication into a stream of its own: it may be too large for this bus.

        Several workers may do so at once, each unaware of the others; they share the copy.

        Args:
            stream: Its stream.
            number: Its number there.
            subject: Its subject on the wire.
            members: Configuration of the copy, which gets the same replicas.

        Returns:
            True once the copy is complete. Otherwise the log has the reason, and an unfinished copy is removed.
        """
        try:
            if await self._copied_whole(stream, number, subject, members):
                return True
        except (JetStreamError, BusError) as error:
            logger.warning("the engine does not copy publication %d of the store %s: %s", number, stream, error)
            forbidden = isinstance(error, Forbidden)
        else:
            forbidden = False
        with suppress(JetStreamError, BusError):
            if forbidden or not await self._has_copy(stream, number):  # another worker may rely on it
                await self.remove_copy(stream, number)
        return False

    async def _copied_whole(self, stream: str, number: int, subject: str, members: dict[str, Any]) -> bool:
        config = {**members, "name": copy_of(stream, number), "description": _copied(stream, number)}
        config |= {"max_msgs": 1, "discard": "new", "num_replicas": await self.replicas(stream)}
        if not await self._has_copy(stream, number):  # a worker may have ended before it could report
            sources = [{"name": stream, "opt_start_seq": number, "filter_subject": subject}]
            await self._begin_copy({**config, "sources": sources})
        for _ in range(_LOOKS):
            if await self._has_copy(stream, number):
                _ = await self._jetstream.ask(f"STREAM.UPDATE.{config['name']}", config)
                await self._wait_for_end_of_copying(stream)
                return True
            await anyio.sleep(_PAUSE)
        return False

    async def _begin_copy(self, config: dict[str, Any]) -> None:
        try:
            _ = await self._jetstream.ask(f"STREAM.CREATE.{config['name']}", config)
        except JetStreamError:
            there = await self._find(config["name"])  # another worker may have created it, and even finished
            if there is None or there.get("description") != config["description"]:
                raise

    async def replicas(self, stream: str) -> int:
        """Return a stream's number of replicas; 1 if unknown.

        Raises:
            BusError: As `JetStream.ask`.
        """
        try:
            return max(count_of(config_of(await self._jetstream.ask(f"STREAM.INFO.{stream}")), "num_replicas"), 1)
        except JetStreamError:
            return 1

    async def remove_copy(self, stream: str, number: int) -> None:
        """Try to remove the copy of a publication; never removes an external stream of that name."""
        name = copy_of(stream, number)
        with suppress(JetStreamError, BusError):
            config = await self._find(name)
            if config is not None and config.get("description") == _copied(stream, number):
                await self._jetstream.ask(f"STREAM.DELETE.{name}")

    async def _wait_for_end_of_copying(self, stream: str) -> None:
        """Wait, for a bounded time, until the engine has removed its own consumer of a stream.

        Until then newer servers keep acknowledged publications in a store of work, and never look at them again.
        """
        for _ in range(_LOOKS):
            if not any(name.startswith(_COPIES) for name in await self._jetstream.consumers(stream)):
                return
            await anyio.sleep(_PAUSE)

    async def _has_copy(self, stream: str, number: int) -> bool:
        try:
            answer = await self._jetstream.ask(f"STREAM.INFO.{copy_of(stream, number)}")
        except JetStreamError as error:
            if error.number == NOT_FOUND:
                return False
            raise
        ours = config_of(answer).get("description") == _copied(stream, number)
        return ours and count_of(answer.get("state"), "messages") > 0

    async def _find(self, stream: str) -> dict[str, Any] | None:
        try:
            return config_of(await self._jetstream.ask(f"STREAM.INFO.{stream}"))
        except JetStreamError as error:
            if error.number == NOT_FOUND:
                return None
            raise

    async def _make(self, members: dict[str, Any]) -> dict[str, Any]:
        stream = members["name"]
        try:
            made = config_of(await self._jetstream.ask(f"STREAM.CREATE.{stream}", members))
        except JetStreamError:
            there = await self._find(stream)  # another node may have created it with other arguments
            if there is None:
                raise
            return there
        logger.info("the store %s has been made", stream)
        return made


_OURS: Final[dict[str, tuple[Any, ...]]] = {
    "storage": ("file",),
    "discard": ("new",),
    "max_msgs": (-1, 0, None),
    "max_msgs_per_subject": (-1, 0, None),
    "no_ack": (False, None),
    "sealed": (False, None),
}
"""Required values of any existing stream: otherwise stored publications may be lost."""


def _compare(store: Store, wanted: dict[str, Any], there: dict[str, Any]) -> None:
    for member, wants in _OURS.items():
        if there.get(member) not in wants:
            raise LocalProtocolError(
                f"the store {store.name!r} exists already and was made by others: {member} is {shown(there.get(member))}, "
                f"and messages may be lost unless it is {shown(wants[0])}. Change the stream {wanted['name']!r}, or take "
                "another name"
            )
    for member, argument in _ARGUMENTS.items():
        want, have = wanted[member], there.get(member)
        if member == "subjects":
            want, have = sorted(want), sorted(map(str, have)) if isinstance(have, list) else have
        if want != have:
            raise LocalProtocolError(
                f"the store {store.name!r} exists already and has another {argument}: {_readable(member, have)}, not "
                f"{_readable(member, want)}. polybus never changes a store: use the same value or another name, or change the "
                f"stream {wanted['name']!r} of the NATS server"
            )


def _readable(member: str, value: Any) -> str:
    if member in ("max_age", "duplicate_window") and isinstance(value, int):
        return "none" if value <= 0 else str(timedelta(seconds=value / NANOSECONDS))
    if member == "retention":
        return str(value == "workqueue")
    if member == "max_bytes" and value == -1:
        return "none"
    return shown(value)
