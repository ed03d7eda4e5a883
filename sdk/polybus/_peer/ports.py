"""Ports of a peer: what it asks of the rooms above, which hand it in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from .._handlers.lookup import HandlerLookup
    from .._pubsub.pubsub import PubSub
    from ..errors import BusError
    from ..message import Message
    from .peer import Peer

__all__ = ["PeerHost"]


class PeerHost(Protocol):
    """The bus, as its peers see it."""

    lookup: HandlerLookup
    pubsub: PubSub

    def deliver(self, message: Message, peer: Peer) -> None:
        """Take a publication of a peer."""

    def tunnel(self, name: str, params: Mapping[str, str] | None, peer: Peer | None) -> Any:
        """Make a connector through a peer: a `TunnelConnector`."""
        ...

    def lost(self, peer: Peer, gone: BusError | None) -> None:
        """Forget the interest of a peer whose connection is gone.

        Args:
            gone: Why it does not come back, where it does not.
        """
