"""Extensions of a bus: parts added by a wing, which follow its life, its links and its clients; and recorders of links.

A bus passes its `polybus.integrations.BusParts` to an extension when it creates it. In the methods below a link is a
`polybus.integrations.Link`, a peer a `polybus.integrations.PeerParty`.
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


party_of: Callable[[Any], Any] = attrgetter("_party")
"""Internal object behind a `Peer`, a `RemotePeer` or a `User`: of a peer, the link's. Runs no Python code."""


class Extension:
    """Part of a bus that is notified about its life, its links and its clients. The defaults do nothing."""

    @property
    def busy(self) -> bool:
        """True while a drain has to wait for this part."""
        return False

    async def begin(self) -> None:
        """The bus takes requests, for the first time or after a drain."""

    def withdraw(self) -> None:
        """The bus drains: take nothing new."""

    def last_turn(self) -> None:
        """All requests are answered; called just before the links say goodbye, in the same event loop iteration."""

    async def finish(self, until: float) -> None:
        """The links have ended: finish the rest, until that time at most."""

    def give_back(self) -> None:
        """The bus closes: give up unfinished work."""

    def clear(self) -> None:
        """The bus was left: forget all."""

    def why_not_ready(self) -> str:
        """Reason why a load balancer should send nothing here now; empty if ready."""
        return ""

    def link_up(self, link: Any) -> None:
        """A link that the bus opened is connected or reconnected."""

    def link_moved(self, link: Any) -> None:
        """A link continues over another connection."""

    def link_down(self, link: Any) -> None:
        """A link lost its connection, which may come back."""

    async def leave(self, link: Any, patience: float) -> None:
        """Finish the use of a link within `patience` seconds: it is about to be closed, or has been."""

    def link_gone(self, link: Any, error: BusError | None) -> None:
        """A link does not come back; `error` is None if it was closed."""

    def client_up(self, peer: Any) -> None:
        """A client connected here."""

    def client_gone(self, peer: Any) -> None:
        """A client's connection is gone."""


class LinkReader(Protocol):
    """Receives messages that a session addresses to others than its one peer, in `Message.peer`."""

    def named(self, node: str) -> None:
        """The next connection gives this bus another name."""

    def receive(self, message: Message, now: float) -> None:
        """Handle a message."""

    def node_event(self, event: NodeJoined | NodeLeft) -> None:
        """A node joined or left."""


class Mesh(Protocol):
    """The `Extension` that joins several buses into one, over a link of each."""

    @property
    def resumption(self) -> Resumption | None:
        """The part that lets a client's session continue at another bus; None if none can."""
        ...

    @property
    def peer(self) -> Any:
        """All other buses together, as the peer of that link; None before its first connect."""
        ...

    @property
    def entered(self) -> bool:
        """True once the others were reached and everything that this bus needs exists."""
        ...

    def around(self, lifespan: Any) -> Any:
        """Lifespan that connects before the given one begins and leaves after it ends."""
        ...

    def forward(self, pattern: str | int) -> None:
        """Forward clients' requests that this bus does not handle to the others."""

    async def nodes(self) -> Survey[Node]:
        """Ask all buses for their nodes."""
        ...

    async def present(self, pattern: str | int) -> Survey[Any]:
        """Ask all buses for their clients with a subscription to a pattern."""
        ...

    async def peers_of(self, key: str) -> Survey[Any]:
        """Ask all buses for the clients of a user."""
        ...

    async def metrics(self) -> tuple[str, dict[str, str | None]]:
        """Name of this bus, and the metrics of the others on this machine: texts by name, None for a silent one."""
        ...


class Keeper(Protocol):
    """A store that confirms publications."""

    async def publish(self, message: Message, id: str | None, deadline: float) -> None:
        """Return when the publication is stored; repeat until it is confirmed."""


class Reading(Protocol):
    """Options for reading a store, from `on` or `subscribe`."""

    @property
    def name(self) -> str:
        """Name under which the position is stored; empty for a reader without one."""
        ...

    @property
    def unread(self) -> int:
        """Default for the number of unread publications."""
        ...

    @property
    def settled(self) -> bool:
        """True if the reader settles each publication."""
        ...


