"""Interfaces of higher layers, as peers use them."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, Protocol

from ..._util.pattern_index import SubjectIndex

if TYPE_CHECKING:
    from ...errors import BusError
    from ...message import Message
    from ...plugins import Connector
    from ...plugins.extensions import Reading, Resumption
    from ...subjects import AnySubject
    from ..handlers.handler import WhenFull
    from ..handlers.lookup import HandlerLookup
    from .peer_core import PeerCore
    from .subscription import IteratedQueue, Subscription


class AnnouncerPort(Protocol):
    """Sends this bus's subscriptions to peers. Implemented in `_core.pubsub.announcer`."""

    def to_tell(self, peer: PeerCore, *, again: bool = False) -> int: ...
    def confirm_late(self, peer: PeerCore) -> None: ...
    def add_behind(self, wanted: Any) -> None: ...
    def remove_behind(self, wanted: Any) -> None: ...
    async def known_inside(self) -> None: ...


class PublisherPort(Protocol):
    """Sends this bus's publications. Implemented in `_core.pubsub.publisher`."""

    @property
    def routes(self) -> MutableMapping[str | int, Any]: ...

    def join_net(self) -> None: ...
    def unsent(self, message: Message, peer: PeerCore, how: str, error: BusError) -> None: ...


class RecipientsPort(Protocol):
    """Keeps track of the peers that receive this bus's publications. Implemented in `_core.pubsub.recipients`."""

    def confirm(self, peer: PeerCore, subscribes: Any) -> None: ...
    def count_subscription(self, peer: PeerCore) -> None: ...


class ReceiverPort(Protocol):
    """Delivers publications from peers. Implemented in `_core.pubsub.pubsub`."""

    def takes(self, message: Message) -> bool: ...


class PeerPubSub(Protocol):
    """The publications and subscriptions of the bus. Implemented in `_core.pubsub.pubsub`."""

    local: SubjectIndex[Any]
    """Subscriptions of this bus, and of peers that have another queue for their publications."""
    remote: SubjectIndex[PeerCore]
    """Subscriptions of peers."""
    tells_inside: bool
    """True if the bus announces its peers' subscriptions over inner links."""

    @property
    def announcer(self) -> AnnouncerPort: ...
    @property
    def publisher(self) -> PublisherPort: ...
    @property
    def recipients(self) -> RecipientsPort: ...
    @property
    def receiver(self) -> ReceiverPort: ...
    @property
    def passes_on(self) -> bool: ...
    def subscription(
        self,
        pattern: AnySubject,
        returns: Any,
        queue: int | None,
        when_full: WhenFull,
        *,
        peer: PeerCore | None = None,
        reading: Reading | None = None,
    ) -> Subscription[Any]: ...
    async def subscribe(self, subscription: IteratedQueue) -> None: ...
    def unsubscribe(self, subscription: IteratedQueue) -> None: ...


class PeerHost(Protocol):
    lookup: HandlerLookup

    resumption: Resumption | None
    """Set if clients can resume their sessions at another bus."""

    @property
    def pubsub(self) -> PeerPubSub: ...
    def deliver(self, message: Message, peer: PeerCore, /) -> None: ...
    def tunnel(self, name: str, params: Mapping[str, str] | None, peer: PeerCore | None) -> Connector: ...
    def lost(self, peer: PeerCore, gone: BusError | None) -> None: ...
