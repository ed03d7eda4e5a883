"""Events of a bus about itself: `async for event in bus.events()`."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

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


class BusEvent(Struct, frozen=True, kw_only=True):
    """Common fields of all events: time (aware, UTC) and peer."""

    peer: Peer | None = None
    at: datetime.datetime = field(default_factory=_now)


class LinkUp(BusEvent, frozen=True, kw_only=True):
    """A link is connected and its subscriptions are restored."""

    url: str = ""
    again: bool = False
    """True after a reconnect."""


class LinkDown(BusEvent, frozen=True, kw_only=True):
    """A connection was lost or closed, or a link that was down gave up (see its reason)."""

    url: str = ""
    code: int = 1006
    reason: str = ""


class LinkRetrying(BusEvent, frozen=True, kw_only=True):
    """An attempt to reconnect failed, or the next one starts after `delay` seconds."""

    url: str = ""
    attempt: int = 0
    delay: float = 0.0
    reason: str = ""


class PeerSlow(BusEvent, frozen=True, kw_only=True):
    """A peer does not keep up: the bus drops publications to it, or ends its link."""

    policy: str = ""
    dropped: int = 0


class SubscriptionSlow(BusEvent, frozen=True, kw_only=True):
    """A subscription or `on` handler of this bus does not keep up: its queue is half full, or full.

    Emitted before anything is lost, when the queue is half full (again only after it was empty), and at most once a second
    while it drops or holds back publications. `peer` published the last one; None if that was this bus, or several did.
    """

    pattern: str | int = ""
    unread: int = 0
    """Publications in the queue."""
    dropped: int = 0
    """Publications dropped since it began."""


class HandlerFailed(BusEvent, frozen=True, kw_only=True):
    """A handler raised an unexpected exception."""

    subject: str | int = ""
    error_id: str = ""
    error: BaseException | None = None
    """The exception. None for a message over 4 KiB if your iterator has more than 16 unread events: its frames hold the body.
    """


class DeadLettered(BusEvent, frozen=True, kw_only=True):
    """A notification had no handler here, or a publication could not be passed on: to `peer`, over a bridge, or beyond
    `Limits.hops`."""

    subject: str | int = ""
    code: Code = Code.UNKNOWN
    """The cause, for programs."""
    reason: str = ""
    """The cause, for people and logs."""
    message: Any = None
    """The `Message` of a notification of at most 4 KiB, else None."""


class FrameRefused(BusEvent, frozen=True, kw_only=True):
    """The bus dropped a malformed frame or message."""

    reason: str = ""
    text: str = ""


class ClusterGap(BusEvent, frozen=True, kw_only=True):
    """The engine of the cluster is back; publications of other nodes may have been missed while it was away."""

    seconds: float = 0.0
    """Length of the outage in seconds."""


class NodeGone(BusEvent, frozen=True, kw_only=True):
    """A node left the cluster."""

    node: str = ""
    name: str = ""
    """For people: host name and process number."""
    orderly: bool = False
    """True if it announced its exit."""
