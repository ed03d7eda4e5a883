"""Connects a bus to the engine, as a node of a cluster."""

from __future__ import annotations

import logging
import os
import platform
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import anyio
from attrs import define, evolve, field

from ..errors import BusError, Code, Disconnected, LocalProtocolError, Unavailable
from ..events import ClusterGap, NodeGone
from ..message import Kind, Message
from ..nodes import VARIABLE, Cluster, Node, Survey
from ..plugins import NodeJoined, NodeLeft, ToAll, ToClient, ToGroup, ToNode, ToUser
from ..plugins.extensions import Extension
from ..plugins.registry import metrics_maker, resolve_url
from ..plugins.tools import log_fields
from ..protocols.nats.cluster.nodes import KnownHandlers
from ..protocols.nats.cluster.subjects import publication_pattern
from ..protocols.nats.stored import ToReader
from ..retry import Backoff
from ..subjects import check_pattern, wire_pattern
from .client_handover import ClientHandover, ParkedPublications
from .durable.dead_letters import DeadLetters, LetterWriter
from .durable.jetstream import JetStream, StoredPublishing
from .durable.readers import StoreReaders, check_names
from .durable.storage import StoredReading
from .durable.stores import Stores, stream_members

if TYPE_CHECKING:
    from ..integrations import BusParts, Link, PeerCore

_Lifespan: TypeAlias = Callable[[Any], AbstractAsyncContextManager[Any]]

logger: logging.Logger = logging.getLogger("polybus.cluster")

_BACKOFF: Final = Backoff(initial=0.05, maximum=1.0)
_ANSWERED: Final = 5.0  # Minimum timeout of requests about stores, in seconds
_ENGINE: Final = "the engine of the cluster"
_ONLINE: Final = "_polybus.online"
_NO_ENGINE: Final = (
    f"stores= and durable= require a cluster with an engine, but none is configured: set {VARIABLE}, or start the program with "
    "polybus.run(bus, workers=...) and POLYBUS_STORE, or in tests enter the bus with polybus.testing.cluster(bus)"
)
_CUT_OFF: Final = "the cluster was cut off: reload what may have been missed"
PASSES_ON: Final = "passes_on"
"""Subject of the notification that this bus or one of its peers relays publications to other buses."""
PATIENCE: Final = 2.0
_SCRAPE: Final = 1.0  # Seconds to wait for a node's answer to a Prometheus scrape
_MOST: Final = 100_000  # Maximum number of clients in one node's answer
_TEXT: Final = 16 * 1024 * 1024  # Maximum size of one node's metrics, in bytes
_NAME: Final = 200


