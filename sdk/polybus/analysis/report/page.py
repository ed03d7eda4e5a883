"""Renders the report as a single HTML file, using templates that escape text from peers."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from importlib import resources
from typing import Any, Final

import attrs
import jinja2
import pyarrow as pa

from ...plugins.tools import in_one_line, shown_duration
from ..ranges import SAMPLES
from . import plots, verdict
from .listed import KIND_OF
from .tables import FEW, MANY, METRICS, broke_off
from .words import moment, shortened

Row = dict[str, Any]
_HERE: Final = __name__.rpartition(".")[0]
SHOWN: Final = 25
_LONGEST: Final = 200
"""Maximum characters of a text in a table, and of a name in a query."""
_NUMBERS: Final = {field.name for _, schema in METRICS.values() for field in schema if pa.types.is_integer(field.type)} | {
    *("segment", "batch", "frames"),
}
_HEADINGS: Final = {
    "n": "count",
    "nbytes": "bytes",
    "code_name": "name",
    "conn_id": "connection",
    "n_before": "before",
    "asker": "who",
    "answerer": "asks whom",
}


def render(metrics: dict[str, Any]) -> str:
    groups = row_groups(metrics["rows"])

    def leads(row: Row | None = None, **given: Any) -> str | None:
        """Return the anchor of the first group that has a row's protocol and subject, and further values."""
        wanted = given if row is None else {"protocol": row.get("protocol"), "subject": row.get("subject"), **given}
        alike = (one.anchor for one in groups if all(one.first[name] == value for name, value in wanted.items()))
        return next(alike, None)

    begin, whole = metrics["begin_ns"], max(metrics["end_ns"] - metrics["begin_ns"], 1)
    most = max((row["n"] for row in metrics["errors"]), default=0) or 1

    def span(session: Row) -> tuple[float, float, str]:
        """Return a connection's position within the time of the capture, in percent, and the CSS class of its bar."""
        first, last = (begin if session[name] is None else session[name] for name in ("first_ns", "last_ns"))
        return 100 * (first - begin) / whole, 100 * (last - first) / whole, "bad" if broke_off(session) else ""

    style, script = (resources.files(_HERE).joinpath("templates", name).read_text() for name in ("style.css", "filters.js"))
    return (
        templates()
        .get_template("report.html")
        .render(
            metrics=metrics,
            name=metrics["capture"].partition("?")[0].rstrip("/").rpartition("/")[2] or metrics["capture"],
            groups=groups,
            kept=[metrics.get(name, ()) for name in ("store_publications", "store_deliveries", "store_letters")],
            leads=leads,
            span=span,
            windows=_windows(metrics),
            share_of_most=lambda row: (0, 100 * row["n"] / most),
            leads_to_code=lambda row: leads(row, code=row["code"]),
            style=style,
            script=script,
            # In the page's Content-Security-Policy, so that no other script runs.
            digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        )
    )


def _windows(metrics: dict[str, Any]) -> list[list[float]]:
    """Return start (ms), messages, requests, unsuccessful requests and p95 (ms) for each time window."""
    found: dict[int, list[float]] = {}
    for table, names in (("throughput", {"n": 1}), ("latency_over_time", {"n": 2, "not_ok": 3, "p95_ns": 4})):
        for row in metrics[table]:
            if (begin := row["window_ns"]) is not None:
                numbers = found.setdefault(begin, [begin / 1e6, 0, 0, 0, 0])
                for name, place in names.items():
                    numbers[place] += round((row[name] or 0) / 1e6, 3) if place == 4 else row[name]
    return list(found.values())


