"""Counters of a bus, and snapshots of them."""

from __future__ import annotations

from attrs import define, frozen

__all__ = ["Counters", "DurableStats", "Stats"]


@define(slots=True, eq=False, repr=False)
class Counters:
    """Counters of a running bus. They are never reset."""

    sent: int = 0
    received: int = 0
    dropped: int = 0
    late: int = 0
    malformed: int = 0
    refused: int = 0
    failed: int = 0
    reconnects: int = 0


@frozen(kw_only=True)
class DurableStats:
    """State of a durable handler, as the engine reported it within the last ten seconds.

    Attributes:
        durable: Name of the handler. All workers with that name see the same figures.
        store: Name of the stream in the engine that stores its messages.
        available: False while the engine does not report on the store or on its dead letters. The affected numbers are then
            None.
        pending: The backlog: number of stored messages that wait for a worker.
        unacknowledged: Number of messages that workers are processing or that wait for a retry.
        redelivered: Number of unacknowledged messages that have been delivered more than once.
        dead_letters: Number of dead letters stored for this handler, or None while none is known.
    """

    durable: str
    store: str
    available: bool
    pending: int | None
    unacknowledged: int | None
    redelivered: int | None
    dead_letters: int | None


@frozen(kw_only=True)
class Stats:
    """A snapshot of a bus, as returned by `Bus.stats()`.

    Attributes:
        links: Number of connections, established or reconnecting.
        peers: Number of peers on these connections.
        pending: Requests from this bus that are waiting for an answer.
        running: Requests from peers that handlers are processing.
        waiting: Requests from peers that are waiting for a slot.
        queued: Messages in all outboxes.
        unread: Publications in the queues of subscriptions and `on` handlers.
        sent: Messages passed to a connection.
        received: Messages received.
        dropped: Publications dropped by a policy, publications and notifications that did not fit, and answers sent too late.
        late: Answers that arrived after their request had ended.
        malformed: Frames and messages that violated the protocol.
        refused: Requests and subscriptions that were forbidden, unknown or too many.
        failed: Calls of handlers that raised an unexpected exception.
        reconnects: Number of times that a link reconnected.
        durables: Durable handlers of this bus. The tuple is empty for the first ten seconds.
    """

    links: int
    peers: int
    pending: int
    running: int
    waiting: int
    queued: int
    unread: int
    sent: int
    received: int
    dropped: int
    late: int
    malformed: int
    refused: int
    failed: int
    reconnects: int
    durables: tuple[DurableStats, ...] = ()
