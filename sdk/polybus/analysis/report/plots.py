"""Computes the report's plots as shapes in pixels, which the ``plots.html`` template draws as SVG."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import ceil, floor, log10
from typing import Any, ClassVar, Final

import attrs

from ...plugins.tools import in_one_line
from .words import moment

Rows = Sequence[dict[str, Any]]

_INSIDE, _FOOT, _LINE, _MARGIN, _LETTER = 150, 42, 14, 10, 5.6
"""Pixels of the plot's height, of the space below it, of a legend line, of the space next to the legend, and of a letter."""
_LONGEST: Final = 28
_RED, _GREY = "#c2413b", "#9a9ea8"
_COLOURS: Final = "#2f6fb3 #e08214 #3b9a4b #8a63b8 #c2413b #8c5a4a #d467ab #8f8f1a".split()
_SECOND, _MINUTE, _DAY = 10**9, 60 * 10**9, 86_400 * 10**9
_STEPS_NS: Final = (
    *(n * 10**power for power in (6, 7, 8) for n in (1, 2, 5)),
    *(n * size for size in (_SECOND, _MINUTE) for n in (1, 2, 5, 10, 15, 30)),
    *(n * 60 * _MINUTE for n in (1, 2, 6, 12)),
    *(n * 10**power * _DAY for power in range(6) for n in (1, 2, 5)),
)
_PARTS: Final = {_DAY: (0, 10), _MINUTE: (11, 16), _SECOND: (11, 19), 0: (17, 23)}
"""The part of a time that a tick label shows, by the distance between ticks."""


@attrs.frozen
class Axis:
    low: float
    high: float
    ticks: Sequence[tuple[float, str]]
    label: str = ""
    scale: Callable[[float], float] = lambda number: number
    timed: bool = False

    def share(self, number: float) -> float:
        low, high = self.scale(self.low), self.scale(self.high)
        return min(max((self.scale(number) - low) / (high - low), 0.0), 1.0)


def _linear(high: float, label: str) -> Axis:
    steps = (n * 10.0**power for power in range(-3, 30) for n in (1, 2, 5))
    step = next(step for step in steps if high <= 5 * step)
    return Axis(0, high or 1, [(n * step, f"{n * step:,.9g}") for n in range(floor(high / step) + 1)], label)