@cache
def templates() -> jinja2.Environment:
    loader = jinja2.PackageLoader(_HERE)
    made = jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, keep_trailing_newline=True, finalize=_visible
    )
    made.filters |= _FORMS | {
        "shortened": shortened,
        "cut": _cut,
        "offset": lambda ns: ("-" if ns < 0 else "+") + shown_duration(abs(ns)),
    }
    limits = {name: getattr(verdict, name) for name in ("ENOUGH_EACH", "TIMES", "LEAST_CHANGE_NS", "ERRORS", "EXPECTED")}
    made.globals |= limits | {"LETTERS": LETTERS, "FEW": FEW, "MANY": MANY, "SHOWN": SHOWN, "SAMPLES": SAMPLES, "plots": plots}
    made.globals |= {"columns_of": _columns_of, "by_kind": _by_kind, "bars": _bars}
    made.globals |= {"connection": _connection, "drawing": _drawing, "who_asks_whom": _who_asks_whom}
    return made


def _visible(value: Any) -> Any:
    """Escape characters that a browser would hide or reorder, in all text that does not come from the templates."""
    return in_one_line(value) if type(value) is str else value


@attrs.frozen
class _Column:
    name: str

    @property
    def heading(self) -> str:
        return _HEADINGS.get(self.name, self.name.removesuffix("_ns").replace("_", " "))

    @property
    def form(self) -> str:
        if self.name.endswith("_ns"):
            return "moment" if self.name in ("request_time_ns", "ts_ns") else "duration"
        return "way" if self.name == "direction" else "number" if self.name in _NUMBERS else "text"

    def said(self, row: Row) -> str:
        value = row.get(self.name)
        return "" if value is None else _FORMS[self.form](value)


def _columns_of(names: str) -> list[_Column]:
    return [_Column(name) for name in names.split()]


def _cut(value: Any) -> str:
    said = str(value)
    return said if len(said) <= _LONGEST else said[: _LONGEST - 1] + "…"


_FORMS: Final[dict[str, Callable[[Any], str]]] = {
    "moment": moment,
    "duration": shown_duration,
    "way": lambda direction: "in" if direction else "out",
    "number": "{:,}".format,
    "text": _cut,
}

_FROM: Final = "from read_parquet('exchanges/**/*.parquet', hive_partitioning=true)"
_PLAIN: Final = re.compile(r"[\w./:@,+=*> -]*")


@attrs.frozen
class Group:
    anchor: str
    rows: tuple[Row, ...]

    @property
    def first(self) -> Row:
        return self.rows[0]

    def query(self) -> str:
        """Return a DuckDB query for all exchanges of the group, to be run in the report's folder."""
        subjects = " or ".join(sorted({_condition("subject", row["address"]) for row in self.rows}))
        others = " and ".join(_condition(name, self.first[name]) for name in KIND_OF if name != "subject")
        where = f"({subjects}) and {others}"
        if len(ways := {row["direction"] for row in self.rows if row["views"] > 1}) == 1:  # leaves out other recordings' views
            where += f" and direction = {ways.pop()}"
        return f"{_FROM} where {where} order by latency_ns desc"


def row_groups(rows: Iterable[Row]) -> list[Group]:
    found: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        found.setdefault(tuple(row[name] for name in KIND_OF), []).append(row)
    return [Group(f"rows-{number}", tuple(alike)) for number, alike in enumerate(found.values(), 1)]


def _condition(column: str, value: Any) -> str:
    if value is None:
        return f"{column} is null"
    if isinstance(value, int):
        return f"{column} = {value}"
    cut = value[:_LONGEST]
    # A peer's text must not affect the shell where this query is pasted.
    said = f"'{cut}'" if _PLAIN.fullmatch(cut) else f"decode(unhex('{cut.encode().hex()}'))"
    return f"starts_with({column}, {said})" if len(value) > _LONGEST else f"{column} = {said}"


_SIDE: Final = 8
"""Maximum peers on each side of the map. Further peers are combined."""
_STEP: Final = 40


