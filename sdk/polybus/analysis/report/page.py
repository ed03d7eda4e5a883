"""The report: one HTML file that needs no network and fits a phone. All numbers in it are those of ``metrics.json``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from typing import Any, Final

from . import plots
from .metrics import FIRST
from .queries import MANY
from .stores import stores
from .verdict import verdict
from .words import duration, moment

Metrics = dict[str, Any]
Rows = Sequence[dict[str, Any]]
SHOWN: Final = 25
"""Rows of a table; ``metrics.json`` has more."""
_CONNECTIONS: Final = "conn_id protocol transport peer n nbytes length_ns handshake_ns closed"
_LONGEST: Final = 200
_TILE: Final = 10
"""Characters of a number that fit a tile; a longer one has the room of two."""


def render(metrics: Metrics) -> str:
    """The report as HTML, from the metrics."""
    sections = [
        ("Verdict", _verdict(metrics)),
        ("Totals", _totals(metrics)),
        ("Latency", _latency(metrics)),
        ("Throughput", _throughput(metrics)),
        ("Errors", _plotted(metrics["errors"], plots.errors, "protocol subject code code_name n")),
        ("Slowest exchanges", _exchanges(metrics["slowest"])),
        (
            "Dead letters",
            f"<h3>Requests without an answer</h3>{_exchanges(metrics['dead_letters'])}"
            f"<h3>Answers without a request</h3>{_table(metrics['orphans'], 'protocol subject n')}",
        ),
        *stores(metrics, _table),
        ("Connections", _plotted(metrics["sessions"], plots.sessions, _CONNECTIONS)),
        ("Quarantine", _quarantine(metrics)),
        ("Gaps", _gaps(metrics)),
    ]
    links = " ".join(f'<a href="#{_anchor(title)}">{title}</a>' for title, _ in sections)
    body = "\n".join(f'<section id="{_anchor(title)}"><h2>{title}</h2>\n{html}</section>' for title, html in sections)
    when = (
        f"{moment(metrics['begin_ns'])} to {moment(metrics['end_ns'])}" if metrics["totals"]["events"] else "nothing recorded"
    )
    return _PAGE.format(style=_STYLE, capture=escape(metrics["capture"]), when=when, links=links, body=body)


# -- sections ----------------------------------------------------------------------------------------------------------------


def _verdict(metrics: Metrics) -> str:
    lines = (
        f'<li class="{one.about}"><b>{one.about}</b> {escape(one.text)} '
        f'<a href="#{_anchor(one.section)}">{one.section}</a></li>'
        for one in verdict(metrics)
    )
    return f'<ul class="verdict">{"".join(lines)}</ul>'


def _totals(metrics: Metrics) -> str:
    counts, totals = metrics["counts"], metrics["totals"]
    tiles = [
        ("frames", counts["frames"]),
        ("messages", totals["events"]),
        ("bytes", totals["bytes"]),
        ("exchanges", totals["exchanges"]),
        *totals["outcomes"].items(),
        ("orphans", counts["orphans"]),
        ("duplicates", totals["duplicates"]),
        ("further attempts", totals["repeats"]),
        ("quarantined", counts["quarantined"]),
        ("gaps", counts["gaps"]),
        ("unreadable", counts["lost"]),
    ]
    html = "".join(_tile(name, f"{value:,}") for name, value in tiles)
    notes = [
        f"{counts['frames']:,} frames in = {counts['rowed']:,} with messages + {counts['quarantined']:,} quarantined + "
        f"{counts['empty']:,} empty."
    ]
    doubt = {name: n for name, n in totals["match_quality"].items() if name != "unique"}
    if doubt:
        notes.append("Of the pairs " + ", ".join(f"{n:,} {_QUALITIES[name]}" for name, n in doubt.items()) + ".")
    if metrics["provisional"]:
        notes.append(f"{metrics['provisional']:,} exchanges are provisional: what is recorded later may still change them.")
    kinds = _table(metrics["kinds"], "protocol kind direction n nbytes")
    return f'<div class="tiles">{html}</div><p>{" ".join(notes)}</p>{kinds}'


def _tile(name: str, number: str) -> str:
    wide = " wide" if len(number) > _TILE else ""
    return f'<div class="tile{wide}"><b data-metric="{escape(name)}">{number}</b><span>{escape(name)}</span></div>'


_QUALITIES: Final = {
    "reused_id": "rest on the order of messages, since their id was used before",
    "ambiguous": "are a guess, since their id came again before the first was answered",
}


def _latency(metrics: Metrics) -> str:
    rows = metrics["latency"]
    if not any(row["answered"] for row in rows):
        return _NOTHING
    return (
        plots.histogram(metrics["latency_histogram"])
        + plots.latency_over_time(metrics["latency_over_time"], metrics["window_ns"])
        + _table(rows, "protocol subject n answered p50_ns p90_ns p95_ns p99_ns max_ns")
        + "<p>No p99 below 100 answers.</p>"
    )


def _throughput(metrics: Metrics) -> str:
    rows = metrics["throughput"]
    if not rows:
        return _NOTHING
    width, peers = metrics["window_ns"], _table(metrics["peers"], "peer protocol direction n nbytes")
    return f"{plots.throughput(rows, width)}<p>Windows of {duration(width)}.</p>{peers}"


def _plotted(rows: Rows, plot: Callable[[Rows], str], names: str) -> str:
    return plot(rows) + _table(rows, names) if rows else _NOTHING


def _exchanges(rows: Rows) -> str:
    # A narrow screen shows the first columns, and the others when it is pushed.
    latency = "latency_ns " if any(row["latency_ns"] is not None for row in rows) else ""
    return _table(rows, latency + "outcome subject request_time_ns protocol code_name conn_id correlation_id")


def _quarantine(metrics: Metrics) -> str:
    if not metrics["quarantine"]:
        return _NOTHING
    counted = _table(metrics["quarantine"], "protocol reason n")
    samples = _table(metrics["quarantine_samples"], "seq protocol reason detail size raw_hex")
    return counted + "<h3>Samples</h3>" + samples


def _gaps(metrics: Metrics) -> str:
    if not metrics["counts"]["gaps"] and not metrics["counts"]["lost"]:
        return "<p>None: the recorder dropped nothing, and everything could be read.</p>"
    gaps = _table(metrics["gaps"], "ts_ns capture_id seq detail", FIRST)
    losses = _table(metrics["losses"], "segment offset size batch frames", FIRST)
    return "<h3>Dropped by the recorder</h3>" + gaps + "<h3>Unreadable</h3>" + losses


# -- parts -------------------------------------------------------------------------------------------------------------------

_NOTHING: Final = "<p>Nothing.</p>"
_NUMBERS: Final = frozenset(
    "n nbytes answered code seq size segment offset batch frames kept duplicates refused unanswered sent_again publications "
    "redelivered most_attempts handled again ended unsettled".split()
)


def _table(rows: Rows, names: str, most: int = MANY) -> str:
    """Some columns of rows, of which ``metrics.json`` lists so many at most."""
    if not rows:
        return _NOTHING
    columns = [(name, _form_of(name)) for name in names.split()]
    head = "".join(f"<th>{_HEADINGS.get(name, name.removesuffix('_ns').replace('_', ' '))}</th>" for name, _ in columns)
    lines = []
    for row in rows[:SHOWN]:
        cells = ((form, "" if row.get(name) is None else form(row[name])) for name, form in columns)
        lines.append("<tr>" + "".join(f'<td class="{form.__name__.strip("_")}">{cell}</td>' for form, cell in cells) + "</tr>")
    limit = f", which lists {most:,} at most" if len(rows) >= most else ""
    more = f"<p>{len(rows) - SHOWN:,} more in metrics.json{limit}.</p>" if len(rows) > SHOWN else ""
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table></div>{more}'


def _form_of(name: str) -> Callable[[Any], str]:
    """The function that writes the values of a column."""
    if name.endswith("_ns"):
        return moment if name in ("request_time_ns", "ts_ns") else duration
    return _way if name == "direction" else _number if name in _NUMBERS else _text


_HEADINGS: Final = {"n": "count", "nbytes": "bytes", "code_name": "name", "conn_id": "connection"}


def _anchor(title: str) -> str:
    return title.lower().replace(" ", "-")


def _text(value: Any) -> str:
    text = str(value)
    return escape(text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…")


def _number(value: Any) -> str:
    return f"{value:,}"


def _way(value: Any) -> str:
    return "in" if value else "out"


_STYLE: Final = """
:root { color-scheme: light dark; --text: #1d2129; --quiet: #5b6270; --back: #fff; --line: #e4e4e8; --link: #2f6fb3;
  --bad: #b3261e; --warn: #8a5a00; --good: #1e7a3c; }
@media (prefers-color-scheme: dark) { :root { --text: #e3e5ea; --quiet: #a3a9b5; --back: #16181d; --line: #363b45;
  --link: #7fb4ee; --bad: #ff8a80; --warn: #f0bd62; --good: #76d396; } }
body { font: 15px/1.45 system-ui, sans-serif; margin: 0 auto; max-width: 60rem; padding: 0 1rem 4rem;
  color: var(--text); background: var(--back); }
h1 { font-size: 1.5rem; margin: 1rem 0 0; overflow-wrap: anywhere; } h2 { margin: 2.2rem 0 .6rem; font-size: 1.2rem; }
h3 { font-size: 1rem; }
nav { position: sticky; top: 0; background: var(--back); padding: .5rem 0; overflow-x: auto; white-space: nowrap;
  border-bottom: 1px solid var(--line); }
nav a { margin-right: .9rem; color: var(--link); text-decoration: none; }
.tiles { display: grid; grid-template-columns: repeat(auto-fill, minmax(8.4rem, 1fr)); gap: .5rem; }
.tile { border: 1px solid var(--line); border-radius: .4rem; padding: .45rem .6rem; min-width: 0; overflow-wrap: anywhere; }
.wide { grid-column: span 2; }
.tile b { display: block; font-size: 1.15rem; }
.tile span { color: var(--quiet); font-size: .85rem; }
.verdict { list-style: none; padding: 0; } .verdict li { margin: .35rem 0; overflow-wrap: anywhere; }
.verdict b { display: inline-block; min-width: 4.2rem; } .verdict a { color: var(--link); }
.failed b, .missing b { color: var(--bad); } .slow b, .unseen b { color: var(--warn); } .fine b { color: var(--good); }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-size: .85rem; width: 100%; }
th, td { text-align: left; padding: .25rem .6rem .25rem 0; border-bottom: 1px solid var(--line); white-space: nowrap; }
td.number, td.duration { font-variant-numeric: tabular-nums; }
td.text { max-width: 26rem; overflow: hidden; text-overflow: ellipsis; }
svg { width: 100%; max-width: 36rem; height: auto; display: block; margin: .6rem 0; }
@media print { nav { display: none; } }
"""

_PAGE: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>What happened on the bus</title>
<style>{style}</style>
</head>
<body>
<h1>{capture}</h1>
<p>{when}</p>
<nav>{links}</nav>
{body}
</body>
</html>
"""
