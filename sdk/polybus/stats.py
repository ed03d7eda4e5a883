"""Counters and their snapshot."""

from __future__ import annotations

from attrs import define, frozen

__all__ = ["Counters", "DurableStats", "Stats"]


@define(slots=True, eq=False)
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
    """The state of one durable handler of a bus, as the engine that stores told it within the last ten seconds.

    Attributes:
        durable: The name of the handler. All workers that name it see the same figures.
        store: The stream of the engine with its publications.
        pending: Stored publications that wait for a worker: the backlog.
        given: Publications that workers have, or that come again after a failure.
        redelivered: Publications of these that were given out more than once.
        dead_letters: Dead letters of this handler that are kept; None where none are kept, or the engine cannot count them.
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
        links: Connections, up or coming back.
        peers: Peers on them.
        pending: Requests of ours that wait for their answer.
        running: Requests of others whose handlers run.
        waiting: Requests of others that wait for a place.
        queued: Messages in all outboxes.
        unread: Publications that wait in the queues of subscriptions and `on` handlers.
        sent: Messages given to a connection.
        received: Messages that came in.
        dropped: Publications dropped by a policy, or skipped because they did not fit, as notifications are; answers whose own
            ttl was over.
        late: Answers that nobody waited for any more.
        malformed: Frames and messages that broke a rule of the wire.
        refused: Requests and subscriptions that were not allowed, not known, or too many.
        failed: Handlers that raised what they did not mean as an answer.
        reconnects: Links that came back.
        durables: The durable handlers of this bus. Empty for the first ten seconds, and while the engine is away.
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
