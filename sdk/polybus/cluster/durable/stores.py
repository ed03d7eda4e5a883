"""Creates stores, which are streams of the engine. A store is created once and never changed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import anyio
from attrs import define

from ...errors import BusError, DeadlineExceeded, Forbidden, LocalProtocolError
from ...nodes import as_seconds
from ...plugins.tools import shown, shown_duration
from .jetstream import NANOSECONDS, JetStream, JetStreamError, config_of, count_of

if TYPE_CHECKING:
    from ...integrations import Services
    from ...nodes import Store

logger: logging.Logger = logging.getLogger("polybus.cluster")


def stream_name(cluster: str, store: str) -> str:
    return f"{cluster}-{store}"


def stream_members(store: Store, cluster: str, published: Callable[[str | int], str]) -> dict[str, Any]:
    """Return the configuration of the stream for a store. `published` converts a pattern to a wire subject."""
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


_CHECKS, _PAUSE = 50, 0.1  # Number of times to check whether a copy is complete, and seconds between the checks
_COPIES: Final = "JS_SRC_"
"""Prefix of the consumers that a server uses to copy from a stream. Releases before 2.14 do not list these consumers."""
_ARGUMENTS: Final = {
    "subjects": "subjects",
    "retention": "work",
    "max_age": "max_age",
    "max_bytes": "max_bytes",
    "num_replicas": "replicas",
    "duplicate_window": "dedup",
}
"""`Store` argument that sets each member of the configuration."""


@define(eq=False)
class Stores:
    _jetstream: JetStream

    async def prepare(self, store: Store, members: dict[str, Any]) -> None:
        """Create the stream of a store if it does not exist. Raises `LocalProtocolError` if its settings are different."""
        if store.max_bytes is not None and self._jetstream.is_old:
            raise LocalProtocolError(
                f"the store {store.name!r}: if a store with max_bytes= is full, NATS servers before 2.10 may drop the oldest "
                f"publications instead of rejecting new ones, and this server is {self._jetstream.version}: use a newer "
                "version, or leave out max_bytes="
            )
        there = await self.make_if_absent(members)
        what, place = f"the store {store.name!r}", f"the stream {members['name']!r}"
        check_same(what, place, members, there, _REQUIRED, _ARGUMENTS, _readable)

    async def prepare_again(self, wanted: Mapping[Store, dict[str, Any]], services: Services) -> None:
        """Recreate stores that the engine has lost. Failures are logged."""
        for store, members in wanted.items():
            try:
                if await self._jetstream.find(f"STREAM.INFO.{members['name']}") is None:
                    text = "the engine has lost the store %s with all its messages: it is created again"
                    logger.warning(text, members["name"])
                    await self.prepare(store, members)
            except BusError as error:
                text = "the store %s cannot be checked after the engine was away: %s"
                services.running.warnings.warn(logger, text, members["name"], error, about=store, lines=1)

    async def config(self, stream: str) -> dict[str, Any]:
        """Return a stream's configuration, or {} if the stream does not exist. Raises the errors of `JetStream.ask`."""
        return config_of(await self._jetstream.find(f"STREAM.INFO.{stream}") or {})

    async def make_if_absent(self, members: dict[str, Any]) -> dict[str, Any]:
        name = members["name"]
        try:
            there = await self._jetstream.find(f"STREAM.INFO.{name}")
            if there is not None:
                return config_of(there)
            made, is_new = await self._jetstream.create(f"STREAM.CREATE.{name}", members, f"STREAM.INFO.{name}")
        except JetStreamError as error:
            raise LocalProtocolError(f"the store {name!r} cannot be created: {error.text}") from None
        if is_new:
            logger.info("the store %s has been made", name)
        return made

    async def copy_one(self, stream: str, number: int, subject: str, members: dict[str, Any]) -> bool:
        """Let the engine copy a publication to a new stream. The publication may be too large for this bus.

        Several workers may call this at the same time without knowing about each other, and then share the copy. Returns True
        if the copy is complete, or False if the engine refuses it; the reason is logged. Raises `BusError` if another attempt
        may succeed. An incomplete copy is removed.
        """
        try:
            await self._copy_whole(stream, number, subject, members)
        except BusError as error:
            with suppress(BusError):
                # Another worker may depend on a copy that is complete.
                useless = isinstance(error, Forbidden) or not await self._has_copy(stream, number)
                if useless and await self.remove_copy(stream, number):
                    await self._wait_for_end_of_copying(stream)
            if error.passes if isinstance(error, JetStreamError) else not isinstance(error, Forbidden | LocalProtocolError):
                raise
            logger.warning("the engine does not copy publication %d of the store %s: %s", number, stream, error)
            return False
        return True

    async def _copy_whole(self, stream: str, number: int, subject: str, members: dict[str, Any]) -> None:
        config = {**members, "name": copy_of(stream, number), "description": _copied(stream, number)}
        config |= {"max_msgs": 1, "discard": "new", "num_replicas": await self.replicas(stream)}
        if not await self._has_copy(stream, number):  # a worker may have exited before it could report
            sources = [{"name": stream, "opt_start_seq": number, "filter_subject": subject}]
            name, members = config["name"], {**config, "sources": sources}
            # Another worker may have created the copy, or even finished it.
            there, _ = await self._jetstream.create(f"STREAM.CREATE.{name}", members, f"STREAM.INFO.{name}")
            if there.get("description") != config["description"]:
                raise LocalProtocolError(f"the stream {name!r} already exists, and was not created by polybus")
        for _ in range(_CHECKS):
            if await self._has_copy(stream, number):
                _ = await self._jetstream.ask(f"STREAM.UPDATE.{config['name']}", config)
                await self._wait_for_end_of_copying(stream)
                return
            await anyio.sleep(_PAUSE)
        raise DeadlineExceeded(config["name"], _CHECKS * _PAUSE, "local", "the engine has not copied it yet")

    async def replicas(self, stream: str) -> int:
        return max(count_of(await self.config(stream), "num_replicas"), 1)

    async def remove_copy(self, stream: str, number: int) -> bool:
        """Try to remove the copy of a publication, but not an external stream of the same name. Returns True if removed."""
        name = copy_of(stream, number)
        with suppress(BusError):
            if (await self.config(name)).get("description") == _copied(stream, number):
                await self._jetstream.ask(f"STREAM.DELETE.{name}")
                return True
        return False

    async def _wait_for_end_of_copying(self, stream: str) -> None:
        """Wait for a limited time until the engine has removed the consumer that it used for copying.

        If a publication of the same subject is acknowledged while that consumer exists, the engine never removes it from a work
        store, unless it has copied it too.
        """
        await anyio.sleep(self._jetstream.keeps_copying)
        for _ in range(_CHECKS):
            if not any(name.startswith(_COPIES) for name in await self._jetstream.consumers(stream)):
                return
            await anyio.sleep(_PAUSE)

    async def _has_copy(self, stream: str, number: int) -> bool:
        answer = await self._jetstream.find(f"STREAM.INFO.{copy_of(stream, number)}") or {}
        ours = config_of(answer).get("description") == _copied(stream, number)
        return ours and count_of(answer.get("state"), "messages") > 0


