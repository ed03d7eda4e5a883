"""Ports of a peer: what it asks of the rooms above, which hand it in."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, Protocol

from .._util.pattern_index import SubjectIndex

if TYPE_CHECKING:
    from .._handlers.lookup import HandlerLookup
    from .._handlers.subscriber import WhenFull
    from ..errors import BusError
    from ..message import Message
    from ..plugins import Connector
    from ..subjects import AnySubject
    from .peer import Peer


class AnnouncerPort(Protocol):
    """Tells peers what this bus has subscribed to."""

    def to_tell(self, peer: Peer, *, again: bool = False) -> int:
        """Count the subscriptions that a peer is told as soon as it has said who it is."""
        ...

    def confirm_late(self, peer: Peer) -> None:
        """Tell a peer that was silent of the patterns that waited for its answer."""


class PublisherPort(Protocol):
    """Sends the publications of this bus."""

    @property
    def routes(self) -> MutableMapping[str | int, Any]:
        """Recent routes, to be cleared where others may be right."""
        ...

    def unsent(self, message: Message, peer: Peer, how: str, error: BusError) -> None:
        """Count a publication that did not fit the wire of a peer."""


class RecipientsPort(Protocol):
    """The peers that publications of this bus go to."""

    def confirm(self, peer: Peer, subscribes: Any) -> None:
        """Note that a peer has shown to be a polybus peer."""

    def count_subscription(self, peer: Peer) -> None:
        """Note that a peer has told one subscription, which was granted or refused."""


class ReceiverPort(Protocol):
    """Delivers the publications of peers."""

    def takes(self, subject: str | int) -> bool:
        """Tell whether a publication of a peer is delivered to any queue, here or by a relay."""
        ...


class PeerPubSub(Protocol):
    """Publications and subscriptions of the bus, as its peers see them."""

    remote: SubjectIndex[Peer]
    """The subscriptions of peers."""

    @property
    def announcer(self) -> AnnouncerPort: ...

    @property
    def publisher(self) -> PublisherPort: ...

    @property
    def recipients(self) -> RecipientsPort: ...

    @property
    def passes_on(self) -> bool:
        """True where this bus passes publications on to others."""
        ...

    @property
    def receiver(self) -> ReceiverPort: ...

    def subscription(
        self, pattern: AnySubject, returns: Any, queue: int, when_full: WhenFull, *, peer: Peer | None = None
    ) -> Any:
        """Make a `Subscription`."""
        ...


class PeerHost(Protocol):
    """The bus, as its peers see it."""

    lookup: HandlerLookup

    @property
    def pubsub(self) -> PeerPubSub: ...

    def deliver(self, message: Message, peer: Peer) -> None:
        """Take a publication of a peer."""

    def tunnel(self, name: str, params: Mapping[str, str] | None, peer: Peer | None) -> Connector:
        """Make a connector through a peer."""
        ...

    def lost(self, peer: Peer, gone: BusError | None) -> None:
        """Forget the interest of a peer whose connection is gone.

        Args:
            gone: Why it does not come back, where it does not.
        """
