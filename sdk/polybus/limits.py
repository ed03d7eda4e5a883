"""Limits of a bus and its links: the bound of every buffer."""

from __future__ import annotations

from attrs import Factory, field, frozen

from ._validation import at_least, more_than_no_time, names_known

__all__ = ["Limits"]

_KIB = 1024
_MIB = 1024 * 1024


def _payload_of(limits: Limits) -> int:
    message: object = limits.message
    # Defaults are computed before validation: `message` may have any type here.
    return min(8 * message, max(8 * _MIB, message)) if isinstance(message, int) else _MIB


def _holds_a_message(limits: Limits, attribute: object, value: int) -> None:
    if value < limits.message:
        raise ValueError(f"payload={value} is less than message={limits.message}: a payload holds at least one message")


@names_known("Limits(message=2**20)")
@frozen(kw_only=True)
class Limits:
    """Bounds on the resources of a bus, its links and its peers.

    Sizes are in bytes, times in seconds. All have safe defaults; pass ``Bus(limits=Limits(message=...))`` to change some.

    Raises:
        TypeError: A limit is not a number.
        ValueError: A limit is negative, zero where zero would stop everything, or an infinite time.
    """

    message: int = field(default=_MIB, validator=at_least(1))
    """Largest frame, in and out."""
    payload: int = field(default=Factory(_payload_of, takes_self=True), validator=[at_least(1), _holds_a_message])
    """Largest payload of several messages on a wire that fetches or posts them together (J.REP over HTTP). The payload is
    read in pieces; `message` bounds each message. Default: eight times `message`, at most 8 MiB, or `message` if that is
    larger."""
    depth: int = field(default=128, validator=at_least(1))
    """Nesting of a JSON body."""
    subject: int = field(default=1024, validator=at_least(1))
    """Length of a subject or pattern in UTF-8 bytes."""
    id: int = field(default=256, validator=at_least(1))
    """Length of a message id in UTF-8 bytes."""
    headers: int = field(default=16 * _KIB, validator=at_least(1))
    """All headers of a message together, in bytes."""
    outbox: int = field(default=4096, validator=at_least(1))
    """Messages that wait for a slow or absent peer, per link."""
    outbox_bytes: int = field(default=4 * _MIB, validator=at_least(1))
    """The same in bytes."""
    queue_bytes: int = field(default=4 * _MIB, validator=at_least(1))
    """Publications in the queue of one subscription or `on` handler: their bodies plus 200 bytes each. The bus may hold back
    as much again of publications from links: for a full ``block`` queue, or until a woken reader gets its turn."""
    running: int = field(default=64, validator=at_least(1))
    """Requests of one peer that run at the same time."""
    waiting: int = field(default=4096, validator=at_least(0))
    """Requests of one peer that wait for their turn; the bus answers more with `TooManyRequests`."""
    waiting_bytes: int = field(default=16 * _MIB, validator=at_least(1))
    """The same in bytes."""
    pending: int = field(default=65_536, validator=at_least(1))
    """Requests to one peer that wait for their answers; more raise `QueueFull`."""
    total_bytes: int = field(default=256 * _MIB, validator=at_least(1))
    """Total of outboxes, stuck connections, waiting requests and held-back messages of the bus, shared out among them."""
    total_running: int = field(default=1024, validator=at_least(1))
    """Requests that run at the same time on the whole bus; shared out among peers, unless `running` is as large."""
    threads: int = field(default=40, validator=at_least(1))
    """Threads for `def` handlers and `def` dependencies; other calls wait for one. A thread inside a blocking verb of polybus
    does not count. Clean-ups, and calls that hold a dependency, do not wait."""
    peers: int = field(default=10_000, validator=at_least(1))
    """Connections that the bus accepts."""
    peers_per_address: int = field(default=10_000, validator=at_least(1))
    """Connections that the bus accepts from one network address."""
    handshakes: int = field(default=100, validator=at_least(1))
    """Unauthenticated accepted connections at the same time, per listener."""
    subscriptions: int = field(default=1024, validator=at_least(1))
    """Patterns that one peer may subscribe to."""
    channels: int = field(default=256, validator=at_least(1))
    """Open streams, channels and tunnels of one peer, per direction."""
    hops: int = field(default=8, validator=at_least(0))
    """Bridges and tunnels that a message may cross; also the nesting of tunnels."""
    bad_messages: int = field(default=200, validator=at_least(0))
    """Malformed messages per minute before the link ends (on a link with many peers: before that peer is disconnected)."""
    empty_frames: int = field(default=1000, validator=at_least(0))
    """Keep-alive frames per second before a link ends."""
    handshake_timeout: float = field(default=5.0, validator=more_than_no_time)
    """Time for upgrade, TLS and the protocol's handshake together."""
    connect_timeout: float = field(default=10.0, validator=more_than_no_time)
    """Time for one attempt to reach a server."""
    frame_timeout: float = field(default=10.0, validator=more_than_no_time)
    """Time over which a frame that has begun to arrive must average 512 bytes per second, else the link ends."""
    write_timeout: float = field(default=10.0, validator=more_than_no_time)
    """Time without progress in writing before a link ends, however much waits."""
    ping_interval: float = field(default=15.0, validator=more_than_no_time)
    """Silence after which the bus pings the peer."""
    ping_timeout: float = field(default=8.0, validator=more_than_no_time)
    """Silence after a ping before the link ends."""
    close_timeout: float = field(default=2.0, validator=more_than_no_time)
    """Time to close one connection in an orderly way."""
