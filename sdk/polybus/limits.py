"""Limits of a bus and its links, which bound every buffer."""

from __future__ import annotations

from attrs import Factory, field, frozen

from ._validation import at_least, explains, more_than_no_time

__all__ = ["Limits"]

_KIB = 1024
_MIB = 1024 * 1024


def _payload_of(limits: Limits) -> int:
    message: object = limits.message
    # Defaults are computed before validation, so `message` may have any type here.
    return min(8 * message, max(8 * _MIB, message)) if isinstance(message, int) else _MIB


def _holds_a_message(limits: Limits, attribute: object, value: int) -> None:
    if value < limits.message:
        raise ValueError(f"payload={value} is less than message={limits.message}: a payload holds at least one message")


@frozen(kw_only=True)
class Limits:
    """Bounds on the resources of a bus, its links and its peers.

    Sizes are in bytes and times in seconds. All limits have safe defaults. To change one, pass
    ``Bus(limits=Limits(message=...))``.

    Raises:
        TypeError: If a limit is not a number.
        ValueError: If a limit is negative, if a time is infinite, or if a limit that must be positive is zero.
    """

    message: int = field(default=_MIB, validator=at_least(1))
    """Maximum size of a frame, in both directions."""
    payload: int = field(default=Factory(_payload_of, takes_self=True), validator=[at_least(1), _holds_a_message])
    """Maximum size of a payload with several messages (J.REP over HTTP). Each message in it is limited by `message`. The
    default is eight times `message`, capped at 8 MiB, but never less than `message`."""
    depth: int = field(default=128, validator=at_least(1))
    """Maximum nesting of a JSON body."""
    subject: int = field(default=1024, validator=at_least(1))
    """Maximum length of a subject or pattern in UTF-8 bytes."""
    id: int = field(default=256, validator=at_least(1))
    """Maximum length of a message id in UTF-8 bytes."""
    headers: int = field(default=16 * _KIB, validator=at_least(1))
    """Maximum total size of the headers of a message."""
    outbox: int = field(default=4096, validator=at_least(1))
    """Number of messages per link that may wait for a slow or disconnected peer."""
    outbox_bytes: int = field(default=4 * _MIB, validator=at_least(1))
    """Total size of the messages per link that may wait for a slow or disconnected peer."""
    queue_bytes: int = field(default=4 * _MIB, validator=at_least(1))
    """Total size of the unread messages of a subscription or `on` handler, counting 200 bytes per message in addition to its
    body. While a ``block`` queue is full or its reader has not been scheduled yet, the bus may buffer the same amount again."""
    running: int = field(default=64, validator=at_least(1))
    """Number of requests from one peer that may run at the same time."""
    waiting: int = field(default=4096, validator=at_least(0))
    """Number of requests from one peer that may wait for a slot. Further requests fail with `TooManyRequests`."""
    waiting_bytes: int = field(default=16 * _MIB, validator=at_least(1))
    """Total size of the requests from one peer that may wait for a slot."""
    pending: int = field(default=65_536, validator=at_least(1))
    """Number of requests to one peer that may be waiting for a response. Further requests raise `QueueFull`."""
    total_bytes: int = field(default=256 * _MIB, validator=at_least(1))
    """Total size of all outboxes, stuck connections, waiting requests and delayed messages of the bus."""
    total_running: int = field(default=1024, validator=at_least(1))
    """Number of requests that may run at the same time on the whole bus. Peers share these slots. If `running` is smaller, each
    peer has a quota."""
    threads: int = field(default=40, validator=at_least(1))
    """Number of threads for `def` handlers and `def` dependencies. Further calls wait for a free thread, except for clean-ups
    and calls that already hold a dependency. Threads that are blocked in a polybus call do not count."""
    peers: int = field(default=10_000, validator=at_least(1))
    """Number of connections that the bus accepts."""
    peers_per_address: int = field(default=10_000, validator=at_least(1))
    """Number of connections that the bus accepts from one network address. For IPv6, its first 64 bits count."""
    handshakes: int = field(default=100, validator=at_least(1))
    """Number of connections per listener that may be unauthenticated at the same time."""
    subscriptions: int = field(default=1024, validator=at_least(1))
    """Number of patterns that one peer may subscribe to."""
    channels: int = field(default=256, validator=at_least(1))
    """Number of open streams, channels and tunnels of one peer, per direction."""
    hops: int = field(default=8, validator=at_least(0))
    """Number of bridges and tunnels that a message may cross, and the maximum nesting of tunnels."""
    bad_messages: int = field(default=200, validator=at_least(0))
    """Number of malformed messages per minute before a link is closed. On a link shared by many peers, only the sender is
    disconnected."""
    empty_frames: int = field(default=1000, validator=at_least(0))
    """Number of keep-alive frames per second before a link is closed."""
    handshake_timeout: float = field(default=5.0, validator=more_than_no_time)
    """Total time for the HTTP upgrade, TLS and the protocol's handshake."""
    connect_timeout: float = field(default=10.0, validator=more_than_no_time)
    """Time for one connection attempt."""
    frame_timeout: float = field(default=10.0, validator=more_than_no_time)
    """Time after which a link is closed if a partly received frame has arrived at less than 512 bytes per second on average."""
    write_timeout: float = field(default=10.0, validator=more_than_no_time)
    """Time without any write progress before a link is closed, regardless of how much data is waiting."""
    ping_interval: float = field(default=15.0, validator=more_than_no_time)
    """Time without input before the bus pings the peer."""
    ping_timeout: float = field(default=8.0, validator=more_than_no_time)
    """Time without input after a ping before the link is closed."""
    close_timeout: float = field(default=2.0, validator=more_than_no_time)
    """Time for closing one connection gracefully."""


# attrs has made it with the class, so it is replaced afterwards.
Limits.__init__ = explains("Limits", {}, example="Limits(message=2**20)")(Limits.__init__)  # type: ignore[method-assign]
