"""Stores, as those look at them who keep a cluster: listed, shown, made, removed; and its dead letters."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from attrs import define, field, frozen

from ... import Bus
from ...errors import LocalProtocolError
from ...plugins.parts import parts_of
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
    """A store as it is.

    Attributes:
        name: Of the store.
        patterns: Subjects that it keeps, as they stand on the wire behind the name of the cluster.
        publications: Publications that are there.
        bytes: Their size.
        durables: Durable handlers, with what each has not been given and what it has not dealt with.
        again: Of what each has not dealt with, what has been given out more than once.
    """

    name: str
    patterns: tuple[str, ...]
    publications: int
    bytes: int
    config: dict[str, Any]
    durables: dict[str, tuple[int, int]] = field(factory=dict)
    again: dict[str, int] = field(factory=dict)


async def publish_stored(bus: Bus, subject: str | int, body: Any, timeout: float) -> None:
    """Publish at a NATS server, to a cluster or to others there; what a stream keeps is stored when this returns.

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
    """The stores and dead letters of the cluster that a bus is a node of."""

    _cluster: str

    @classmethod
    def of(cls, bus: Bus) -> Administration:
        """Make it for a bus that is entered.

        Raises:
            LocalProtocolError: The bus is no node of a cluster.
        """
        parts = parts_of(bus)
        backbone = parts.mesh
        found = backbone.options.resolved() if isinstance(backbone, Backbone) else None
        if not isinstance(backbone, Backbone) or found is None:
            raise LocalProtocolError("stores are those of a cluster: make the bus with Bus(cluster=...), and name its engine")
        services = parts.services
        jetstream = JetStream(backbone, domain=backbone.domain)
        name = found[1]
        publishing = StoredPublishing(services, backbone, jetstream, f"{name}.p.")

        def written(subject: str | int) -> str:
            return f"{name}.p.{escape_subject(subject)}"

        place = LetterPlace(f"the cluster {name!r}", stream_name(name, DEAD), f"{name}.{DEAD}", written, ours=True)
        return cls(place, jetstream, publishing, services.running.time, name)

    async def publish_kept(self, message: Message, deadline: float) -> bool:
        """As `StoredPublishing.publish_kept`."""
        return await self._publishing.publish_kept(message, deadline)

    async def stores(self) -> list[StoreState]:
        """Find the stores of the cluster, that of dead letters among them.

        Raises:
            BusError: As `JetStream.ask`.
        """
        found = []
        for name in await self._own_streams():
            with suppress(LocalProtocolError):  # it is another cluster's, or was removed meanwhile
                found.append(await self.store(name[len(self._cluster) + 1 :]))
        return found

    async def unknown(self) -> str:
        """Say which clusters the engine keeps something of, where this one is not among them; empty where it is, or none is.

        Raises:
            BusError: As `JetStream.ask`.
        """
        end = f"-{DEAD}"
        names = await self._jetstream.streams(f"*.{DEAD}.>")
        known = sorted(name.removesuffix(end) for name in names if name.endswith(end))
        if not known or self._cluster in known or await self._own_streams():
            return ""
        return f"this NATS server keeps nothing of a cluster {self._cluster!r}, but of {shown(known).strip('[]')}"

    async def durables(self) -> set[str]:
        """Find the names of the durable handlers of all stores, and of those that have letters.

        Raises:
            BusError: As `JetStream.ask`.
        """
        found = set(await self.counts())
        for stream in await self._own_streams():
            with suppress(JetStreamError):  # it was removed meanwhile
                found.update(await self._jetstream.consumers(stream))
        return found

    async def _own_streams(self) -> list[str]:
        names = await self._jetstream.streams(f"{self._cluster}.>")
        return sorted(name for name in names if name.startswith(f"{self._cluster}-"))

    async def store(self, name: str) -> StoreState:
        """Find one store, with its durable handlers.

        Raises:
            LocalProtocolError: There is no such store.
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
                if error.number == NO_CONSUMER:  # it was of a replay, or of a copy, and has gone meanwhile
                    continue
                raise self._unknown(name, error) from None
            durables[consumer] = int(found.get("num_pending", 0)), int(found.get("num_ack_pending", 0))
            again[consumer] = int(found.get("num_redelivered", 0))
        config, state = info.get("config") or {}, info.get("state") or {}
        head = f"{self._cluster}.p."
        patterns = tuple(str(subject).removeprefix(head) for subject in config.get("subjects") or ())
        return StoreState(name, patterns, int(state.get("messages", 0)), int(state.get("bytes", 0)), config, durables, again)

    async def add(self, store: Store) -> None:
        """Make a store where there is none.

        Raises:
            BusError: As `Stores.prepare`.
        """
        await Stores(self._jetstream).prepare(store, stream_members(store, self._cluster, publication_pattern(self._cluster)))

    async def trim(self, name: str) -> int:
        """Remove the publications of a store that all its durable handlers have dealt with, and give their number.

        Raises:
            LocalProtocolError: There is no such store, or it has no durable handler.
            BusError: As `JetStream.ask`.
        """
        stream = stream_name(self._cluster, name)
        last = int((await self._info(name)).get("state", {}).get("last_seq", 0))
        try:
            done = [await self._dealt_with(stream, durable, last) for durable in await self._jetstream.consumers(stream)]
            if not done:
                raise LocalProtocolError(f"the store {name!r} has no durable handler: nothing says what is not needed any more")
            answer = await self._jetstream.ask(f"STREAM.PURGE.{stream}", {"seq": min(done) + 1})
        except JetStreamError as error:
            raise self._unknown(name, error) from None
        return int(answer.get("purged", 0))

    async def _dealt_with(self, stream: str, durable: str, last: int) -> int:
        """The number up to which a durable handler has dealt with everything, of those that there were up to `last`."""
        found = await self._jetstream.ask(f"CONSUMER.INFO.{stream}.{durable}")
        if not found.get("num_pending") and not found.get("num_ack_pending"):
            return last  # also what is not for it
        return int(found.get("ack_floor", {}).get("stream_seq", 0))

    async def remove(self, name: str) -> None:
        """Remove a store with all that it keeps, and its durable handlers.

        Raises:
            LocalProtocolError: There is no such store.
            BusError: As `JetStream.ask`.
        """
        _ = await self._info(name)
        try:
            await self._jetstream.ask(f"STREAM.DELETE.{stream_name(self._cluster, name)}")
        except JetStreamError as error:
            raise self._unknown(name, error) from None

    async def remove_durable(self, name: str, durable: str) -> None:
        """Remove a durable handler from a store: where it was, nobody knows any more, and one of that name begins anew.

        Raises:
            LocalProtocolError: There is no such store, or no such handler of it.
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
        """Ask about a stream that keeps subjects of this cluster: the stores of another one may be called alike."""
        stream = stream_name(self._cluster, name)
        if not is_stream_name(stream):
            raise LocalProtocolError(f"the cluster {self._cluster!r} has no store {name!r:.60}: that is no name of one")
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
