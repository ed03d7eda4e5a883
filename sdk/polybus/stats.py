"""Counters and their snapshot."""

from __future__ import annotations

from attrs import define, frozen

__all__ = ["Counters", "DurableStats", "Stats"]


@define(slots=True, eq=False, repr=False)
class Counters:
    """Counters of a running bus; never reset."""

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
    """State of one durable handler of a bus, as reported by the engine within the last ten seconds.

    Attributes:
        durable: Name of the handler. All workers with that name see the same figures.
        store: Stream of the engine with its publications.
        pending: Stored publications that wait for a worker: the backlog.
        given: Publications that workers hold, or that wait for a retry.
        redelivered: Publications among `given` with more than one delivery.
        dead_letters: Stored dead letters of this handler; None if none are stored, or the engine cannot count them.
    """

    durable: str
    store: str
    pending: int
    given: int
    redelivered: int
    dead_letters: int | None


@frozen(kw_only=True)
class Stats:
    """A snapshot of a bus: `Bus.stats()`.

    Attributes:
        links: Connections, up or reconnecting.
        peers: Peers on them.
        pending: Our requests that wait for their answers.
        running: Requests of peers with running handlers.
        waiting: Requests of peers that wait for a slot.
        queued: Messages in all outboxes.
        unread: Publications in the queues of subscriptions and `on` handlers.
        sent: Messages handed to a connection.
        received: Messages received.
        dropped: Publications dropped by a policy; publications and notifications that did not fit; answers past their ttl.
        late: Answers after the end of their request.
        malformed: Frames and messages that violated the protocol.
        refused: Requests and subscriptions that were forbidden, unknown, or too many.
        failed: Handlers that raised an unexpected exception.
        reconnects: Links that came back.
        durables: Durable handlers of this bus. Empty for the first ten seconds, and while the engine is away.
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
