"""Reports of a bus about itself: `async for event in bus.events()`."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

from attrs import field, frozen

from .errors import Code

if TYPE_CHECKING:
    from ._core.peer.peer import Peer

__all__ = [
    "BusEvent",
    "ClusterGap",
    "DeadLettered",
    "FrameRefused",
    "HandlerFailed",
    "LinkDown",
    "LinkRetrying",
    "LinkUp",
    "NodeGone",
    "PeerSlow",
    "SubscriptionSlow",
]


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


@frozen(kw_only=True)
class BusEvent:
    """The part that all events have: when (aware, UTC) and about whom."""

    peer: Peer | None = None
    at: datetime.datetime = field(factory=_now)


@frozen(kw_only=True)
class LinkUp(BusEvent):
    """A link carries traffic; its subscriptions have been restored."""

    url: str = ""
    again: bool = False
    """True if it had been up before."""


@frozen(kw_only=True)
class LinkDown(BusEvent):
    """A connection is lost or has been closed; or a link that was down is given up, which its reason says."""

    url: str = ""
    code: int = 1006
    reason: str = ""


@frozen(kw_only=True)
class LinkRetrying(BusEvent):
    """An attempt to connect again failed, or is about to be made after `delay` seconds."""

    url: str = ""
    attempt: int = 0
    delay: float = 0.0
    reason: str = ""


@frozen(kw_only=True)
class PeerSlow(BusEvent):
    """A peer does not keep up: publications to it are being dropped, or its link is ended."""

    policy: str = ""
    dropped: int = 0


@frozen(kw_only=True)
class SubscriptionSlow(BusEvent):
    """A subscription or `on` handler of this bus does not keep up: its queue is half full, or full.

    Told before anything is lost, when the queue is half full (again only after it was empty), and then as long as it drops or
    holds back, once a second at most. `peer` is who published what came last; None where that was this bus, or several.
    """

    pattern: str | int = ""
    unread: int = 0
    """Publications that wait."""
    dropped: int = 0
    """Publications that its queue did not take, since it began."""


@frozen(kw_only=True)
class HandlerFailed(BusEvent):
    """A handler raised something that it did not mean as an answer."""

    subject: str | int = ""
    error_id: str = ""
    error: BaseException | None = None
    """As it was raised. None of a message over 4 KiB for who has more than 16 events to read: its frames hold the body."""


@frozen(kw_only=True)
class DeadLettered(BusEvent):
    """A notification came for which there is no handler here, or a publication could not be passed on: to `peer`, over a
    bridge, or any further (`Limits.hops`).
    """

    subject: str | int = ""
    code: Code = Code.UNKNOWN
    """Why, for programs."""
    reason: str = ""
    """Why, for people and logs."""
    message: Any = None
    """The `Message` of a notification of at most 4 KiB, else None."""


@frozen(kw_only=True)
class FrameRefused(BusEvent):
    """A malformed frame or message was dropped."""

    reason: str = ""
    text: str = ""


@frozen(kw_only=True)
class ClusterGap(BusEvent):
    """The engine of the cluster is back: meanwhile publications of other nodes may have been missed."""

    seconds: float = 0.0
    """For how long it was away."""


@frozen(kw_only=True)
class NodeGone(BusEvent):
    """A node of the cluster is not there any more."""

    node: str = ""
    name: str = ""
    """For people: the name of its host and the number of its process."""
    orderly: bool = False
    """True if it has said goodbye."""