def _logarithmic(numbers: Iterable[float], label: str) -> Axis:
    found = sorted(numbers)
    low, high = found[0] * 0.7, found[-1] * 1.3
    powers = range(floor(log10(low)), ceil(log10(high)) + 1)
    # At powers of ten, or some of them; a short axis has ticks between them.
    ticks = [n * 10.0**power for power in powers[:: 1 + len(powers) // 8] for n in ((1, 2, 5) if len(powers) < 4 else (1,))]
    return Axis(low, high, [(tick, f"{tick:,.9g}") for tick in ticks if low <= tick <= high], label, log10)


def _times(low: int, high: int) -> Axis:
    step = next(step for step in _STEPS_NS if high - low <= 5 * step)
    begin, end = next(part for size, part in _PARTS.items() if step >= size)
    ticks = range(-(-low // step) * step, high + 1, step)
    return Axis(low, max(high, low + 1), [(tick, moment(tick)[begin:end]) for tick in ticks], f"from {moment(low)}", timed=True)


def _short(text: str | None) -> str:
    """Shorten a name to its beginning and a longer part of its end, where names usually differ."""
    shown = in_one_line(text or "(none)")
    begin = _LONGEST // 3
    return shown if len(shown) <= _LONGEST else f"{shown[:begin]}…{shown[begin + 1 - _LONGEST :]}"


@attrs.frozen
class Plot:
    """Shapes between two axes. The plot is wide enough to be readable on a phone without zooming."""

    width: ClassVar[int] = 360
    right: ClassVar[int] = 338
    top: ClassVar[int] = 10
    name: str
    across: Axis
    up: Axis
    shapes: list[tuple[str, str, str]] = attrs.Factory(list)
    """Colour, legend text and path of each shape."""
    lines: bool = False

    @property
    def left(self) -> float:
        return 20 + _LETTER * max((len(said) for _, said in self.up.ticks), default=0)

    @property
    def bottom(self) -> int:
        return self.top + _INSIDE

    @property
    def height(self) -> int:
        return self.bottom + _FOOT + _LINE * ceil(len(self._entries) / 2)

    @property
    def _entries(self) -> list[tuple[str, str]]:
        return [(colour, text) for colour, text, _ in self.shapes if text]

    def legend(self) -> Iterator[tuple[int, int, str, str]]:
        for number, (colour, text) in enumerate(self._entries):
            yield _MARGIN + number % 2 * self.width // 2, self.bottom + _FOOT - 8 + number // 2 * _LINE, colour, text

    def x(self, number: float) -> float:
        return round(self.left + self.across.share(number) * (self.right - self.left), 1)

    def y(self, number: float) -> float:
        return round(self.top + (1 - self.up.share(number)) * _INSIDE, 1)

    def add(self, colour: str, bars: Iterable[tuple[float, float, float, float]], text: str = "") -> Plot:
        places = [(self.x(left), self.x(right), self.y(low), self.y(high)) for left, right, low, high in bars]
        # At least one pixel wide, to be visible.
        path = "".join(f"M{left} {low}H{max(right, left + 1)}V{high}H{left}z" for left, right, low, high in places)
        self.shapes.append((colour, text, path))
        return self


def throughput(rows: Rows, width_ns: int) -> Plot:
    counts, below = Counter[tuple[int, str | None]](), Counter[int]()
    for row in rows:
        counts[row["window_ns"], row["subject"] or None] += row["n"]
        below[row["window_ns"]] += row["n"]
    per_second, windows = 1e9 / width_ns, sorted(below)
    across, up = _times(windows[0], windows[-1] + width_ns), _linear(max(below.values()) * per_second, "messages/s")
    plot = Plot("Messages a second, by subject", across, up)
    below.clear()
    for number, name in enumerate([*sorted({name for _, name in counts if name is not None}), None]):
        bars = []
        for window in windows:
            begin = below[window] * per_second
            below[window] += counts[window, name]
            bars.append((window, window + width_ns, begin, below[window] * per_second))
        plot.add(
            _GREY if name is None else _COLOURS[number % len(_COLOURS)], bars, "all others" if name is None else _short(name)
        )
    return plot


def histogram(rows: Rows) -> Plot:
    bars = [(row["from_ns"] / 1e6, row["from_ns"] * 10**0.2 / 1e6, max(row["n"], 1)) for row in rows]
    across = _logarithmic((edge for left, right, _ in bars for edge in (left, right)), "latency, ms")
    up = _logarithmic((n for *_, n in bars), "answers")
    return Plot("Answers by latency", across, up).add(_COLOURS[0], [(left, right, up.low, n) for left, right, n in bars])


def latency_over_time(rows: Rows, width_ns: int) -> Plot:
    answered = [row for row in rows if row["p50_ns"] is not None]
    # A coarse clock may give 0, which a logarithmic axis lacks.
    heights = {name: [max(row[f"{name}_ns"], 1) / 1e6 for row in answered] for name in ("p95", "p50")}
    across = _times(answered[0]["window_ns"], answered[-1]["window_ns"] + width_ns)
    up = _logarithmic((height for some in heights.values() for height in some), "latency, ms")
    plot = Plot("Latency over time", across, up, lines=True)
    for (name, some), colour in zip(heights.items(), (_RED, _COLOURS[0]), strict=True):
        points = (f"{plot.x(row['window_ns'] + width_ns / 2)} {plot.y(one)}" for row, one in zip(answered, some, strict=True))
        # The dash at the last point makes a single point visible.
        plot.shapes.append((colour, name, f"M{'L'.join(points)}m-2 0h4"))
    return plot
