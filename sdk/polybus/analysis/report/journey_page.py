"""Journeys as HTML: a waterfall of the hops, a sequence of the frames drawn as SVG, and the same frames as a table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any, Final

from . import html_tables
from .words import duration, moment, shortened

Row = dict[str, Any]

TITLE: Final = "Journeys"
_KINDS: Final = {"failed": "Failed", "unanswered": "Never answered", "slowest": "Slowest"}
_LANE, _LINE, _HEAD, _LEFT = 168, 26, 40, 80
"""Pixels between two lanes and two frames, above the first frame, and left of the first lane."""
_LETTERS: Final = 26
_FRAMES: Final = 40
"""Frames of a journey that are drawn."""


def journeys(found: Sequence[Row]) -> str:
    """The section: of each kind the journeys, of which that with most hops is open."""
    if not found:
        return html_tables.NOTHING
    parts = [_INTRO]
    for kind, title in _KINDS.items():
        some = [(number, row) for number, row in enumerate(found, 1) if row["why"] == kind]
        if some:
            longest = max(some, key=lambda one: len(one[1]["hops"]))
            made = "".join(_journey(number, row, opened=row is longest[1]) for number, row in some)
            parts.append(f"<h3>{title}</h3>{made}")
    return "".join(parts)


_INTRO: Final = (
    "<p>A few exchanges of each kind, with what they led to: the same request at other places, and beyond a bridge. "
    "A bridge gives a request a new id. That two belong together is known by an id, a trace, or the same name and body in one "
    "recording; what only fits is listed apart: it may belong to it. <code>polybus journey</code> shows any other one, by id, "
    "subject or time.</p>"
)


def _journey(number: int, row: Row, *, opened: bool) -> str:
    took = f"after {duration(row['latency_ns'])}" if row["latency_ns"] is not None else "no answer"
    ended = f"{row['outcome']}{' with ' + str(row['code_name'] or row['code']) if row['code'] else ''}"
    title = f"{shortened(row['subject'] or 'no subject')}: {ended}, {took}"
    where = f"{row['protocol']}, {moment(row['request_time_ns'])}, id {shortened(row['correlation_id'] or '')}"
    return (
        f'<details id="journey-{number}"{" open" * opened}{html_tables.marks(row)}><summary><b>{escape(title)}</b> '
        f"({escape(where)})</summary>{_waterfall(row['hops'])}{_may_be(row)}{_sequence(row['frames'], row['hops'])}"
        f"{_table(row['frames'])}</details>"
    )


# -- waterfall ---------------------------------------------------------------------------------------------------------------


def _may_be(row: Row) -> str:
    return f"<p>These may belong to it:</p>{_waterfall(row['may_be'])}" if row["may_be"] else ""


def _waterfall(hops: Sequence[Row]) -> str:
    whole = max((hop["at_ns"] + (hop["latency_ns"] or 0) for hop in hops), default=0) or 1
    lines = "".join(_hop(hop, whole) for hop in hops)
    heads = ("way", "connection", "from begin to end", "took", "ended", "subject", "began", "known by")
    return f'<div class="hops">{html_tables.scrolled(html_tables.headed(heads), lines)}</div>'


def _hop(hop: Row, whole: int) -> str:
    left, latency = 100 * max(0, hop["at_ns"]) / whole, hop["latency_ns"]
    width = 100 * (latency if latency is not None else max(0, whole - hop["at_ns"])) / whole
    looks = " ".join(["bad"] * (hop["outcome"] != "ok") + ["open"] * (latency is None))
    bar = f'<i class="{looks}" style="margin-left:{left:.2f}%;width:{min(width, 100 - left):.2f}%"></i>'
    ended = hop["outcome"] + (f" {hop['code_name']}" if hop["outcome"] == "error" and hop["code_name"] else "")
    took = "" if latency is None else duration(latency)
    before = "in" if hop["direction"] else "out", _connection(hop)
    # A phone shows the first columns: the bars are among them.
    after = took, ended, shortened(hop["subject"] or ""), duration(hop["at_ns"]), hop["known_by"]
    return f'<tr>{_cells(before)}<td class="bar">{bar}</td>{_cells(after)}</tr>'


def _cells(texts: Iterable[str]) -> str:
    return "".join(f"<td>{html_tables.text(text)}</td>" for text in texts)


def _connection(row: Row) -> str:
    through = f" in {' in '.join(reversed(row['tunnel']))}" if row.get("tunnel") else ""
    return f"{row['protocol']}{shortened(through)} {shortened(row['peer'] or '')}".strip()


# -- sequence ----------------------------------------------------------------------------------------------------------------


def _sequence(frames: Sequence[Row], hops: Sequence[Row]) -> str:
    """The frames as arrows between who recorded them and the other ends of the connections."""
    shown = frames[:_FRAMES]
    if not shown:
        return ""
    lanes, names = _lanes(shown, hops)
    places = {lane: _LEFT + number * _LANE for number, lane in enumerate(lanes)}
    width, height = _LEFT + (len(lanes) - 1) * _LANE + _LEFT, _HEAD + len(shown) * _LINE + 12
    parts = [_lane(places[lane], names[lane], height) for lane in lanes]
    parts += [_arrow(frame, places, _HEAD + 16 + number * _LINE) for number, frame in enumerate(shown)]
    return (
        f'<div class="scroll"><svg class="sequence" role="img" aria-label="Sequence of frames" viewBox="0 0 {width} {height}" '
        f'style="width:{width}px;height:{height}px">{"".join(parts)}</svg></div>'
    )


def _lanes(frames: Sequence[Row], hops: Sequence[Row]) -> tuple[list[Any], dict[Any, str]]:
    """Lanes from left to right: of each recording those that ask it, itself, and those that it asks."""
    tunnels = {(hop["capture_id"], hop["conn_id"]): hop for hop in hops}
    asking: dict[Any, dict[Any, None]] = {}
    asked: dict[Any, dict[Any, None]] = {}
    names: dict[Any, str] = {}
    for frame in frames:
        here, link = frame["capture_id"], (frame["capture_id"], frame["conn_id"])
        asking.setdefault(here, {})
        asked.setdefault(here, {})
        names.setdefault(here, f"recording {len(asking)}")
        if link not in names:
            names[link] = _connection(tunnels.get(link, frame))
            side = asking if frame["direction"] else asked
            side[here][link] = None
    if len(asking) == 1:
        names[next(iter(asking))] = "here"
    return [lane for here in asking for lane in (*asking[here], here, *asked[here])], names


def _lane(x: int, name: str, height: int) -> str:
    cut = name if len(name) <= _LETTERS else f"{name[: _LETTERS // 2 - 1]}…{name[-_LETTERS // 2 :]}"
    words = f'<text x="{x}" y="16" text-anchor="middle">{escape(cut)}<title>{escape(name)}</title></text>'
    return f'{words}<line class="lane" x1="{x}" y1="24" x2="{x}" y2="{height}"/>'


def _arrow(frame: Row, places: dict[Any, int], y: int) -> str:
    here, there = places[frame["capture_id"]], places[frame["capture_id"], frame["conn_id"]]
    begin, end = (there, here) if frame["direction"] else (here, there)
    point = 6 if end < begin else -6
    kind = "carries" if frame["carries"] else frame["kind"]
    words = f"{kind}, {frame['nbytes']:,} B, {_at(frame)}"
    looks = ' class="carries"' if frame["carries"] else ""
    return (
        f'<line{looks} x1="{begin}" y1="{y}" x2="{end}" y2="{y}"/>'
        f'<path class="quiet" d="M{end} {y}l{point} -4v8z"/>'
        f'<text x="{(begin + end) // 2}" y="{y - 4}" text-anchor="middle">{escape(words)}</text>'
    )


def _at(frame: Row) -> str:
    return ("-" if frame["at_ns"] < 0 else "+") + duration(abs(frame["at_ns"]))


def _table(frames: Sequence[Row]) -> str:
    if not frames:
        return ""
    heads = html_tables.headed(("at", "way", "what", "connection", "bytes", "frame", "recording"))
    made = html_tables.scrolled(heads, "".join(f"<tr>{_line(frame)}</tr>" for frame in frames))
    return f"<details><summary>The frames as a table ({len(frames)})</summary>{made}</details>"


def _line(frame: Row) -> str:
    what = "carries the frame in the tunnel" if frame["carries"] else frame["kind"]
    where = f"{frame['nbytes']:,}", f"{frame['seq']:,}", shortened(frame["capture_id"])
    return _cells((_at(frame), "in" if frame["direction"] else "out", what, _connection(frame), *where))
