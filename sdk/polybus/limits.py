"""The limits of a bus and its links: every buffer has a size, and this is where the sizes are."""

from __future__ import annotations

from attrs import Factory, field, frozen

from ._validation import at_least, more_than_no_time, names_known

__all__ = ["Limits"]

_KIB = 1024
_MIB = 1024 * 1024


def _payload_of(limits: Limits) -> int:
    message: object = limits.message
    # Defaults come before validators, so `message` may be anything as yet: its own validator says so.
    return min(8 * message, max(8 * _MIB, message)) if isinstance(message, int) else _MIB


def _holds_a_message(limits: Limits, attribute: object, value: int) -> None:
    if value < limits.message:
        raise ValueError(f"payload={value} is less than message={limits.message}: a payload holds at least one message")


@names_known("Limits(message=2**20)")
@frozen(kw_only=True)
class Limits:
    """Bounds of what a bus lets its peers, its links and itself use.

    Sizes are bytes and times are seconds. All have safe defaults; pass ``Bus(limits=Limits(message=...))`` to change some.

    Raises:
        TypeError: A limit is no number.
        ValueError: A limit is negative, zero where that would stop everything, or an infinite time: everything ends.
    """

    message: int = field(default=_MIB, validator=at_least(1))
    """Largest frame, in and out."""
    payload: int = field(default=Factory(_payload_of, takes_self=True), validator=[at_least(1), _holds_a_message])
    """Largest payload of many messages, where a wire fetches or posts all that waits at once (J.REP over HTTP). It is read in
    pieces; each of its messages is bounded by `message`. If not given, eight times `message`, or of a larger one 8 MiB."""
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
    """Publications that wait in the queue of one subscription or `on` handler, each with its body and 200 bytes. As much again
    may be held back beyond that of what comes over links: for a full ``block`` queue, and for a reader that has been
    woken and has not had its turn."""
    running: int = field(default=64, validator=at_least(1))
    """Requests of one peer that run at the same time."""
    waiting: int = field(default=4096, validator=at_least(0))
    """Requests of one peer that wait for their turn; more are answered with `TooManyRequests`."""
    waiting_bytes: int = field(default=16 * _MIB, validator=at_least(1))
    """The same in bytes."""
    pending: int = field(default=65_536, validator=at_least(1))
    """Requests to one peer that wait for their answer; more raise `QueueFull`."""
    total_bytes: int = field(default=256 * _MIB, validator=at_least(1))
    """All outboxes, stuck connections, waiting requests and held-back messages of the bus together; shared out."""
    total_running: int = field(default=1024, validator=at_least(1))
    """Requests that run at the same time on the whole bus; shared out, unless `running` is as much."""
    threads: int = field(default=40, validator=at_least(1))
    """Threads of `def` handlers and `def` dependencies that run at the same time; other calls wait for one. A thread that waits
    in a blocking verb of polybus does not count. A clean-up, and a call that has a dependency, do not wait."""
    peers: int = field(default=10_000, validator=at_least(1))
    """Connections that the bus accepts in all."""
    peers_per_address: int = field(default=10_000, validator=at_least(1))
    """Connections that the bus accepts from one network address."""
    handshakes: int = field(default=100, validator=at_least(1))
    """Accepted connections that may be unauthenticated at the same time, per listener."""
    subscriptions: int = field(default=1024, validator=at_least(1))
    """Patterns that one peer may subscribe to."""
    channels: int = field(default=256, validator=at_least(1))
    """Streams, channels and tunnels that may be open on one peer, per direction."""
    hops: int = field(default=8, validator=at_least(0))
    """Bridges and tunnels that a message may cross, and how deep tunnels may nest."""
    bad_messages: int = field(default=200, validator=at_least(0))
    """Malformed messages a minute before a link is ended, or of many peers on one link that peer."""
    empty_frames: int = field(default=1000, validator=at_least(0))
    """Keep-alive frames a second before a link is ended."""
    handshake_timeout: float = field(default=5.0, validator=more_than_no_time)
    """For the upgrade, TLS and the protocol's own handshake together."""
    connect_timeout: float = field(default=10.0, validator=more_than_no_time)
    """For one attempt to reach a server."""
    frame_timeout: float = field(default=10.0, validator=more_than_no_time)
    """Without enough progress of a frame that has begun to arrive the link is ended: 512 bytes for each second of it."""
    write_timeout: float = field(default=10.0, validator=more_than_no_time)
    """Without any progress in writing the link is ended, however much waits."""
    ping_interval: float = field(default=15.0, validator=more_than_no_time)
    """Silence after which the peer is asked for a sign of life."""
    ping_timeout: float = field(default=8.0, validator=more_than_no_time)
    """Silence after that question which ends the link."""
    close_timeout: float = field(default=2.0, validator=more_than_no_time)
    """For an orderly close of one connection."""