def _who_asks_whom(rows: Iterable[Row]) -> dict[str, Any]:
    """Return the map: askers on the left, recorded programs in the middle, and the peers that they ask on the right."""
    sides: tuple[dict[str | None, dict[str, list[int]]], ...] = ({}, {})
    others, programs = (set[str](), set[str]()), dict[str, None]()
    for row in rows:
        right = row["direction"] == 0
        side = sides[right]
        other, here = (row["answerer"], row["asker"]) if row["direction"] == 0 else (row["asker"], row["answerer"])
        programs.setdefault(here)
        alone = other in side or len(side) < _SIDE
        if not alone:
            others[right].add(other)
        sums = side.setdefault(other if alone else None, {}).setdefault(here, [0, 0, 0])
        sums[:] = sums[0] + row["n"], sums[1] + row["not_ok"], max(sums[2], row["p95_ns"] or 0)
    height = _STEP * max(len(sides[0]), len(sides[1]), len(programs))
    most = max((sums[0] for side in sides for links in side.values() for sums in links.values()), default=0) or 1
    middle = {name: round(height * (nth + 0.5) / len(programs)) for nth, name in enumerate(programs)}
    peers, lines = [], []
    for right, side in enumerate(sides):
        for nth, (name, links) in enumerate(side.items()):
            y = round(height * (nth + 0.5) / len(side))
            numbers = list(zip(*links.values(), strict=True))
            n, bad, p95 = sum(numbers[0]), sum(numbers[1]), max(numbers[2])
            said = f"{n:,}" + (f", {bad:,} not ok" if bad else ""), f"p95 up to {shown_duration(p95)}" if p95 else ""
            peers.append((f"{len(others[right])} others" if name is None else name, *said, y, right))
            for here, sums in links.items():
                lines.append((y, middle[here], right, 1 + 5 * sums[0] / most, sums[1] * 20 >= sums[0]))
    return {"height": height, "peers": peers, "programs": middle.items(), "lines": lines}


_KINDS: Final = {"failed": "Failed", "unanswered": "Without an answer", "slowest": "Slowest"}
_LANE, _LINE, _HEAD, _LEFT = 168, 26, 40, 80
"""Pixels between two lanes, between two frames, above the first frame, and left of the first lane."""
LETTERS: Final = 26
"""Maximum letters of a name in a drawing."""
_FRAMES: Final = 40


def _by_kind(found: Sequence[Row]) -> Iterator[tuple[str, list[tuple[int, Row, bool]]]]:
    for kind, title in _KINDS.items():
        some = [(number, row) for number, row in enumerate(found, 1) if row["why"] == kind]
        if some:
            longest = max(some, key=lambda one: len(one[1]["hops"]))
            yield title, [(number, row, row is longest[1]) for number, row in some]


def _bars(hops: Sequence[Row]) -> Iterator[tuple[Row, float, float]]:
    whole = max((hop["at_ns"] + (hop["latency_ns"] or 0) for hop in hops), default=0) or 1
    for hop in hops:
        left, latency = 100 * max(0, hop["at_ns"]) / whole, hop["latency_ns"]
        width = 100 * (latency if latency is not None else max(0, whole - hop["at_ns"])) / whole
        yield hop, left, min(width, 100 - left)


def _connection(row: Row) -> str:
    through = f" in {' in '.join(reversed(row['tunnel']))}" if row.get("tunnel") else ""
    return f"{row['protocol']}{shortened(through)} {shortened(row['peer'] or '')}".strip()


def _drawing(frames: Sequence[Row], hops: Sequence[Row]) -> dict[str, Any]:
    shown = frames[:_FRAMES]
    lanes, names = _lanes(shown, hops)
    places = {lane: _LEFT + number * _LANE for number, lane in enumerate(lanes)}
    arrows = []
    for number, frame in enumerate(shown):
        ends = places[frame["capture_id"]], places[frame["capture_id"], frame["conn_id"]]
        arrows.append((frame, _HEAD + 16 + number * _LINE, *(ends[::-1] if frame["direction"] else ends)))
    return {
        "width": _LEFT + (len(lanes) - 1) * _LANE + _LEFT,
        "height": _HEAD + len(shown) * _LINE + 12,
        "lanes": [(x, names[lane], shortened(names[lane], LETTERS)) for lane, x in places.items()],
        "arrows": arrows,
    }


def _lanes(frames: Sequence[Row], hops: Sequence[Row]) -> tuple[list[Any], dict[Any, str]]:
    """Return lanes from left to right: for each recording, its askers, the program itself, and the peers that it asks."""
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
