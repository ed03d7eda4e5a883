"""Manages a cluster's stores and dead letters."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from attrs import define, field, frozen

from ... import Bus
from ...errors import Forbidden, LocalProtocolError
from ...integrations import parts_of
from ...plugins.tools import shown
from ...protocols.nats.cluster.subjects import escape_subject, publication_pattern
from ..backbone import Backbone
from .dead_letters import NAME as DEAD
from .dead_letters import LetterPlace, Letters
from .foreign import publishing_of
from .jetstream import NO_STREAM, JetStream, JetStreamError, StoredPublishing, config_of, is_stream_name
from .stores import Stores, stream_members, stream_name

if TYPE_CHECKING:
    from ...nodes import Store


@frozen
class StoreState:
    """A snapshot of a store. Its patterns lack the cluster's prefix."""

    name: str
    patterns: tuple[str, ...]
    publications: int
    bytes: int
    config: dict[str, Any]
    durables: dict[str, tuple[int, int]] = field(factory=dict)
    """Number of undelivered and number of unacknowledged publications, by durable handler."""
    again: dict[str, int] = field(factory=dict)
    """Number of unacknowledged publications that were delivered more than once, by durable handler."""


async def publish_stored(bus: Bus, subject: str | int, body: Any, timeout: float) -> None:
    """Publish to a NATS server. If a stream stores the subject, wait until it has stored the publication.

    Raises `Forbidden` if the server refuses the publication, and the errors of `Bus.publish`.
    """
    parts, events = parts_of(bus), bus.events()
    publishing = publishing_of(bus) if bus.cluster is None else Administration.of(bus).publishing
    deadline = parts.services.running.time() + timeout
    if not await publishing.publish_kept(parts.publication(subject, body), deadline):
        await bus.publish(subject, body, timeout=timeout)
        if reason := await publishing.refusal(subject, events, deadline):
            raise Forbidden(reason)