@define(eq=False)
class Backbone(Extension):
    """The cluster side of a bus that is a node. Implements `plugins.extensions.Mesh` and `LinkReader`."""

    _parts: BusParts
    options: Cluster
    link: Link | None = field(default=None, init=False)
    """Link to the engine. `None` before the first connection, and after the bus has left the cluster."""
    nodes_known: dict[str, NodeJoined] = field(factory=dict, init=False)
    """Other nodes, by the names that the engine uses for them."""
    own: str = field(default="", init=False)  # Name under which the engine knows this node
    numbers: Iterator[int] = field(factory=count, init=False)
    """Sequence numbers of the publications that are stored for clients."""
    entered: bool = field(default=False, init=False)  # True once the engine is connected and the stores of this bus exist
    host: str = field(default="", init=False)  # Name of this machine, as other nodes see it
    title: str = field(default="", init=False)  # Name of this node in logs and metrics
    _missing: set[Any] = field(factory=set, init=False)
    """Buses that were nodes before the engine went down and have not reconnected yet."""
    _down_since: float | None = field(default=None, init=False)
    _outages: int = field(default=0, init=False)
    _readers: StoreReaders | None = field(default=None, init=False)  # `None` while this bus is not in the cluster
    resumption: ClientHandover = field(init=False)
    _prepare_again: Callable[[], Awaitable[None]] | None = field(default=None, init=False)
    """Recreates stores that the engine has lost."""

    def __attrs_post_init__(self) -> None:
        self.resumption = ClientHandover(self._parts, self, self.options.handover)
        self._parts.links.extensions.append(self.resumption)

    @property
    def peer(self) -> PeerCore | None:
        return None if self.link is None else self.link.peer

    def choose(self) -> PeerCore:
        """Return `peer`. Raises `Disconnected` before the first connection."""
        if (peer := self.peer) is None:
            raise Disconnected("this bus is not a node of a cluster: the engine has not been reached yet, or is not configured")
        return peer

    @property
    def domain(self) -> str:
        """JetStream domain of the engine's streams, or an empty string for the server's own domain."""
        adapter: Any = None if self.link is None else self.link.adapter
        return "" if adapter is None else str(adapter.domain)

    def node_of(self, bus: str) -> str | None:
        return next((node for node, joined in self.nodes_known.items() if joined.facts.get("bus") == bus), None)

    # -- life ------------------------------------------------------------------------------------------------------------

    def around(self, lifespan: _Lifespan | None) -> _Lifespan:
        @asynccontextmanager
        async def connected(bus: Any) -> AsyncIterator[Any]:
            async with AsyncExitStack() as stack:
                found = self.options.resolved()
                if found is not None:
                    check_names(self._parts.lookup.subscribers)
                    await stack.enter_async_context(self._connecting(*found))
                    await self._keeping(stack, found[1])
                elif self._keeps:
                    raise LocalProtocolError(_NO_ENGINE)
                else:
                    logger.info("cluster='auto': %s is not set, so this bus is a single process", VARIABLE)
                self.entered = True
                try:
                    yield None if lifespan is None else await stack.enter_async_context(lifespan(bus))
                finally:
                    await stack.aclose()
                    self._left()

        return connected

    def _connecting(self, url: str, name: str) -> AbstractAsyncContextManager[Any]:
        made: Any
        made, transport, address = resolve_url(url)
        self.host = host = platform.node() or "polybus"
        self.title = title = f"{host}:{os.getpid()}"[:200] if made.client == "polybus" else made.client
        known, member = KnownHandlers(self.options.remember), self._parts.services.id
        adapter = evolve(made, cluster=name, member=member, client=title, host=host, known_handlers=known)
        connector, tls, wait = transport.connector(address), self.options.tls_for(url), self.options.wait
        return self._parts.connecting(connector, adapter, reader=self, tls=tls, backoff=_BACKOFF, wait=wait, beyond=_ENGINE)

    async def _keeping(self, stack: AsyncExitStack, cluster: str) -> None:
        services, published = self._parts.services, publication_pattern(cluster)
        jetstream = JetStream(self, max(self.options.wait, _ANSWERED), domain=self.domain)
        stores, publishing = Stores(jetstream), StoredPublishing(services, jetstream, f"{cluster}.p.")
        wanted = {store: stream_members(store, cluster, published) for store in self.options.stores}
        for store, members in wanted.items():
            await stores.prepare(store, members)
            publishing.add(store)
        self._prepare_again = partial(stores.prepare_again, wanted, services)
        stack.callback(setattr, self, "_prepare_again", None)
        letters = DeadLetters(cluster, LetterWriter(f"{cluster}.dead", publishing), stores)
        readers = StoreReaders(services, published, publishing, letters)
        await readers.prepare(self._parts.lookup.subscribers)
        storage, link = self._parts.links.storage, self.link
        assert isinstance(storage, StoredReading) and link is not None
        storage.engines[link] = self._readers = readers
        stack.callback(setattr, self, "_readers", None)
        stack.callback(storage.engines.pop, link)
        if self.options.stores:
            self._parts.keep(publishing.keeps)
            stack.callback(self._parts.keep, None)

    @property
    def _keeps(self) -> bool:
        return bool(self.options.stores) or any(spec.reading is not None for spec in self._parts.lookup.subscribers)

    def _left(self) -> None:
        self.resumption.clear()  # while the bus still runs
        self.link = None
        self.nodes_known.clear()
        self._missing.clear()
        self._down_since = None

    def named(self, node: str) -> None:
        self.own = node

    def link_up(self, link: Link) -> None:
        """Start using a link to the engine. After an outage, first wait for the nodes that were connected before the outage."""
        if not link.inner:
            return
        self.link = link
        link.most_running, link.most_waiting = self.options.running, self.options.waiting
        self._parts.joined(link.peer, self._tell_who_passes_on)
        since, self._down_since = self._down_since, None
        if since is None:
            return
        runtime = link.runtime
        if self._prepare_again is not None:
            runtime.spawn(self._prepare_again)
        self._parts.services.emit(ClusterGap(peer=link.peer.public, seconds=runtime.time() - since))
        if self.options.gap == "disconnect":
            for other in {client.link for client in self._parts.clients if not client.link.opened}:
                other.close(1012, _CUT_OFF)
        if self._missing and self.options.settle:
            link.hold()
            runtime.spawn(self._settle, link, self._outages)
        else:
            self._missing.clear()
            link.release()  # an outage may have interrupted `_settle`

    async def _settle(self, link: Link, outages: int) -> None:
        with anyio.move_on_after(self.options.settle):
            await link.runtime.notifier.until(lambda: not self._missing or outages != self._outages)
        if outages == self._outages:  # otherwise the next connection settles
            self._missing.clear()
            link.release()

    def link_down(self, link: Link) -> None:
        if link is not self.link:
            return
        self._outages += 1
        link.runtime.notifier.signal()
        self._parts.parted()
        self._missing.update(node.facts.get("bus") for node in self.nodes_known.values())
        for node in self.nodes_known:  # returning nodes have new names
            self.resumption.node_left(node)
        self.nodes_known.clear()
        if self._down_since is None:
            self._down_since = link.runtime.time()

    def node_event(self, event: NodeJoined | NodeLeft) -> None:
        assert self.link is not None
        if isinstance(event, NodeJoined):
            self.nodes_known[event.node] = event
            self._missing.discard(event.facts.get("bus"))
            self.link.runtime.notifier.signal()
            self.resumption.takeover.node_joined(event.node)
            if self._parts.pubsub.publisher.in_net:
                self._tell_who_passes_on(event.node)
            return
        self.resumption.node_left(event.node)
        known = self.nodes_known.pop(event.node, None)
        if known is not None:
            name = str(known.facts.get("name") or "")
            public = None if self.peer is None else self.peer.public
            self._parts.services.emit(NodeGone(peer=public, node=event.node, name=name, orderly=event.orderly))

    def _tell_who_passes_on(self, *nodes: str) -> None:
        """Notify nodes, by default all, that publications may come back because this bus or a peer relays them."""
        if (cluster := self.peer) is not None and cluster.connected:
            for node in nodes or tuple(self.nodes_known):
                self._parts.tell_inside(ToNode(node), PASSES_ON)

    # -- life of the bus ---------------------------------------------------------------------------------------------------

    async def begin(self) -> None:
        await self._parts.pubsub.announcer.begin()

    # -- clients of this node ----------------------------------------------------------------------------------------------

    def client_up(self, peer: PeerCore) -> None:
        if peer.identity_key is not None:
            self._parts.pubsub.announcer.add_behind(ToUser(peer.identity_key))

    def client_gone(self, peer: PeerCore) -> None:
        if peer.identity_key is not None:
            self._parts.pubsub.announcer.remove_behind(ToUser(peer.identity_key))

    def _clients(self, to: ToUser | ToClient) -> list[PeerCore]:
        if isinstance(to, ToClient):
            return [peer for peer in self._parts.clients if peer.id == to.id]
        return sorted(self._parts.clients_of(to.key), key=lambda peer: peer.connected_at, reverse=True)

    # -- receiving ----------------------------------------------------------------------------------------------------------

    def receive(self, message: Message, now: float) -> None:
        link = self.link
        if link is None or link.peer is None:
            return
        to: Any = message.peer
        if isinstance(to, ToReader):
            if self._readers is not None:
                self._readers.receive(message, now)
            return
        message.peer = link.peer.public
        self._parts.services.counters.received += 1
        if message.kind is Kind.PUBLISH:
            self._published(message, link.peer, to)
        elif isinstance(to, ToNode):
            self.answer(message)
        else:
            self._asked(message, to, now)

    def _published(self, message: Message, peer: PeerCore, to: Any) -> None:
        if isinstance(to, ToAll):
            for queue in self._parts.deliver_to_all(message, peer):
                if type(queue) is ParkedPublications:
                    queue.keep(to.source, message)
        elif isinstance(to, ToGroup):
            self._parts.pubsub.receiver.deliver_to_group(message, peer, to.group, to.pattern)
        elif not (isinstance(to, ToClient) and self.resumption.takeover.handed_over(to.id, message)):
            for client in self._clients(to):
                self._parts.send(message, client)

    def _asked(self, message: Message, to: ToUser | ToClient, now: float) -> None:
        client = next(iter(self._clients(to)), None)
        if client is None:
            if message.kind is not Kind.NOTIFY:
                kind = Kind.END if message.kind is Kind.OPEN else Kind.ERROR
                self._parts.refuse(message, Code.UNAVAILABLE, "that client is no longer connected here", "gone", kind=kind)
            return
        if message.subject == _ONLINE:
            self._parts.answer(message, True)
            return
        self._parts.pass_to(message, client, now)

    # -- verbs -----------------------------------------------------------------------------------------------------------

    def forward(self, pattern: str | int) -> None:
        self._parts.pass_on(pattern, self._reachable)

    def _reachable(self) -> PeerCore:
        if outage := self.why_not_ready():
            raise Unavailable(outage)
        return self.choose()

    def why_not_ready(self) -> str:
        """Describe an outage or silence of the engine that has lasted longer than `Cluster.outage`."""
        link, since = self.link, self._down_since
        if link is None:
            return ""
        if since is None:
            return link.silence(self.options.outage)
        return link.absence() if link.runtime.time() - since >= self.options.outage else ""

    # -- queries to all nodes. Answers are not cached, so they are never stale. ------------------------------------------------

    async def nodes(self) -> Survey[Node]:
        clients, complete = await self._all("clients", None, lambda node, answer: [(node, answer)])
        found = [Node(self.own, self._parts.services.id, self.title, len(self._parts.clients), here=True)]
        for node, number in clients:
            facts = self._facts(node)
            found.append(Node(node, str(facts.get("bus") or ""), str(facts.get("name") or ""), number))
        return Survey(tuple(found), complete)

    def _facts(self, node: str) -> Any:
        known = self.nodes_known.get(node)
        return {} if known is None else known.facts

    async def present(self, pattern: str | int) -> Survey[Any]:
        """Return the clients on all nodes that have subscribed to a pattern. Raises an error if the pattern is not valid."""
        check_pattern(pattern, self._parts.services.limits.subject)
        wire = wire_pattern(pattern)
        there, complete = await self._all("present", wire, self._remote)
        return Survey((*(peer.public for peer in self._subscribed(wire)), *there), complete)

    async def peers_of(self, key: str) -> Survey[Any]:
        there, complete = await self._all("peers", key, self._remote)
        return Survey((*(peer.public for peer in self._parts.clients_of(key)), *there), complete)

    async def metrics(self) -> tuple[str, dict[str, str | None]]:
        """Implement `Mesh.metrics`. Node names are labels in the metrics, so equal names are numbered."""
        known = self.nodes_known
        names: dict[str, str] = {}
        for node in sorted(known, key=lambda node: str(self._facts(node).get("bus"))):
            facts = self._facts(node)
            if facts.get("host") == self.host:
                name = str(facts.get("name") or node)
                same = sum(other.partition(" #")[0] == name for other in (self.title, *names.values()))
                names[node] = f"{name} #{same + 1}" if same else name
        texts, silent = await self._ask(names, "metrics", lambda node, answer: [(names[node], _unpacked(answer))], _SCRAPE)
        return self.title, {**dict(texts), **{names[node]: None for node in silent}}

    def _remote(self, node: str, answer: Any) -> list[Any]:
        rows = answer if isinstance(answer, list) else []
        return [
            self._parts.remote(str(row[0]), node, None if row[1] is None else str(row[1]), str(row[2]))
            for row in rows[:_MOST]
            if isinstance(row, list) and len(row) == 3
        ]

    async def _all(self, subject: str, body: Any, read: Callable[[str, Any], Sequence[Any]]) -> tuple[list[Any], bool]:
        """Query all known nodes. The second result is False if a node is silent, or may be unknown because of an outage."""
        whole = self._down_since is None and not self._missing
        found, silent = await self._ask(dict.fromkeys(self.nodes_known, body), subject, read, PATIENCE)
        return found, whole and not silent

    async def _ask(
        self, bodies: Mapping[str, Any], subject: str, read: Callable[[str, Any], Sequence[Any]], seconds: float
    ) -> tuple[list[Any], list[str]]:
        found, silent = dict[str, Sequence[Any]](), list[str]()
        if (cluster := self.peer) is None:
            return [], silent

        async def ask(node: str) -> None:
            try:
                answer = await self._parts.ask_inside(ToNode(node), subject, bodies[node], seconds)
                found[node] = read(node, answer)
            except Disconnected:
                if not cluster.connected:
                    silent.append(node)
            except (BusError, TimeoutError):
                silent.append(node)

        async with anyio.create_task_group() as group:
            for node in bodies:
                group.start_soon(ask, node)
        return [one for node in bodies for one in found.get(node, ())], silent

    def answer(self, message: Message) -> None:
        try:
            body = message.body
        except BusError:
            body = None
        match message.kind, message.subject, body:
            case Kind.REQUEST, "clients", _:
                self._parts.answer(message, len(self._parts.clients))
            case Kind.REQUEST, "present", str() | int() as pattern:
                self._parts.answer(message, [_row(peer) for peer in self._subscribed(pattern)])
            case Kind.REQUEST, "peers", str(key):
                self._parts.answer(message, [_row(peer) for peer in self._parts.clients_of(key)])
            case Kind.REQUEST, "metrics", str(name):
                self._tell_metrics(message, name[:_NAME])
            case Kind.NOTIFY, subject, _ if subject == PASSES_ON:
                self._parts.pubsub.publisher.join_net()
            case Kind.OPEN, _, _:
                self._parts.refuse(message, Code.UNIMPLEMENTED, "a node itself does not have streams", kind=Kind.END)
            case _:
                if not self.resumption.answer(message, body) and message.kind is Kind.REQUEST:
                    text = f"a node of this version does not answer {message.subject!r}"
                    self._parts.refuse(message, Code.UNIMPLEMENTED, text)

    def _tell_metrics(self, message: Message, name: str) -> None:
        try:
            metrics = metrics_maker("node", "metrics=True")(self._parts.services.bus, name)
            self._parts.answer(message, zlib.compress(metrics.encode(), 1))
        except ImportError:
            self._parts.refuse(message, Code.UNIMPLEMENTED, "prometheus-client is not installed at this node")
        except Exception as error:  # a collector of the application may raise anything
            text, fields = "the metrics of this node cannot be sent to another one: %s", log_fields(message.peer)
            self._parts.services.running.warnings.warn(logger, text, str(error), error=error, extra=fields)
            self._parts.refuse(message, Code.INTERNAL, "the metrics of this node cannot be collected")

    def _subscribed(self, pattern: str | int) -> list[PeerCore]:
        return [peer for peer in self._parts.clients if pattern in peer.patterns]


def _unpacked(answer: Any) -> str | None:
    try:
        return zlib.decompressobj().decompress(answer, _TEXT).decode()
    except (TypeError, ValueError, zlib.error):
        return None


def _row(peer: PeerCore) -> list[Any]:
    return [peer.id, peer.identity_key, peer.protocol]
