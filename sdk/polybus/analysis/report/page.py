"""The report: one HTML file that needs no network and fits a phone. All numbers in it are those of ``metrics.json``."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any, Final

from . import change_page, comparison, filters, journey_page, plots, row_groups
from .html_tables import NOTHING, anchor, table
from .metrics import FIRST
from .row_groups import RowGroups
from .stores import stores
from .style import STYLE
from .words import duration, moment

Metrics = dict[str, Any]
Rows = Sequence[dict[str, Any]]
_TILE: Final = 10
"""Characters of a number that fit a tile; a longer one has the room of two."""

_STREAM: Final = "subject n items ok error cancelled lost p50_ns p95_ns protocol"


def render(metrics: Metrics) -> str:
    """The report as HTML, from the metrics."""
    groups = RowGroups(metrics["rows"])
    compared = [(comparison.TITLE, change_page.changes(metrics, groups.leads))] if metrics["compared"] else []
    sections = [
        ("Verdict", _verdict(metrics)),
        *compared,
        ("Totals", _totals(metrics, groups)),
        (journey_page.TITLE, journey_page.journeys(metrics["journeys"])),
        ("Latency", _latency(metrics, groups)),
        *([("Streams", table(metrics["streams"], _STREAM))] if metrics["streams"] else []),
        ("Throughput", _throughput(metrics)),
        ("Errors", _errors(metrics, groups)),
        ("Slowest exchanges", _exchanges(metrics["slowest"])),
        (
            "Dead letters",
            f"<h3>Requests without an answer</h3>{_exchanges(metrics['dead_letters'])}"
            f"<h3>Answers without a request</h3>{table(metrics['orphans'], 'protocol subject n')}",
        ),
        (row_groups.TITLE, groups.html()),
        *stores(metrics, table),
        ("Connections", _connections(metrics["sessions"])),
        ("Quarantine", _quarantine(metrics)),
        ("Clocks", table(metrics["clocks"], "capture_id n stepped_ns ahead_ns")),
        ("Gaps", _gaps(metrics)),
    ]
    when = (
        f"{moment(metrics['begin_ns'])} to {moment(metrics['end_ns'])}" if metrics["totals"]["events"] else "nothing recorded"
    )
    return _PAGE.format(
        style=STYLE,
        capture=escape(metrics["capture"]),
        when=when,
        links=" ".join(f'<a href="#{anchor(title)}">{title}</a>' for title, _ in sections),
        filter=filters.form(metrics["totals"]["outcomes"]),
        body="\n".join(f'<section id="{anchor(title)}"><h2>{title}</h2>\n{html}</section>' for title, html in sections),
        source=filters.SOURCE,
        script=filters.SCRIPT,
    )


# -- sections ----------------------------------------------------------------------------------------------------------------


def _verdict(metrics: Metrics) -> str:
    lines = (
        f'<li class="{one["about"]}"><b>{one["about"]}</b> {escape(one["text"])} '
        f'<a href="#{anchor(one["section"])}">{one["section"]}</a></li>'
        for one in metrics["verdict"]
    )
    return f'<ul class="verdict">{"".join(lines)}</ul>'


def _totals(metrics: Metrics, groups: RowGroups) -> str:
    counts, totals = metrics["counts"], metrics["totals"]
    tiles = [
        ("frames", counts["frames"], None),
        ("messages", totals["events"], None),
        ("bytes", totals["bytes"], None),
        ("exchanges", totals["exchanges"], anchor(row_groups.TITLE)),
        *((name, n, groups.with_outcome(name)) for name, n in totals["outcomes"].items()),
        ("orphans", totals["orphans"], "dead-letters"),
        ("duplicates", totals["duplicates"], None),
        ("further attempts", totals["repeats"], None),
        ("quarantined", counts["quarantined"], "quarantine"),
        ("gaps", counts["gaps"], "gaps"),
        ("unreadable", counts["lost"], "gaps"),
    ]
    html = "".join(_tile(name, f"{value:,}", target if value else None) for name, value, target in tiles)
    notes = [
        f"{counts['frames']:,} frames in = {counts['rowed']:,} with messages + {counts['quarantined']:,} quarantined + "
        f"{counts['empty']:,} empty."
    ]
    if others := totals["views"] - totals["exchanges"]:
        notes.append(
            f"{totals['exchanges']:,} exchanges were seen {totals['views']:,} times, {others:,} of these at further places, "
            "and count once: as who asked saw them."
        )
    if totals["internal"]:
        notes.append(f"{totals['internal']:,} requests by which buses get to know each other are not counted as exchanges.")
    doubt = {name: n for name, n in totals["match_quality"].items() if name != "unique"}
    if doubt:
        notes.append("Of the pairs " + ", ".join(f"{n:,} {_QUALITIES[name]}" for name, n in doubt.items()) + ".")
    if metrics["provisional"]:
        notes.append(f"{metrics['provisional']:,} exchanges are provisional: what is recorded later may still change them.")
    kinds = table(metrics["kinds"], "protocol kind direction n nbytes")
    by_kind = f"<details><summary>Messages by protocol, kind and direction</summary>{kinds}</details>"
    return f'<div class="tiles">{html}</div><p>{" ".join(notes)}</p>{by_kind}'


def _tile(name: str, number: str, target: str | None) -> str:
    wide, metric = " wide" if len(number) > _TILE else "", f'data-metric="{escape(name)}"'
    said = f"<b {metric}>{number}</b>" if target is None else f'<b><a href="#{target}" {metric}>{number}</a></b>'
    return f'<div class="tile{wide}">{said}<span>{escape(name)}</span></div>'


_QUALITIES: Final = {
    "reused_id": "rest on the order of messages, since their id was used before",
    "ambiguous": "are a guess, since their id came again before the first was answered",
}


def _latency(metrics: Metrics, groups: RowGroups) -> str:
    rows = metrics["latency"]
    if not any(row["answered"] for row in rows):
        return NOTHING
    return (
        plots.histogram(metrics["latency_histogram"])
        + plots.latency_over_time(
            [row for row in metrics["latency_over_time"] if row["window_ns"] is not None], metrics["window_ns"]
        )
        + table(
            rows,
            "subject p50_ns p95_ns max_ns n answered p90_ns p99_ns protocol",
            links={"n": groups.leads},
        )
        + "<p>No p99 below 100 answers.</p>"
    )


def _throughput(metrics: Metrics) -> str:
    rows = [row for row in metrics["throughput"] if row["window_ns"] is not None]  # a row may have no time
    if not rows:
        return NOTHING
    width, peers = metrics["window_ns"], table(metrics["peers"], "peer protocol direction n nbytes")
    topics = f"<h3>Publications</h3>{table(metrics['topics'], 'subject protocol direction n nbytes')}"
    if metrics["unheard"]:
        topics += f"<h3>Publications that no client has subscribed to</h3>{table(metrics['unheard'], 'subject protocol n')}"
    return f"{plots.throughput(rows, width)}<p>Windows of {duration(width)}.</p>{topics}<h3>Peers</h3>{peers}"


def _errors(metrics: Metrics, groups: RowGroups) -> str:
    rows = metrics["errors"]
    if not rows:
        return NOTHING
    return plots.errors(rows) + table(
        rows, "protocol subject code code_name n", links={"n": lambda row: groups.leads(row, code=row["code"])}
    )


def _connections(rows: Rows) -> str:
    if not rows:
        return NOTHING
    timed = [row for row in rows if row["first_ns"] is not None]
    return plots.sessions(timed) + table(rows, "conn_id protocol transport peer n nbytes length_ns handshake_ns closed")


def _exchanges(rows: Rows) -> str:
    # A narrow screen shows the first columns, and the others when it is pushed.
    latency = "latency_ns " if any(row["latency_ns"] is not None for row in rows) else ""
    return table(rows, latency + "outcome subject request_time_ns protocol code_name conn_id correlation_id")


def _quarantine(metrics: Metrics) -> str:
    if not metrics["quarantine"]:
        return NOTHING
    counted = table(metrics["quarantine"], "protocol reason n")
    samples = table(metrics["quarantine_samples"], "seq protocol reason detail size raw_hex")
    return counted + "<h3>Samples</h3>" + samples


def _gaps(metrics: Metrics) -> str:
    if not metrics["counts"]["gaps"] and not metrics["counts"]["lost"]:
        return "<p>None: the recorder dropped nothing, and everything could be read.</p>"
    gaps = table(metrics["gaps"], "ts_ns capture_id seq detail", FIRST)
    losses = table(metrics["losses"], "segment offset size batch frames", FIRST)
    return "<h3>Dropped by the recorder</h3>" + gaps + "<h3>Unreadable</h3>" + losses


_PAGE: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; script-src {source}">
<title>What happened on the bus</title>
<style>{style}</style>
</head>
<body>
<h1>{capture}</h1>
<p>{when}</p>
<nav>{links}</nav>
{filter}
{body}
<script>{script}</script>
</body>
</html>
"""
