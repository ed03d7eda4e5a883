"""Durations and outcomes of handlers, by the subject that each was registered for."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate
from math import inf, isfinite
from time import perf_counter
from typing import Any, Final

from attrs import define, field
from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

from .._core.runtime.context import Context
from .._core.runtime.executor import CallNext
from .._core.runtime.outcomes import kind_of, told_code
from .._validation import shown
from ..message import Kind, Message

BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

_DURATION: Final = "polybus_handler_duration_seconds", "Seconds that handlers took, by the subject they are registered for."
_OUTCOMES: Final = "polybus_handler_outcomes_total", "Ends of handlers, by the code that their asker was told."


@define(eq=False)
class Tally:
    """The calls of one handler."""

    kind: Kind
    counts: list[int]
    """Calls by bucket; the last one is for those above all bounds."""
    seconds: float = 0.0
    outcomes: dict[str, int] = field(factory=dict)


class Durations:
    """A middleware that times handlers and counts their outcomes: ``bus.use(Durations())``.

    `collector` then shows ``polybus_handler_duration_seconds`` and ``polybus_handler_outcomes_total``. Their labels are the
    kind of call (``request``, ``notify``, ``publish``, ``stream``, ``channel``) and the subject or pattern that the handler was
    registered for, of what only passes through the source of its route; never the subject of a message: peers cannot make more
    of them. Of a stream or channel it is the time of the whole conversation.

    Args:
        buckets: Upper bounds of the histogram, in seconds; an infinite one at the end may be left out.

    Raises:
        TypeError: `buckets` are no numbers.
        ValueError: They do not rise from above 0, or there are none.
    """

    def __init__(self, buckets: Sequence[float] = BUCKETS) -> None:
        try:
            bounds = [bound + 0.0 for bound in buckets]
        except TypeError:
            raise TypeError(f"Durations(buckets={shown(buckets)}): seconds, for example (0.01, 0.1, 1)") from None
        if bounds[-1:] == [inf]:  # as in `prometheus_client.Histogram.DEFAULT_BUCKETS`: it is there anyway
            bounds.pop()
        if not bounds or not all(map(isfinite, bounds)) or bounds != sorted(set(bounds)) or bounds[0] <= 0:
            raise ValueError(f"Durations(buckets={shown(buckets)}): one or more that rise, above 0, for example (0.01, 0.1, 1)")
        self._bounds = bounds
        self._labels = [*map(str, bounds), "+Inf"]
        self._tallies: dict[tuple[str, str | int], Tally] = {}
        """By kind and registered subject, so no more than there are handlers and routes."""
        self._recent: dict[str | int, Tally] = {}
        """The one of the last call by registered subject, which mostly has one kind."""

    async def __call__(self, message: Message, ctx: Context, call_next: CallNext) -> Any:
        pattern, kind = ctx.pattern, message.kind
        tally = self._recent.get(pattern)
        if tally is None or tally.kind is not kind:
            tally = self._tally(message, pattern)
        outcome = "OK"
        began = perf_counter()
        try:
            return await call_next(message)
        except BaseException as error:
            outcome = told_code(error, kind).name
            raise
        finally:
            took = perf_counter() - began
            tally.counts[bisect_left(self._bounds, took)] += 1
            tally.seconds += took
            outcomes = tally.outcomes
            outcomes[outcome] = outcomes.get(outcome, 0) + 1

    def _tally(self, message: Message, pattern: str | int) -> Tally:
        kind = kind_of(message)
        tally = self._tallies.get((kind, pattern))
        if tally is None:
            tally = self._tallies[kind, pattern] = Tally(message.kind, [0] * len(self._labels))
        if message.kind is not Kind.OPEN:  # of which there are two
            self._recent[pattern] = tally
        return tally

    def describe(self) -> Iterator[Metric]:
        """Give the families without their values."""
        yield HistogramMetricFamily(*_DURATION, labels=("kind", "subject"))
        yield CounterMetricFamily(*_OUTCOMES, labels=("kind", "subject", "code"))

    def collect(self) -> Iterator[Metric]:
        """Give the families with their values now."""
        durations = HistogramMetricFamily(*_DURATION, labels=("kind", "subject"))
        outcomes = CounterMetricFamily(*_OUTCOMES, labels=("kind", "subject", "code"))
        for (kind, pattern), tally in list(self._tallies.items()):
            labels = [kind, str(pattern)]
            buckets = list(zip(self._labels, accumulate(tally.counts), strict=True))
            durations.add_metric(labels, buckets, tally.seconds)
            for outcome, count in list(tally.outcomes.items()):
                outcomes.add_metric([*labels, outcome], count)
        yield durations
        yield outcomes
