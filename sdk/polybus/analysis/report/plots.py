"""The plots of the report: SVG for the inside of HTML, drawn by matplotlib. Text stays text, to be searched and read aloud."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import matplotlib
import matplotlib.dates
import matplotlib.ticker
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

Rows = Sequence[dict[str, Any]]

_TEXT, _LINE = "#010203", "#030201"
"""Colours that become those of the page, which is light or dark."""
_STYLE: Final[Any] = {
    "svg.fonttype": "none",
    # Names of subjects come from peers: a dollar sign in them is no formula.
    "text.parse_math": False,
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": _LINE,
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), _TEXT),
    **dict.fromkeys(("figure.facecolor", "axes.facecolor"), "none"),
    "axes.axisbelow": True,
    "figure.constrained_layout.use": True,
}
_BLUE, _RED, _GREY = "#2f6fb3", "#c2413b", "#b9bcc4"
_LONGEST: Final = 28
_WIDTH: Final = 4.8
"""Inches of 72 points; text is 9 points high."""


def _drawn(name: str, draw: Callable[[Any], None], height: float = 2.8) -> str:
    """An SVG element; a phone shows it a little smaller, and can be read without zooming."""
    with matplotlib.rc_context({**_STYLE, "svg.hashsalt": name}), warnings.catch_warnings():
        # The browser has letters that the font for measuring lacks.
        warnings.filterwarnings("ignore", message="Glyph .* missing from", category=UserWarning)
        figure = Figure(figsize=(_WIDTH, height))
        draw(figure.subplots())
        buffer = io.StringIO()
        # Not `savefig`, which would draw all of it twice, the first time only to place it.
        canvas: Any = FigureCanvasSVG(figure)
        canvas.print_svg(buffer, metadata={"Date": None, "Creator": None})
    svg = buffer.getvalue()
    return svg[svg.index("<svg") :].replace(_TEXT, "var(--text)").replace(_LINE, "var(--line)")


def _short(text: str | None) -> str:
    """The begin and, since that is where names differ, more of the end."""
    shown = "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text or "(none)")
    begin = _LONGEST // 3
    return shown if len(shown) <= _LONGEST else f"{shown[:begin]}…{shown[begin + 1 - _LONGEST :]}"


def _moment(ns: int) -> datetime:
    return datetime.fromtimestamp(ns / 1e9, UTC)


def _times(axes: Any) -> None:
    dates: Any = matplotlib.dates
    locator = dates.AutoDateLocator(minticks=3, maxticks=7)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator))


def _logarithmic(axis: Any) -> None:
    # The usual labels of such an axis are formulas. One at each power of ten, and where there are few also in between.
    axis.set_major_formatter(matplotlib.ticker.StrMethodFormatter("{x:,.9g}"))
    axis.set_minor_formatter(_FewMinors(labelOnlyBase=False, minor_thresholds=(1.5, 0.5)))


class _FewMinors(matplotlib.ticker.LogFormatter):
    """Labels between the powers of ten, where these are far apart, as plain numbers."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        return f"{x:,.9g}" if super().__call__(x, pos) else ""


def throughput(rows: Rows, width_ns: int) -> str:
    """Messages a second, stacked by subject."""
    windows = sorted({row["window_ns"] for row in rows})
    first, last = windows[0], windows[-1]
    # Windows in which nothing happened are there too.
    every = list(range(first, last + 1, width_ns))
    place = {window: index for index, window in enumerate(every)}
    names = sorted({row["subject"] for row in rows if row["subject"]}) + [None]
    seconds = width_ns / 1e9

    def draw(axes: Any) -> None:
        below = [0.0] * len(every)
        colours = [matplotlib.colormaps["tab10"](number) for number in range(10)]
        for number, name in enumerate(names):
            heights = [0.0] * len(every)
            for row in rows:
                if (row["subject"] or None) == name:
                    heights[place[row["window_ns"]]] += row["n"] / seconds
            colour = _GREY if name is None else colours[number % len(colours)]
            label = "others" if name is None else _short(name)
            days = [_moment(window + width_ns // 2) for window in every]
            axes.bar(days, heights, seconds / 86_400, bottom=below, color=colour, label=label)
            below = [a + b for a, b in zip(below, heights, strict=True)]
        axes.set_ylabel("messages/s")
        _times(axes)
        axes.legend(fontsize=8, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.16), frameon=False)

    return _drawn("throughput", draw, 3.8)


def histogram(rows: Rows) -> str:
    """Histogram of latencies; both axes are logarithmic."""

    def draw(axes: Any) -> None:
        lefts = [row["from_ns"] / 1e6 for row in rows]
        widths = [left * (10**0.2 - 1) for left in lefts]
        axes.bar(lefts, [row["n"] for row in rows], widths, align="edge", color=_BLUE)
        axes.set_xscale("log")
        axes.set_yscale("log")
        _logarithmic(axes.xaxis)
        _logarithmic(axes.yaxis)
        axes.set_xlabel("latency, ms")
        axes.set_ylabel("answers")

    return _drawn("histogram", draw)


def latency_over_time(rows: Rows, width_ns: int) -> str:
    """p50 and p95 of each window."""
    answered = [row for row in rows if row["p50_ns"] is not None]

    def draw(axes: Any) -> None:
        times = [_moment(row["window_ns"] + width_ns // 2) for row in answered]
        for name, colour in (("p95", _RED), ("p50", _BLUE)):
            # The axis has no place for none at all, which a coarse clock may say.
            heights = [max(row[f"{name}_ns"], 1) / 1e6 for row in answered]
            axes.plot(times, heights, ".-", color=colour, label=name, linewidth=1)
        axes.set_yscale("log")
        _logarithmic(axes.yaxis)
        axes.set_ylabel("latency, ms")
        if len(set(times)) == 1:  # matplotlib would show years around it
            axes.set_xlim(*(_moment(answered[0]["window_ns"] + shift * width_ns) for shift in (-1, 2)))
        _times(axes)
        axes.legend(fontsize=8, frameon=False)

    return _drawn("latency", draw)


def errors(rows: Rows) -> str:
    """Number of failed exchanges by code."""
    counts: dict[str, int] = {}
    for row in rows:
        name = f"{row['code_name'] or 'code'} ({row['code']})"
        counts[name] = counts.get(name, 0) + row["n"]
    most = sorted(counts.items(), key=lambda pair: pair[1])[-12:]

    def draw(axes: Any) -> None:
        axes.barh([_short(name) for name, _ in most], [n for _, n in most], color=_RED)
        axes.set_xlabel("exchanges")

    return _drawn("errors", draw, 1.0 + 0.28 * len(most))


def sessions(rows: Rows) -> str:
    """From when to when each connection was there; the longest ones."""
    longest = sorted(rows, key=lambda row: row["first_ns"] - row["last_ns"])[:24]
    shown = sorted(longest, key=lambda row: row["first_ns"], reverse=True)

    def draw(axes: Any) -> None:
        for number, row in enumerate(shown):
            begin, end = _moment(row["first_ns"]), _moment(row["last_ns"])
            axes.plot([begin, end], [number, number], color=_BLUE, linewidth=4, solid_capstyle="butt", marker="|")
        axes.set_yticks(range(len(shown)), [_short(f"{row['protocol']} {row['conn_id']}") for row in shown])
        axes.margins(x=0.02)
        _times(axes)

    return _drawn("sessions", draw, 1.0 + 0.24 * len(shown))
