"""Extensions of a bus: parts that a wing adds, which are told of its life, its links and its clients."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from ..errors import BusError
    from ..message import Message
    from ..nodes import Node, Survey
    from ..stats import DurableStats
    from .mesh import NodeJoined, NodeLeft
    from .parts import BusLink, BusPeer, BusSubscription


party_of: Callable[[Any], Any] = attrgetter("_party")
"""Gives what stands behind a `Peer`, a `RemotePeer` or a `User`: of a peer what its link knows. No call of Python's."""


class Extension:
    """A part of a bus that is told of its life, its links and its clients. By itself it does nothing with that."""

    @property
    def busy(self) -> bool:
        """True while a drain has to wait for this part."""
        return False

    async def begin(self) -> None:
        """Begin: the bus takes requests, for the first time or after a drain."""

    def withdraw(self) -> None:
        """Take nothing new: the bus drains."""

    def last_turn(self) -> None:
        """Act before all links are told goodbye, in the same turn: everything has been answered."""

    async def finish(self, until: float) -> None:
        """Finish what the end of the links has left, until that time at the most."""

    def give_back(self) -> None:
        """Give up what is not finished: the bus closes."""

    def clear(self) -> None:
        """Forget all: the bus has been left."""

    def why_not_ready(self) -> str:
        """Say why a load balancer should send nothing here now; empty while it should."""
        return ""

    def link_up(self, link: BusLink) -> None:
        """Take note that a link which the bus has opened can be used, for the first time or again."""

    def link_moved(self, link: BusLink) -> None:
        """Take note that a link goes on over another connection."""

    def link_down(self, link: BusLink) -> None:
        """Take note that a link has lost its connection, which may come back."""

    async def leave(self, link: BusLink, patience: float) -> None:
        """Finish what a link is used for, in so many seconds: it is about to be closed, or has been."""

    def link_gone(self, link: BusLink, error: BusError | None) -> None:
        """Take note that a link does not come back, and why; None where it was closed."""

    def client_up(self, peer: BusPeer) -> None:
        """Take note of a client that has connected here."""

    def client_gone(self, peer: BusPeer) -> None:
        """Take note of a client whose connection is gone."""


class LinkReader(Protocol):
    """The part of a bus that takes what a session says to be for somebody, in `Message.peer`, and not for its one peer."""

    def named(self, node: str) -> None:
        """Take note of the name that this bus has on its next connection."""

    def receive(self, message: Message, now: float) -> None:
        """Act on a message."""

    def node_event(self, event: NodeJoined | NodeLeft) -> None:
        """Take note of a node that has come or gone."""


class Mesh(Protocol):
    """The `Extension` that makes several buses one, which reach each other over a link of each."""

    @property
    def resumption(self) -> Resumption | None:
        """The part that has sessions go on at another bus; None where none can."""
        ...

    @property
    def peer(self) -> Any:
        """All other buses together, as the peer of that link; None while it has not been up."""
        ...

    @property
    def entered(self) -> bool:
        """True once they were reached, and all is there that this bus wants of them."""
        ...

    def around(self, lifespan: Any) -> Any:
        """Make the lifespan that connects before the given one begins, and leaves after it."""
        ...

    def forward(self, pattern: str | int) -> None:
        """Send what clients ask, and this bus does not handle, on to the others."""

    async def nodes(self) -> Survey[Node]:
        """Ask all buses for what they are."""
        ...

    async def present(self, pattern: str | int) -> Survey[Any]:
        """Ask all buses which of their clients have subscribed to a pattern."""
        ...

    async def peers_of(self, key: str) -> Survey[Any]:
        """Ask all buses which of their clients are a user."""
        ...

    async def metrics(self) -> tuple[str, dict[str, str | None]]:
        """Give the name of this bus, and the metrics of the others on this machine: texts by name, None of a silent one."""
        ...


class Keeper(Protocol):
    """A place where publications are kept: they are published there until that has been confirmed."""

    async def publish(self, message: Message, id: str | None, deadline: float) -> None:
        """Return when a publication is kept."""


class Reading(Protocol):
    """A reading of what is kept, as `on` or `subscribe` was asked for it."""

    @property
    def name(self) -> str:
        """The name under which it is remembered how far it is; empty for one that leaves no trace."""
        ...

    @property
    def unread(self) -> int:
        """Publications that may wait to be read where nothing is said."""
        ...

    @property
    def settled(self) -> bool:
        """True where the reader says what becomes of each publication."""
        ...


class Storage(Protocol):
    """The `Extension` that keeps publications and reads what is kept."""

    expected: bool
    """True where a link is being opened, or was, behind which something may be kept."""

    @property
    def progress(self) -> Collection[DurableStats]:
        """The state of handlers that read what is kept."""
        ...

    def check_handlers(self) -> None:
        """Raise `LocalProtocolError` where nothing is kept for a handler that reads that."""

    async def attach(self, link: BusLink) -> None:
        """Read what is kept behind a new link, for handlers for which nobody does yet."""

    async def subscribe(self, subscription: BusSubscription, reading: Any) -> None:
        """Hand what is kept to a subscription, as its `Reading` says, until `unsubscribe`."""

    def unsubscribe(self, subscription: BusSubscription) -> None:
        """Hand nothing more to a subscription; one that is not in is ignored."""

    def keeper(self, subject: str | int, peers: Sequence[BusPeer] | None, id: str | None, kept: bool) -> tuple[Keeper, BusPeer]:
        """Find who keeps a publication, and the peer that has it thereby.

        Args:
            subject: Of the publication.
            peers: Whom alone it is for; None for all.
            id: Under which it is kept once.
            kept: Whether the mesh keeps the subject.
        """
        ...


class Resumption(Protocol):
    """Sessions of clients that another bus goes on with: what is published between goodbye and hello reaches them there."""

    def token(self, peer: BusPeer) -> str | None:
        """Give the token that a client shows where it comes back; None where nothing will be kept for it."""
        ...

    def greeted(self, peer: BusPeer, token: str | None) -> None:
        """Take note of a hello: it shows the token of an earlier connection before anything else on this one."""

    def resumed(self, peer: BusPeer) -> None:
        """Take note that a client has told all its subscriptions."""