_REQUIRED: Final[dict[str, tuple[Any, ...]]] = {
    "storage": ("file",),
    "discard": ("new",),
    "max_msgs": (-1, 0, None),
    "max_msgs_per_subject": (-1, 0, None),
    "no_ack": (False, None),
    "sealed": (False, None),
}
"""Settings without which an existing stream may lose publications."""


def check_same(
    what: str,
    place: str,
    wanted: Mapping[str, Any],
    there: Mapping[str, Any],
    required: Mapping[str, Iterable[Any]],
    arguments: Mapping[str, str],
    readable: Callable[[str, Any], str],
) -> None:
    """Compare the settings of an existing stream or consumer with the wanted ones.

    For error texts, `what` is the name that users know, and `place` is the name in the engine. `required` lists safe values of
    members without an argument. `arguments` maps the other members to the names of their arguments, and `readable` formats
    their values.
    """
    for member, values in required.items():
        if there.get(member) not in values:
            raise LocalProtocolError(
                f"{what} already exists, and was not created by polybus: {member} is {shown(there.get(member))}, and messages "
                f"may be lost unless it is {shown(next(iter(values)))}. Change {place}, or use a different name"
            )
    for member, argument in arguments.items():
        want, have = wanted[member], there.get(member)
        if isinstance(want, list) and isinstance(have, list):
            want, have = sorted(want), sorted(map(str, have))
        if want != have:
            raise LocalProtocolError(
                f"{what} already exists with a different {argument}: {readable(member, have)}, not {readable(member, want)}. "
                f"polybus never changes it: use the same value or a different name, or change {place} with the NATS tools"
            )


def _readable(member: str, value: Any) -> str:
    if member in ("max_age", "duplicate_window") and isinstance(value, int):
        return "none" if value <= 0 else shown_duration(value)
    if member == "retention":
        return str(value == "workqueue")
    if member == "max_bytes" and value == -1:
        return "none"
    return shown(value)
