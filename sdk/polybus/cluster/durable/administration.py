"""Administration of a cluster's stores (list, show, create, remove) and of its dead letters."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from attrs import define, field, frozen

from ... import Bus
from ...errors import LocalProtocolError
from ...integrations import parts_of
from ...plugins.tools import shown
from ...protocols.nats.cluster.subjects import escape_subject, publication_pattern
from ..backbone import Backbone
from .dead_letters import NAME as DEAD
from .dead_letters import LetterPlace, Letters
from .foreign import publishing_of
from .jetstream import NO_CONSUMER, NOT_FOUND, JetStream, JetStreamError, StoredPublishing, config_of, is_stream_name
from .stores import Stores, stream_members, stream_name

if TYPE_CHECKING:
    from ...message import Message
    from ...nodes import Store


@frozen
class StoreState:
    """The state of a store.

    Attributes:
        name: Of the store.
        patterns: Subjects that it keeps, without the cluster's prefix.
        publications: Number of stored publications.
        bytes: Their size.
        durables: Durable handlers with their number of undelivered and of unacknowledged publications.
        again: Number of unacknowledged publications that were delivered more than once, by durable handler.
    """

    name: str
    patterns: tuple[str, ...]
    publications: int
    bytes: int
    config: dict[str, Any]
    durables: dict[str, tuple[int, int]] = field(factory=dict)
    again: dict[str, int] = field(factory=dict)


async def publish_stored(bus: Bus, subject: str | int, body: Any, timeout: float) -> None:
    """Publish to a NATS server; if a stream stores the subject, returns once it is stored.

    Raises:
        BusError: As `Bus.publish`.
    """
    parts = parts_of(bus)
    publish_kept = publishing_of(bus).publish_kept if bus.cluster is None else Administration.of(bus).publish_kept
    deadline = parts.services.running.time() + timeout
    if not await publish_kept(parts.publication(subject, body), deadline):
        await bus.publish(subject, body, timeout=timeout)


@define(eq=False)
class Administration(Letters):
    """The stores and dead letters of a bus's cluster."""

    _cluster: str

    @classmethod
    def of(cls, bus: Bus) -> Administration:
        """Create it for an entered bus.

        Raises:
            LocalProtocolError: The bus is not a node of a cluster.
        """
        parts = parts_of(bus)
        backbone = parts.mesh
        found = backbone.options.resolved() if isinstance(backbone, Backbone) else None
        if not isinstance(backbone, Backbone) or found is None:
            raise LocalProtocolError(
                "a bus without a cluster has no stores: make it with Bus(cluster=...), and name its engine"
            )
        services = parts.services
        jetstream = JetStream(backbone, domain=backbone.domain)
        name = found[1]
        publishing = StoredPublishing(services, backbone, jetstream, f"{name}.p.")

        def written(subject: str | int) -> str:
            return f"{name}.p.{escape_subject(subject)}"

        place = LetterPlace(f"the cluster {name!r}", stream_name(name, DEAD), f"{name}.{DEAD}", written, ours=True)
        return cls(place, jetstream, publishing, services.running.time, name)

    async def publish_kept(self, message: Message, deadline: float) -> bool:
        return await self._publishing.publish_kept(message, deadline)

    async def stores(self) -> list[StoreState]:
        """Return the stores of the cluster, including that for dead letters.

        Raises:
            BusError: As `JetStream.ask`.
        """
        found = []
        for name in await self._own_streams():
            with suppress(LocalProtocolError):  # another cluster's, or just removed
                found.append(await self.store(name[len(self._cluster) + 1 :]))
        return found

    async def unknown(self) -> str:
        """List the clusters that the engine knows if this one is not among them; else empty.

        Raises:
            BusError: As `JetStream.ask`.
        """
        end = f"-{DEAD}"
        names = await self._jetstream.streams(f"*.{DEAD}.>")
        known = sorted(name.removesuffix(end) for name in names if name.endswith(end))
        if not known or self._cluster in known or await self._own_streams():
            return ""
        return f"this NATS server has no stores of a cluster {self._cluster!r}, only of {shown(known).strip('[]')}"

    async def durables(self) -> set[str]:
        """Return the names of all durable handlers, including removed ones with letters.

        Raises:
            BusError: As `JetStream.ask`.
        """
        found = set(await self.counts())
        for stream in await self._own_streams():
            with suppress(JetStreamError):  # just removed
                found.update(await self._jetstream.consumers(stream))
        return found

    async def _own_streams(self) -> list[str]:
        names = await self._jetstream.streams(f"{self._cluster}.>")
        return sorted(name for name in names if name.startswith(f"{self._cluster}-"))

    async def store(self, name: str) -> StoreState:
        """Return one store with its durable handlers.

        Raises:
            LocalProtocolError: No such store.
            BusError: As `JetStream.ask`.
        """
        stream = stream_name(self._cluster, name)
        info = await self._info(name)
        try:
            consumers = await self._jetstream.consumers(stream)
        except JetStreamError as error:
            raise self._unknown(name, error) from None
        durables, again = dict[str, tuple[int, int]](), dict[str, int]()
        for consumer in consumers:
            try:
                found = await self._jetstream.ask(f"CONSUMER.INFO.{stream}.{consumer}")
            except JetStreamError as error:
                if error.number == NO_CONSUMER:  # of a finished replay or copy
                    continue
                raise self._unknown(name, error) from None
            durables[consumer] = int(found.get("num_pending", 0)), int(found.get("num_ack_pending", 0))
            again[consumer] = int(found.get("num_redelivered", 0))
        config, state = info.get("config") or {}, info.get("state") or {}
        head = f"{self._cluster}.p."
        patterns = tuple(str(subject).removeprefix(head) for subject in config.get("subjects") or ())
        return StoreState(name, patterns, int(state.get("messages", 0)), int(state.get("bytes", 0)), config, durables, again)

    async def add(self, store: Store) -> None:
        """Create a store unless it exists.

        Raises:
            BusError: As `Stores.prepare`.
        """
        await Stores(self._jetstream).prepare(store, stream_members(store, self._cluster, publication_pattern(self._cluster)))

    async def trim(self, name: str) -> int:
        """Remove publications that all durable handlers of a store have dealt with; returns their number.

        Raises:
            LocalProtocolError: No such store, or it has no durable handler.
            BusError: As `JetStream.ask`.
        """
        stream = stream_name(self._cluster, name)
        last = int((await self._info(name)).get("state", {}).get("last_seq", 0))
        try:
            done = [await self._dealt_with(stream, durable, last) for durable in await self._jetstream.consumers(stream)]
            if not done:
                raise LocalProtocolError(
                    f"the store {name!r} has no durable handler, so nothing shows which publications are done"
                )
            answer = await self._jetstream.ask(f"STREAM.PURGE.{stream}", {"seq": min(done) + 1})
        except JetStreamError as error:
            raise self._unknown(name, error) from None
        return int(answer.get("purged", 0))

    async def _dealt_with(self, stream: str, durable: str, last: int) -> int:
        """Number up to which a durable handler has acknowledged everything, `last` or less."""
        found = await self._jetstream.ask(f"CONSUMER.INFO.{stream}.{durable}")
        if not found.get("num_pending") and not found.get("num_ack_pending"):
            return last  # includes subjects of others
        return int(found.get("ack_floor", {}).get("stream_seq", 0))

    async def remove(self, name: str) -> None:
        """Remove a store with its publications and durable handlers.

        Raises:
            LocalProtocolError: No such store.
            BusError: As `JetStream.ask`.
        """
        _ = await self._info(name)
        try:
            await self._jetstream.ask(f"STREAM.DELETE.{stream_name(self._cluster, name)}")
        except JetStreamError as error:
            raise self._unknown(name, error) from None

    async def remove_durable(self, name: str, durable: str) -> None:
        """Remove a durable handler from a store. Its position is lost: a new one of that name begins again.

        Raises:
            LocalProtocolError: No such store, or no such handler.
            BusError: As `JetStream.ask`.
        """
        store = await self.store(name)
        if durable not in store.durables:
            known = ", ".join(sorted(store.durables)) or "it has none"
            raise LocalProtocolError(f"the store {name!r} has no durable handler {durable!r}: {known}")
        try:
            await self._jetstream.ask(f"CONSUMER.DELETE.{stream_name(self._cluster, name)}.{durable}")
        except JetStreamError as error:
            raise self._unknown(name, error) from None

    async def _info(self, name: str) -> dict[str, Any]:
        """Ask for a store's stream, and check that its subjects are this cluster's: another cluster's store may have the same
        name.
        """
        stream = stream_name(self._cluster, name)
        if not is_stream_name(stream):
            raise LocalProtocolError(f"the cluster {self._cluster!r} has no store {name!r:.60}: the name is not valid")
        try:
            info = await self._jetstream.ask(f"STREAM.INFO.{stream}")
        except JetStreamError as error:
            raise self._unknown(name, error) from None
        subjects = config_of(info).get("subjects")
        if not isinstance(subjects, list) or not all(str(subject).startswith(f"{self._cluster}.") for subject in subjects):
            raise LocalProtocolError(
                f"the cluster {self._cluster!r} has no store {name!r}: the stream {stream!r} is another cluster's, and keeps "
                f"{shown(subjects)}"
            )
        return info

    def _unknown(self, name: str, error: JetStreamError) -> LocalProtocolError:
        if error.number == NOT_FOUND:
            return LocalProtocolError(f"the cluster {self._cluster!r} has no store {name!r}")
        return LocalProtocolError(f"the store {name!r}: the NATS server says: {error.text}")
