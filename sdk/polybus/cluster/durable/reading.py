"""Readings of what a store keeps, as `on` and `subscribe` are told of them: one goes on where it was, or reads anew."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any, ClassVar, Final

from attrs import frozen

from ..._validation import check_count, check_type, seconds, shown
from ...backoff import Backoff
from ...nodes import Start
from ...retry import Retry

RETRY: Final = Retry(attempts=5, backoff=Backoff(initial=1.0, maximum=60.0))
"""Attempts and pauses where nothing is said."""
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,100}")
_SHORTEST: Final = 1.0
_LONGEST: Final = 86_400.0
"""Seconds that a publication may be with a worker of which nothing is heard."""
MOST: Final = 20_000
"""Publications that all workers of a durable handler may be given at once."""
_YEARS: Final = 290
"""The longest that 64 bits of nanoseconds hold, which the engine has for times, and its largest number."""
_LARGEST: Final = (1 << 63) - 1
_USUAL: Final = Retry()


@frozen
class DurableSpec:
    """A durable handler or subscription. Implements `plugins.extensions.Reading`.

    Attributes:
        name: Workers that name the same share the publications, and the engine remembers how far they are.
        retry: How often, and after which pauses, a publication comes again.
        ack_wait: Seconds after which a publication comes again whose worker is not heard of any more.
        start: Where it begins when it is new.
        ordered: One publication at a time in the whole cluster.
    """

    unread: ClassVar[int] = 1
    settled: ClassVar[bool] = True
    name: str
    retry: Retry = RETRY
    ack_wait: float = 30.0
    start: Start = "all"
    ordered: bool = False


@frozen
class ReplaySpec:
    """A subscription that reads what is stored and leaves no trace of itself. Implements `plugins.extensions.Reading`.

    Attributes:
        start: Where it begins.
    """

    name: ClassVar[str] = ""
    unread: ClassVar[int] = 64
    settled: ClassVar[bool] = False
    start: Start


def reading_of(
    durable: Any,
    retry: Any,
    ack_wait: Any,
    start: Any,
    ordered: Any,
    group: Any,
    concurrency: int,
    of_handler: tuple[int | None, str] | None,
) -> DurableSpec | ReplaySpec | None:
    """Check what `on` or `subscribe` was given for what a store keeps; None where it is for what is published meanwhile.

    Args:
        of_handler: Its `queue` and `when_full`; None for a subscription.

    Raises:
        TypeError, ValueError: As `durable_spec`.
    """
    if of_handler is None and durable is None and start is not None:
        if group is not None:
            raise ValueError(f"start={shown(start)} and group={group!r}: to share what is stored say durable='billing' alone")
        _ = durable_spec(None, retry, ack_wait, None, ordered, group=None, concurrency=1)
        return ReplaySpec(_start(start))
    spec = durable_spec(durable, retry, ack_wait, start, ordered, group=group, concurrency=concurrency)
    if spec is not None and of_handler is not None:
        _check_no_effect(spec.name, *of_handler)
    return spec


def durable_spec(
    durable: Any, retry: Any, ack_wait: Any, start: Any, ordered: Any, *, group: Any, concurrency: int
) -> DurableSpec | None:
    """Check what `on` or `subscribe` was given for a durable one; None where it is none.

    Raises:
        TypeError, ValueError: An argument is not what it should be, or goes with a durable one alone, or not with one.
    """
    if durable is None:
        for name, value in (("retry", retry), ("ack_wait", ack_wait), ("start", start), ("ordered", ordered or None)):
            if value is not None:
                raise ValueError(f"{name}={shown(value)} goes with durable= alone: say durable='billing', too")
        return None
    check_durable_name(durable)
    if group is not None:
        raise ValueError(f"durable={durable!r} and group={group!r}: workers of one durable= share its work; leave out group=")
    check_type(retry, Retry, "retry", "retry=Retry(attempts=5, backoff=(1, 5, 30))")
    wait = 30.0 if ack_wait is None else seconds(ack_wait, "ack_wait")
    if not _SHORTEST <= wait <= _LONGEST:
        raise ValueError(f"ack_wait={shown(ack_wait)}: {_SHORTEST:g} to {_LONGEST:g} seconds")
    if not isinstance(ordered, bool):
        raise TypeError(f"ordered={shown(ordered)}: True or False, not {type(ordered).__name__}")
    if concurrency > MOST:
        raise ValueError(f"concurrency={concurrency}: at most {MOST} with durable=, for all of its workers together")
    if ordered and concurrency > 1:
        raise ValueError(f"ordered=True is one at a time: not with concurrency={concurrency}")
    return DurableSpec(durable, RETRY if retry is None else _retry(retry, durable), wait, _start(start), ordered)


def check_durable_name(durable: object) -> None:
    """Raise TypeError or ValueError for what cannot be the name of a durable handler."""
    if not isinstance(durable, str):
        raise TypeError(f"durable={shown(durable)}: a name, for example durable='billing', not {type(durable).__name__}")
    if not _NAME.fullmatch(durable):
        raise ValueError(f"durable={durable!r:.60}: 1 to 100 letters, digits, '-' and '_'")


def _check_no_effect(durable: str, queue: int | None, when_full: str) -> None:
    """Raise ValueError where a durable handler is given what is for others, and does nothing."""
    for name, value, usual in (("queue", queue, None), ("when_full", when_full, "drop_oldest")):
        if value != usual:
            raise ValueError(
                f"{name}={value!r} has no effect with durable={durable!r}: concurrency= is how many this worker has at once, "
                "and the others wait in the store"
            )


def check_pause(pause: float, name: str) -> None:
    """Raise ValueError for a pause that is longer than the engine can count."""
    if pause >= timedelta(days=_YEARS * 365).total_seconds():
        raise ValueError(f"{name}={shown(pause)}: less than {_YEARS} years, in seconds")


def _retry(retry: Retry, durable: str) -> Retry:
    for name, value, usual in (("idempotent=True", retry.idempotent, False), ("codes=...", retry.codes, _USUAL.codes)):
        if value != usual:
            raise ValueError(
                f"Retry({name}) has no effect with durable={durable!r}: whatever the function raises, it is given the "
                "publication again"
            )
    pauses = (retry.backoff.maximum,) if isinstance(retry.backoff, Backoff) else retry.backoff
    check_pause(max(pauses), "backoff")
    return retry


def _start(start: Any) -> Start:
    if start is None:
        return "all"
    if isinstance(start, timedelta):
        if start <= timedelta():
            raise ValueError(f"start={shown(start)}: longer than no time")
        if start >= timedelta(days=_YEARS * 365):
            raise ValueError(f"start={shown(start)}: shorter than {_YEARS} years; 'all' is all that is stored")
        return start
    if isinstance(start, int) and not isinstance(start, bool):
        check_count(start, "start", 1, _LARGEST)
        return start
    if start not in ("all", "new"):
        raise ValueError(f"start={shown(start)}: 'all', 'new', a timedelta, or the number of a publication")
    return "all" if start == "all" else "new"