class PublicationQueue(Protocol):
    """Queue of a subscription, which is offered the publications that match a pattern."""

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
        """True if it takes publications of this bus."""
        ...

    @property
    def peers(self) -> bool:
        """True if it takes publications of peers."""
        ...

    @property
    def leads_on(self) -> bool:
        """True if it leads to another bus."""
        ...

    @property
    def full(self) -> bool: ...
    async def room(self, deadline: float) -> bool:
        """Wait for room; False at the deadline."""
        ...

    def offer(self, message: Message) -> None:
        """Take a publication."""

    def offer_shared(self, message: Message) -> None:
        """Take a publication that other queues share."""


class Storage(Protocol):
    """The `Extension` that stores publications and reads stores."""

    expected: bool
    """True if a link that may lead to a store was opened or is being opened."""

    @property
    def progress(self) -> Collection[DurableStats]:
        """State of durable handlers."""
        ...

    def check_handlers(self) -> None:
        """Raise `LocalProtocolError` if a durable handler has no store."""

    async def attach(self, link: Any) -> None:
        """Let durable handlers without a store read from the store behind a new link."""

    async def subscribe(self, subscription: Any, reading: Any) -> None:
        """Pass stored publications to a subscription, according to its `Reading`, until `unsubscribe`."""

    def unsubscribe(self, subscription: Any) -> None:
        """Stop passing publications to a subscription; ignores an unknown one."""

    def keeper(self, subject: str | int, peers: Sequence[Any] | None, id: str | None, kept: bool) -> tuple[Keeper, Any]:
        """Find the store of a publication, and the peer that gets it by that.

        Args:
            subject: Subject of the publication.
            peers: The only receivers; None for all.
            id: Id for deduplication.
            kept: True if the mesh stores the subject.
        """
        ...


class Resumption(Protocol):
    """Continuation of clients' sessions at another bus, with the publications between goodbye and hello."""

    def token(self, peer: Any) -> str | None:
        """Token that a client presents when it comes back; None if nothing will be kept for it."""
        ...

    def greeted(self, peer: Any, token: str | None) -> None:
        """A client sent its hello; its first message shows the token of an earlier connection."""

    def resumed(self, peer: Any) -> None:
        """A client has announced all its subscriptions."""


class RecorderStats(Struct, frozen=True, weakref=True):
    """Figures of a recorder."""

    frames: int
    """Frames written, including rows for the start and end of connections."""
    bytes: int
    """Bytes written."""
    dropped: int
    """Frames lost because the writer was too slow, or the disk failed."""
    redacted: int
    """Frames with redacted parts."""
    waiting: int
    """Frames not yet written."""


class Recorder(Protocol):
    """Records the frames of connections. `open` and `close` may block: do not call them in event loops."""

    @property
    def path(self) -> Path:
        """The folder."""
        ...

    @property
    def capture_id(self) -> str:
        """Name of the capture."""
        ...

    def claim(self) -> None:
        """Reserve it for one use.

        Raises:
            LocalProtocolError: It was used before.
        """

    def open(self) -> None:
        """Start writing."""

    def close(self) -> None:
        """Write the rest and stop."""

    def stats(self) -> RecorderStats:
        """Figures so far."""
        ...

    def tap(self, adapter: ProtocolAdapter, transport: Transport, *, opened: bool, who: str | None = None) -> Tap:
        """Start recording a connection of a protocol. `opened` is true if this side opened it, `who` is the key of the other
        end's identity."""
        ...


class Tap(Protocol):
    """A recorded connection."""

    @property
    def recorder(self) -> Recorder:
        """Its recorder."""
        ...

    def around(self, session: Any, transport: Any) -> tuple[Any, Any]:
        """Wrap a session and a transport so that each frame is recorded."""
        ...

    def listening_in(self, transport: Any) -> tuple[Any, Callable[[Receiver], Receiver]]:
        """Wrap a transport, without a session; returns also a function that wraps its receiver."""
        ...

    def over(self, why: Closed) -> None:
        """Record the end of the connection."""
