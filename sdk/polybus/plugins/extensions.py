"""Interfaces for optional parts of a bus, such as the mesh of a cluster and durable storage, and for recorders.

The bus creates an extension with its `polybus.integrations.BusParts`. In the methods below, links are
`polybus.integrations.Link` objects and peers are `polybus.integrations.PeerCore` objects.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct

if TYPE_CHECKING:
    from pathlib import Path

    from ..errors import BusError
    from ..message import Message
    from ..nodes import Node, Survey
    from ..stats import DurableStats
    from .mesh import NodeJoined, NodeLeft
    from .protocols import ProtocolAdapter
    from .transports import Closed, Receiver, Transport


core_of: Callable[[Any], Any] = attrgetter("_party")
"""Returns the `PeerCore` behind a `Peer`, or the party behind a `RemotePeer` or `User`, without running Python code."""


class Extension:
    """Base class for a part that follows the life cycle of a bus, its links and its clients. By default, methods do nothing."""

    @property
    def busy(self) -> bool:
        """True while a graceful shutdown must wait for this extension."""
        return False

    async def begin(self) -> None:
        """Called when the bus starts to accept requests, including after a drain."""

    def withdraw(self) -> None:
        """Stop accepting new work. Called when a drain begins."""

    def last_turn(self) -> None:
        """Called when all requests are answered, just before the links are closed in the same event loop iteration."""

    async def finish(self, until: float) -> None:
        """Finish the remaining work before the time `until`. Called when the links are closed."""

    def give_back(self) -> None:
        """Abandon unfinished work. Called when the bus closes."""

    def clear(self) -> None:
        """Clear all state. Called after the bus has exited."""

    def why_not_ready(self) -> str:
        """Return the reason why a load balancer shouldn't send traffic now, or an empty string if the bus is ready."""
        return ""

    def link_up(self, link: Any) -> None:
        """Called when a link opened by this bus connects or reconnects."""

    def link_moved(self, link: Any) -> None:
        """Called when a link continues over another connection."""

    def link_down(self, link: Any) -> None:
        """Called when a link loses its connection but may reconnect."""

    async def leave(self, link: Any, patience: float) -> None:
        """Stop using a link within `patience` seconds, because it is closing or already closed."""

    def link_gone(self, link: Any, error: BusError | None) -> None:
        """Called when a link is gone for good. `error` is None if it was closed normally."""

    def client_up(self, peer: Any) -> None:
        """Called when a client connects."""

    def client_gone(self, peer: Any) -> None:
        """Called when a client disconnects."""


class LinkReader(Protocol):
    """Handles messages and events from a session between the nodes of a mesh. `Message.peer` is the address of a message."""

    def named(self, node: str) -> None:
        """Called when a new connection gives this bus another node name."""

    def receive(self, message: Message, now: float) -> None:
        """Handle a message."""

    def node_event(self, event: NodeJoined | NodeLeft) -> None:
        """Called when a node joins or leaves."""


class Mesh(Protocol):
    """An `Extension` that joins several buses into a cluster, over one link per bus."""

    @property
    def resumption(self) -> Resumption | None:
        """Support for moving client sessions to another bus, or None."""
        ...

    @property
    def peer(self) -> Any:
        """Peer of the link, which represents all other buses. None before the first connect."""
        ...

    @property
    def entered(self) -> bool:
        """True once the other buses have been reached and everything that this bus requires exists."""
        ...

    def around(self, lifespan: Any) -> Any:
        """Wrap a lifespan so that the bus joins the mesh before it starts and leaves after it ends."""
        ...

    def forward(self, pattern: str | int) -> None:
        """Forward clients' requests to other buses if this bus has no handler for them."""

    async def nodes(self) -> Survey[Node]:
        """Return the nodes of all buses."""
        ...

    async def present(self, pattern: str | int) -> Survey[Any]:
        """Return the clients of all buses that subscribe to a pattern."""
        ...

    async def peers_of(self, key: str) -> Survey[Any]:
        """Return the clients of all buses that belong to a user."""
        ...

    async def metrics(self) -> tuple[str, dict[str, str | None]]:
        """Return the name of this bus, and the metrics of the other buses on this machine by name. They are None for a bus that
        doesn't answer."""
        ...


class Keeper(Protocol):
    """A store that confirms publications."""

    async def publish(self, message: Message, id: str | None, deadline: float) -> None:
        """Publish a message, with retries, and return when the store has confirmed it."""


class Reading(Protocol):
    """Options for reading from a store, passed to `on` or `subscribe`."""

    @property
    def name(self) -> str:
        """Name for storing the position, or an empty string if it isn't stored."""
        ...

    @property
    def unread(self) -> int:
        """Default maximum number of unread publications."""
        ...

    @property
    def settled(self) -> bool:
        """True if the reader acknowledges each publication."""
        ...


