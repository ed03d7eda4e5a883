"""Events that a bus emits about itself. Read them with ``async for event in bus.events()``."""

from __future__ import annotations

import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from .errors import Code

if TYPE_CHECKING:
    from ._core.peer.peer import Peer

__all__ = [
    "BusEvent", "ClusterGap", "DeadLettered", "FrameRefused", "HandlerFailed", "LinkDown", "LinkRetrying", "LinkUp", "NodeGone",
    "PeerSlow", "SubscriptionSlow",
]  # fmt: skip


class BusEvent(Struct, frozen=True, weakref=True, kw_only=True):
    """Base class of all events.

    Attributes:
        peer: The peer concerned, or None.
        at: Time of the event as an aware datetime in UTC.
    """

    peer: Peer | None = None
    at: datetime.datetime = field(default_factory=partial(datetime.datetime.now, datetime.UTC))


class LinkUp(BusEvent, frozen=True, kw_only=True):
    """A link is connected, and its subscriptions have been restored."""

    url: str = ""
    again: bool = False
    """True after a reconnect."""


class LinkDown(BusEvent, frozen=True, kw_only=True):
    """A connection was lost or closed, or a link gave up reconnecting; see `reason`."""

    url: str = ""
    code: int = 1006
    reason: str = ""


class LinkRetrying(BusEvent, frozen=True, kw_only=True):
    """A link will try to reconnect in `delay` seconds, or a reconnect attempt has failed."""

    url: str = ""
    attempt: int = 0
    delay: float = 0.0
    reason: str = ""


class PeerSlow(BusEvent, frozen=True, kw_only=True):
    """A peer cannot keep up, so the bus is dropping publications to it or closing its link."""

    policy: str = ""
    dropped: int = 0


class SubscriptionSlow(BusEvent, frozen=True, kw_only=True):
    """A subscription or `on` handler of this bus cannot keep up.

    The event is first emitted when the queue is half full, before any message is lost. It is not emitted again until the queue
    has been empty, except while messages are dropped or delayed: then it is emitted at most once a second. `peer` is the
    publisher of the last message, or None if this bus or several peers published.
    """

    pattern: str | int = ""
    unread: int = 0
    """Number of messages in the queue."""
    dropped: int = 0
    """Number of messages dropped since the subscription began."""


class HandlerFailed(BusEvent, frozen=True, kw_only=True):
    """A handler raised an unexpected exception."""

    subject: str | int = ""
    error_id: str = ""
    error: BaseException | None = None
    """The exception. Its traceback keeps the message body in memory, so for messages over 4 KiB this is None while more than 16
    events are unread."""


class DeadLettered(BusEvent, frozen=True, kw_only=True):
    """A message could not be delivered: a notification without a handler, or a publication that could not be forwarded to
    `peer` or over a bridge, for example because of `Limits.hops`."""

    subject: str | int = ""
    code: Code = Code.UNKNOWN
    """Machine-readable cause."""
    reason: str = ""
    """Human-readable cause, for example for logs."""
    message: Any = None
    """The `Message` for notifications of up to 4 KiB, otherwise None."""


class FrameRefused(BusEvent, frozen=True, kw_only=True):
    """The bus dropped a malformed frame or message."""

    reason: str = ""
    text: str = ""


class ClusterGap(BusEvent, frozen=True, kw_only=True):
    """The cluster's engine is reachable again. Publications from other nodes may have been lost in the meantime."""

    seconds: float = 0.0
    """Length of the outage in seconds."""


class NodeGone(BusEvent, frozen=True, kw_only=True):
    """A node left the cluster."""

    node: str = ""
    name: str = ""
    """Host name and process ID, for display."""
    orderly: bool = False
    """True if the node announced that it was leaving."""
