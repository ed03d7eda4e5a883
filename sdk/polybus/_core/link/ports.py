"""Ports of a link: what it asks of the rooms above, which hand it in.

A peer that a link hands on, in an event or as `Link.peer`, has the type `Any`: only the rooms above know its class.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from ...errors import BusError, RemoteProtocolError
    from ...message import Message
    from ...plugins import Closed, Identity
    from ..rpc.reply import Reply
    from .link import Link


class LinkOwner(Protocol):
    """The registry of a bus's links."""

    def open_peer(self, link: Link, key: Any, identity: Identity, address: str, /) -> Any:
        """Make the peer of a connection, or one of many: a `PeerPort`."""
        ...

    def link_up(self, link: Link) -> None: ...
    def link_moved(self, link: Link) -> None: ...
    def peer_up(self, peer: Any) -> None: ...
    def link_closed(self, link: Link, why: Closed) -> None: ...


class LinkDialer(Protocol):
    """The part that has dialled a link, and dials it again."""

    def link_up(self) -> None: ...
    def link_down(self, why: Closed) -> None: ...
    def other_servers(self, addresses: Sequence[str], leaving: bool) -> None: ...


class PeerPort(Protocol):
    """A peer, as its link sees it."""

    key: Any
    pending: dict[Any, Reply[Any]]
    until: float
    """Requests that are due before this are to be watched."""

    @property
    def address(self) -> str: ...
    @property
    def gone(self) -> bool: ...
    @property
    def public(self) -> Any:
        """The `Peer` that the application knows."""
        ...

    @property
    def speaks_extensions(self) -> bool | None: ...

    def mark_bare(self) -> None:
        """Remember that it is no polybus peer, as its handshake has shown."""

    def receive(self, message: Message, now: float) -> None:
        """Act on a message that has come from it."""

    def in_flight(self, id: Any) -> bool:
        """Tell whether a request or channel of the peer has this id."""
        ...

    def answered_badly(self, error: RemoteProtocolError) -> None:
        """Fail a request whose answer was malformed."""

    def answered_in_vain(self, key: Any, text: str) -> None:
        """Note an answer that is not taken: where no other comes, the end of the request says so."""

    def watch_reply(self, reply: Reply[Any]) -> None:
        """End a request soon after its deadline."""

    def request_waits(self, reply: Reply[Any]) -> None:
        """Note that a request has been put into the outbox."""

    def request_leaves(self, reply: Reply[Any]) -> None:
        """Note that a request is taken out of the outbox, to be sent."""

    def abandoned(self, reply: Reply[Any]) -> None:
        """Forget a request: no task waits for its answer any more."""

    def lost(self, ids: Collection[Any], error: BusError) -> None:
        """Fail requests and channels to the peer, and stop those of it, that come to no end."""

    def cut_off(self, reason: str, error: BusError | None) -> None:
        """Fail what waits for it: nothing more will come from it."""

    def connection_lost(self, reason: str, *, going_on: bool, error: BusError | None = None) -> None:
        """End what was in flight: the connection is gone; with `going_on` the link will come back."""


class StalledCalls(Protocol):
    """Requests of a peer which wait until it has read the answers to others."""

    def resume(self) -> None: ...