class PublicationQueue(Protocol):
    """Queue of a subscription."""

    @property
    def pattern(self) -> str | int: ...
    @property
    def group(self) -> str | None: ...
    @property
    def queue(self) -> int:
        """Maximum number of publications."""
        ...

    @property
    def local(self) -> bool:
        """True if the subscription includes publications of this bus."""
        ...

    @property
    def peers(self) -> bool:
        """True if the subscription includes publications of peers."""
        ...

    @property
    def leads_on(self) -> bool:
        """True if publications are forwarded to another bus."""
        ...

    @property
    def full(self) -> bool: ...
    async def room(self, deadline: float) -> bool:
        """Wait until the queue has room. Returns False at the deadline."""
        ...

    def offer(self, message: Message) -> None:
        """Add a publication."""

    def offer_shared(self, message: Message) -> None:
        """Add a publication that is also in other queues."""


class Storage(Protocol):
    """An `Extension` that stores publications and reads them from stores."""

    expected: bool
    """True if the bus has opened or is opening a link that may lead to a store."""

    @property
    def progress(self) -> Collection[DurableStats]:
        """Statistics of the durable handlers."""
        ...

    def check_handlers(self) -> None:
        """Check that each durable handler has a store.

        Raises:
            LocalProtocolError: If a handler has no store.
        """

    async def attach(self, link: Any) -> None:
        """Let durable handlers without a store read from the store behind a new link."""

    async def subscribe(self, subscription: Any, reading: Any) -> None:
        """Pass stored publications to a subscription according to its `Reading`, until `unsubscribe` is called."""

    def unsubscribe(self, subscription: Any) -> None:
        """Stop passing publications to a subscription. Unknown subscriptions are ignored."""

    def keeper(self, subject: str | int, peers: Sequence[Any] | None, id: str | None, kept: bool) -> tuple[Keeper, Any]:
        """Return the store for a publication, and the peer that receives the publication through the store.

        Args:
            subject: Subject of the publication.
            peers: Recipients, or None for all peers.
            id: Id for deduplication.
            kept: True if the mesh stores the subject.
        """
        ...


class Resumption(Protocol):
    """Lets clients resume their sessions on another bus without losing the publications sent while they reconnect."""

    def token(self, peer: Any) -> str | None:
        """Return the token for resuming a client's session, or None if its publications won't be kept."""
        ...

    def greeted(self, peer: Any, token: str | None) -> None:
        """Called when a client's hello arrives, with the token from its previous connection."""

    def resumed(self, peer: Any) -> None:
        """Called when a client has announced all its subscriptions."""


class RecorderStats(Struct, frozen=True, weakref=True):
    """Statistics of a recorder."""

    frames: int
    """Number of frames written, including rows for the start and end of connections."""
    bytes: int
    """Number of bytes written."""
    dropped: int
    """Number of frames lost because the writer was too slow or the disk failed."""
    redacted: int
    """Number of frames with redacted parts."""
    waiting: int
    """Number of frames not written yet."""


class Recorder(Protocol):
    """Records the frames of connections. `open` and `close` may block, so don't call them in an event loop."""

    @property
    def path(self) -> Path:
        """Folder of the capture."""
        ...

    @property
    def capture_id(self) -> str:
        """Id of the capture."""
        ...

    def claim(self) -> None:
        """Reserve the recorder for a single use.

        Raises:
            LocalProtocolError: If the recorder has been used before.
        """

    def open(self) -> None:
        """Start writing."""

    def close(self) -> None:
        """Write everything that is still queued, and stop."""

    def stats(self) -> RecorderStats:
        """Return the current statistics."""
        ...

    def tap(self, adapter: ProtocolAdapter, transport: Transport, *, opened: bool, who: str | None = None) -> Tap:
        """Start recording a connection.

        Args:
            adapter: Protocol of the connection.
            transport: The connection.
            opened: True if this side opened the connection.
            who: Key of the peer's identity.
        """
        ...


class Tap(Protocol):
    """A connection that is being recorded."""

    @property
    def recorder(self) -> Recorder: ...

    def around(self, session: Any, transport: Any) -> tuple[Any, Any]:
        """Return wrappers of a session and a transport that record each frame."""
        ...

    def listening_in(self, transport: Any) -> tuple[Any, Callable[[Receiver], Receiver]]:
        """Return a wrapper of a transport, and a function that wraps its receiver, to record without a session."""
        ...

    def over(self, why: Closed) -> None:
        """Record the end of the connection."""
