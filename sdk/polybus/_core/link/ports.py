"""Interfaces of higher layers, as links use them. Peers have the type `Any`, because their class is in a higher layer."""

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
    def open_peer(self, link: Link, key: Any, identity: Identity, address: str, /) -> Any:
        """Create the `PeerPort` for a peer of a connection."""
        ...

    def link_up(self, link: Link) -> None: ...
    def link_moved(self, link: Link) -> None: ...
    def peer_up(self, peer: Any) -> None: ...
    def link_closed(self, link: Link, why: Closed) -> None: ...


class LinkDialer(Protocol):
    """The dialer of a link. Reconnects the link when its connection is lost."""

    def link_up(self) -> None: ...
    def link_down(self, why: Closed) -> None: ...
    def other_servers(self, addresses: Sequence[str], leaving: bool) -> None: ...
    def told_retry(self, retry: Any) -> None: ...
    async def renewal(self) -> dict[str, Any] | None:
        """Return the members of a hello that renew the identity. Returns None if this link has no token."""
        ...


class PeerPort(Protocol):
    """The interface of a peer for its link."""

    key: Any
    pending: dict[Any, Reply[Any]]
    until: float
    """Time before which deadlines of requests must be watched."""

    @property
    def address(self) -> str: ...
    @property
    def gone(self) -> bool: ...
    @property
    def public(self) -> Any: ...
    @property
    def speaks_extensions(self) -> bool | None: ...
    def mark_bare(self) -> None: ...
    def receive(self, message: Message, now: float) -> None: ...
    def in_flight(self, id: Any) -> bool:
        """Return True if a request or channel of the peer has this id."""
        ...

    def answered_badly(self, error: RemoteProtocolError) -> None:
        """Fail a request because its answer is malformed."""

    def answered_in_vain(self, key: Any, text: str) -> None:
        """Record an unusable answer. If the request then times out, the error contains this text."""

    def watch_reply(self, reply: Reply[Any]) -> None:
        """Fail a request soon after its deadline."""

    def timed_out(self, reply: Reply[Any], now: float) -> None:
        """Fail a request after its deadline, and forget it."""

    def abandoned(self, reply: Reply[Any]) -> None:
        """Forget a request and cancel it."""

    def lost(self, ids: Collection[Any], error: BusError) -> None:
        """Fail requests and channels to the peer with these ids, and stop those from the peer."""

    def cut_off(self, reason: str, error: BusError | None) -> None:
        """Fail pending requests, because the peer will not send anything else."""

    def connection_lost(self, reason: str, *, going_on: bool, error: BusError | None = None) -> None:
        """End everything in flight. If the link will reconnect, `going_on` is True."""