@define(eq=False)
class Administration(Letters):
    _cluster: str

    @classmethod
    def of(cls, bus: Bus) -> Administration:
        """Return the administration of a bus's cluster. Raises `LocalProtocolError` if the bus is not a node."""
        parts = parts_of(bus)
        backbone = parts.links.mesh
        found = backbone.options.resolved() if isinstance(backbone, Backbone) else None
        if not isinstance(backbone, Backbone) or found is None:
            raise LocalProtocolError(
                "a bus without a cluster has no stores: create it with Bus(cluster=...) and the engine's URL"
            )
        services, name = parts.services, found[1]
        jetstream = JetStream(backbone, domain=backbone.domain)
        publishing = StoredPublishing(services, jetstream, f"{name}.p.")

        def written(subject: str | int) -> str:
            return f"{name}.p.{escape_subject(subject)}"

        place = LetterPlace(f"the cluster {name!r}", stream_name(name, DEAD), f"{name}.{DEAD}", written, ours=True)
        return cls(place, jetstream, publishing, services.running.time, name)

    async def stores(self) -> list[StoreState]:
        """Return all stores, including the store of dead letters."""
        found = []
        for name in await self._own_streams():
            with suppress(LocalProtocolError):  # another cluster's, or just removed
                found.append(await self.store(name[len(self._cluster) + 1 :]))
        return found

    async def unknown(self) -> str:
        """List the clusters that the engine knows if this one is not among them. Otherwise return an empty string."""
        end = f"-{DEAD}"
        names = await self._jetstream.streams(f"*.{DEAD}.>")
        known = sorted(name.removesuffix(end) for name in names if name.endswith(end))
        if not known or self._cluster in known or await self._own_streams():
            return ""
        return f"this NATS server has no stores of a cluster {self._cluster!r}, only of {shown(known).strip('[]')}"

    async def durables(self) -> set[str]:
        """Return the names of all durable handlers, including removed handlers that still have dead letters."""
        found = set(await self.counts())
        for stream in await self._own_streams():
            with suppress(JetStreamError):  # just removed
                found.update(await self._jetstream.consumers(stream))
        return found

    async def _own_streams(self) -> list[str]:
        names = await self._jetstream.streams(f"{self._cluster}.>")
        return sorted(name for name in names if name.startswith(f"{self._cluster}-"))

    async def store(self, name: str) -> StoreState:
        """Return a store's state. Like all methods for one store, raises `LocalProtocolError` if the store does not exist."""
        stream = stream_name(self._cluster, name)
        info = await self._info(name)
        durables, again = dict[str, tuple[int, int]](), dict[str, int]()
        with self._explained(name):
            for consumer in await self._jetstream.consumers(stream):
                found = await self._jetstream.find(f"CONSUMER.INFO.{stream}.{consumer}")
                if found is not None:  # otherwise a replay or copy has just ended
                    durables[consumer] = int(found.get("num_pending", 0)), int(found.get("num_ack_pending", 0))
                    again[consumer] = int(found.get("num_redelivered", 0))
        config, state = info.get("config") or {}, info.get("state") or {}
        head = f"{self._cluster}.p."
        patterns = tuple(str(subject).removeprefix(head) for subject in config.get("subjects") or ())
        return StoreState(name, patterns, int(state.get("messages", 0)), int(state.get("bytes", 0)), config, durables, again)

    async def add(self, store: Store) -> None:
        await Stores(self._jetstream).prepare(store, stream_members(store, self._cluster, publication_pattern(self._cluster)))

    async def trim(self, name: str) -> int:
        """Remove the publications that all of a store's durable handlers have acknowledged, and return how many there were."""
        stream = stream_name(self._cluster, name)
        last = int((await self._info(name)).get("state", {}).get("last_seq", 0))
        with self._explained(name):
            done = [await self._acknowledged(stream, durable, last) for durable in await self._jetstream.consumers(stream)]
            if not done:
                raise LocalProtocolError(
                    f"the store {name!r} has no durable handler, so it is unknown which publications have been processed"
                )
            answer = await self._jetstream.ask(f"STREAM.PURGE.{stream}", {"seq": min(done) + 1})
        return int(answer.get("purged", 0))

    async def _acknowledged(self, stream: str, durable: str, last: int) -> int:
        """Return the last number before a durable handler's first unacknowledged publication, at most `last`."""
        found = await self._jetstream.ask(f"CONSUMER.INFO.{stream}.{durable}")
        if not found.get("num_pending") and not found.get("num_ack_pending"):
            return last  # includes subjects that it does not handle
        return int(found.get("ack_floor", {}).get("stream_seq", 0))

    async def remove(self, name: str) -> None:
        """Remove a store together with its publications and durable handlers."""
        _ = await self._info(name)
        with self._explained(name):
            await self._jetstream.ask(f"STREAM.DELETE.{stream_name(self._cluster, name)}")

    async def remove_durable(self, name: str, durable: str) -> None:
        """Remove a durable handler from a store. Its position is lost, so a new handler of that name starts from scratch."""
        store = await self.store(name)
        if durable not in store.durables:
            known = ", ".join(sorted(store.durables)) or "it has none"
            raise LocalProtocolError(f"the store {name!r} has no durable handler {durable!r}: {known}")
        with self._explained(name):
            await self._jetstream.ask(f"CONSUMER.DELETE.{stream_name(self._cluster, name)}.{durable}")

    async def _info(self, name: str) -> dict[str, Any]:
        """Request a store's stream. Checks the subjects of the stream, because another cluster may use the same name."""
        stream = stream_name(self._cluster, name)
        if not is_stream_name(stream):
            raise LocalProtocolError(f"the cluster {self._cluster!r} has no store {name!r:.60}: the name is not valid")
        with self._explained(name):
            info = await self._jetstream.ask(f"STREAM.INFO.{stream}")
        subjects = config_of(info).get("subjects")
        if not isinstance(subjects, list) or not all(str(subject).startswith(f"{self._cluster}.") for subject in subjects):
            raise LocalProtocolError(
                f"the cluster {self._cluster!r} has no store {name!r}: the stream {stream!r} belongs to another cluster and "
                f"stores {shown(subjects)}"
            )
        return info

    @contextmanager
    def _explained(self, name: str) -> Iterator[None]:
        try:
            yield
        except JetStreamError as error:
            missing = f"the cluster {self._cluster!r} has no store {name!r}"
            raise LocalProtocolError(missing if error.number == NO_STREAM else f"the store {name!r}: {error.text}") from None
