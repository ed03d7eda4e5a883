"""The verdict: failures, missing answers, slow subjects and blind spots in sentences, from the metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any, Final

from ...plugins.tools import counted
from .comparison import Finding, changed
from .tables import DEFECTS, MANY, broke_off, host_of
from .words import duration, moment, part_of, shortened

Rows = Sequence[dict[str, Any]]
NAMED: Final = 3
ENOUGH: Final = 20
"""Answers needed to call a subject slow."""
SLOWER: Final = 4
"""Factor above the usual p95 that is worth a sentence."""
STEP_NS: Final = 1_000_000_000
"""A clock adjustment below this is normal."""
LEAST_NS: Final = 5_000_000
"""A latency below this is never slow."""


_NOT_SEEN: Final = {
    "cancelled": "were cancelled by the asker",
    "unseen": "had no answer before a gap in the recording, which may contain the answer",
}
_GRAVE: Final = frozenset(("failed", "missing", "slow", "refused"))
_ORDER: Final = (
    "fine", "failed", "missing", "slow", "broke", "unheard", "refused", "new", "better", "same", "unseen",
    "cancelled", "places", "clocks",
)  # fmt: skip
_CLOSES: Final = {
    "1002": "protocol error",
    "1006": "no close message",
    "1008": "policy violation",
    "1009": "message too large",
    "1011": "internal error",
    "1013": "overloaded",
    "4401": "unauthorized",
    "4403": "forbidden",
}


def verdict(metrics: dict[str, Any]) -> list[Finding]:
    """Return the findings, gravest first: defects of the service come before errors that concern a request."""
    parts = (_failed, _streams, _buried, _missing, _slow, changed, _broke, _unheard, _unseen, _places, _clocks)
    findings = sorted((one for part in parts for one in part(metrics)), key=lambda one: _ORDER.index(one.about))
    if any(finding.about in _GRAVE for finding in findings):
        return findings
    asked = metrics["totals"]["exchanges"]
    streams = f", {counted(metrics['totals']['streams'], 'stream')}" if metrics["totals"]["streams"] else ""
    fine = f"Nothing failed and nothing went missing: {counted(asked, 'request')}{streams}."
    if not asked and not streams:
        fine = "No request was recorded."
    if metrics["counts"]["gaps"] or metrics["counts"]["lost"]:
        return [Finding("unseen", f"Of what could be read: {fine[0].lower()}{fine[1:]}", "Totals"), *findings]
    return [Finding("fine", fine, "Totals"), *findings]


def _failed(metrics: dict[str, Any]) -> Iterator[Finding]:
    outcomes, asked = metrics["totals"]["outcomes"], metrics["totals"]["exchanges"]
    defects, others = list[tuple[str, int]](), list[tuple[str, int]]()
    for row in metrics["errors"]:
        told = defects if row["code"] in DEFECTS else others
        told.append((f"{_subject(row)} with {row['code_name'] or row['code']}", row["n"]))
    if broken := sum(n for _, n in defects):
        text = f"{part_of(broken, asked)} failed because of a defect in the service: {_most(defects, broken)}."
        yield Finding("failed", text, "Errors")
    if refused := outcomes.get("error", 0) - broken:
        text = f"{part_of(refused, asked)} were refused: {_most(others, refused)}.{_when(metrics, refused)}"
        yield Finding("refused", text, "Errors")


def _buried(metrics: dict[str, Any]) -> Iterator[Finding]:
    told = [(f"{row['durable']}: {row['reason']}", row["n"]) for row in metrics.get("store_letters", ())]
    if letters := sum(n for _, n in told):
        yield Finding("failed", f"{counted(letters, 'dead letter')} in stores: {_most(told, letters)}.", "Stores")


_BAD_ENDS: Final = ("error", "timeout", "late", "lost", "unanswered")


def _streams(metrics: dict[str, Any]) -> Iterator[Finding]:
    told = [(_subject(row), sum(row[name] for name in _BAD_ENDS)) for row in metrics["streams"]]
    if bad := sum(n for _, n in told):
        text = f"{part_of(bad, metrics['totals']['streams'], 'stream')} did not end well: {_most(told, bad)}."
        yield Finding("failed", text, "Streams")


def _when(metrics: dict[str, Any], failed: int) -> str:
    """Name the window with most of the bad ends, if one stands out."""
    rows = metrics["latency_over_time"]
    worst: dict[str, Any] = max(rows, key=lambda row: row.get("not_ok", 0), default={})
    bad = sum(row.get("not_ok", 0) for row in rows)
    if len(rows) < ENOUGH or worst.get("not_ok", 0) * 4 < bad or failed < ENOUGH:
        return ""
    within = duration(metrics["window_ns"])
    return (
        f" {part_of(worst['not_ok'], bad, 'request')} without success began in the {within} from {moment(worst['window_ns'])}."
    )


def _missing(metrics: dict[str, Any]) -> Iterator[Finding]:
    outcomes, asked = metrics["totals"]["outcomes"], metrics["totals"]["exchanges"]
    if lost := outcomes.get("lost", 0):
        told = [(_subject(row), row["lost"]) for row in metrics["latency"]]
        text = f"{part_of(lost, asked)} were lost because their connection ended before the answer: {_most(told, lost)}."
        yield Finding("missing", text, "Dead letters")
    if lost := outcomes.get("timeout", 0) + outcomes.get("unanswered", 0):
        told = [(_subject(row), row.get("timeout", 0) + row.get("unanswered", 0)) for row in metrics["latency"]]
        text = f"{part_of(lost, asked)} were never answered: {_most(told, lost)}."
        yield Finding("missing", text, "Dead letters")
    if orphans := metrics["totals"]["orphans"]:
        told = [(_subject(row), row["n"]) for row in metrics["orphans"]]
        text = f"{counted(orphans, 'answer')} had no recorded request: {_most(told, orphans)}."
        yield Finding("missing", text, "Dead letters")


def _slow(metrics: dict[str, Any]) -> Iterator[Finding]:
    if late := metrics["totals"]["outcomes"].get("late", 0):
        told = [(_subject(row), row.get("late", 0)) for row in metrics["latency"]]
        yield Finding("slow", f"{counted(late, 'answer')} came too late: {_most(told, late)}.", "Slowest exchanges")
    rows = [row for row in metrics["latency"] if row["answered"] >= ENOUGH and row["p95_ns"]]
    usual = median(row["p95_ns"] for row in rows) if rows else 0
    for row in sorted(rows, key=lambda row: -row["p95_ns"])[:NAMED]:
        if len(rows) > 1 and row["p95_ns"] >= max(SLOWER * usual, LEAST_NS):
            text = (
                f"{shortened(_subject(row))} is slow: 5 % of its {row['answered']:,} answers took {duration(row['p95_ns'])} "
                f"or more, compared with {duration(usual)} for a typical subject."
            )
            yield Finding("slow", text, "Latency")
    yield from _slow_times(metrics)


def _slow_times(metrics: dict[str, Any]) -> Iterator[Finding]:
    rows = [row for row in metrics["latency_over_time"] if row["p50_ns"]]
    usual = median(row["p50_ns"] for row in rows) if rows else 0
    slow = [row for row in rows if row["p50_ns"] >= max(SLOWER * usual, LEAST_NS)]
    if len(rows) >= ENOUGH and slow:
        worst = max(slow, key=lambda row: row["p50_ns"])
        begin, end = moment(slow[0]["window_ns"]), moment(slow[-1]["window_ns"] + metrics["window_ns"])
        text = (
            f"From {begin} to {end} all subjects were slow at times: half of the answers took {duration(worst['p50_ns'])} "
            f"or more, compared with {duration(usual)} usually."
        )
        yield Finding("slow", text, "Latency")


def _unseen(metrics: dict[str, Any]) -> Iterator[Finding]:
    counts = metrics["counts"]
    if bad := counts["quarantined"]:
        told = [(f"{row['protocol'] or 'no protocol'}: {row['reason']}", row["n"]) for row in metrics["quarantine"]]
        text = f"{part_of(bad, counts['frames'], 'frame')} could not be read: {_most(told, bad)}."
        yield Finding("unseen", text, "Quarantine")
    if counts["gaps"] or counts["lost"]:
        gaps, lost = counted(counts["gaps"], "gap"), counted(counts["lost"], "unreadable stretch")
        yield Finding("unseen", f"The recording is incomplete: {gaps}, {lost}.", "Gaps")
    for name, what in _NOT_SEEN.items():
        if n := metrics["totals"]["outcomes"].get(name, 0):
            told = [(_subject(row), row[name]) for row in metrics["latency"]]
            yield Finding(name, f"{part_of(n, metrics['totals']['exchanges'])} {what}: {_most(told, n)}.", "Dead letters")
    if open_at_end := metrics["totals"]["outcomes"].get("open-at-end", 0):
        yield Finding("unseen", f"{counted(open_at_end, 'request')} had no answer when the recording ended.", "Dead letters")


def _unheard(metrics: dict[str, Any]) -> Iterator[Finding]:
    told = [(_subject(row), row["n"]) for row in metrics["unheard"]]
    if lost := sum(n for _, n in told):
        text = f"{lost:,} publications arrived without a subscribed client: {_most(told, lost)}."
        yield Finding("unheard", f"{text} Only the recorded program itself can have handled them.", "Throughput")


def _subject(row: dict[str, Any]) -> str:
    return row["subject"] or "no subject"


def _most(told: Sequence[tuple[str, int]], whole: int) -> str:
    """List the most frequent with their numbers, and the rest of the whole."""
    summed = Counter[str]()
    for name, n in told:  # protocols may share names
        summed[name] += n
    some = sorted((pair for pair in summed.items() if pair[1]), key=lambda pair: -pair[1])[:NAMED]
    named = [f"{shortened(name)} ({n:,})" for name, n in some]
    rest = whole - sum(n for _, n in some)  # includes subjects beyond the list's length
    return ", ".join([*named, f"others ({rest:,})"] if rest else named)


def _broke(metrics: dict[str, Any]) -> Iterator[Finding]:
    ends, rows = Counter[str](), metrics.get("sessions", [])
    for row in filter(broke_off, rows):
        why = f"{row['protocol'] or 'no protocol'}: {_CLOSES.get(row['closed'], 'code')}, {row['closed']}"
        ends[f"{_whose(row)}, {why}"] += 1
    if broken := sum(ends.values()):
        # Unlisted connections are unknown here.
        whose = "" if len(rows) < MANY else ", those with the most messages,"
        text = f"{part_of(broken, len(rows), 'connection')}{whose} broke off: {_most(list(ends.items()), broken)}."
        yield Finding("broke", text, "Connections")


def _whose(session: dict[str, Any]) -> str:
    """Return the name of the other end, else its host."""
    return session.get("who") or host_of(session["peer"]) or "unknown peer"


def _places(metrics: dict[str, Any]) -> Iterator[Finding]:
    """Report the exchanges with several views, and the one that counts."""
    rows = [row for row in metrics["places"] if row["views"] > 1]
    if not (seen := sum(row["n"] for row in rows)):
        return
    other = seen - sum(row["n"] for row in rows if row["direction"] == 0)
    whose = f", {other:,} of them as the server saw it" if other else ""
    several = part_of(seen, metrics["totals"]["exchanges"])
    text = f"{several} were recorded at several places; each counts once, as the client saw it"
    ways = [(row["way_ns"], row["n"]) for row in rows if row["way_ns"] is not None]
    mean = sum(ns * n for ns, n in ways) / sum(n for _, n in ways) if ways else 0
    way = f" On average {duration(mean)} of the latency was network time." if ways else ""
    yield Finding("places", f"{text}{whose}.{way}", "Latency")


def _clocks(metrics: dict[str, Any]) -> Iterator[Finding]:
    ahead = [(row["capture_id"], row["ahead_ns"]) for row in metrics["clocks"] if row["ahead_ns"]]
    for name, ns in ahead[:NAMED]:
        way = "ahead of" if ns > 0 else "behind"
        yield Finding("clocks", f"The clock of recording {name} is {duration(abs(ns))} {way} the others'.", "Clocks")
    stepped = [(row["capture_id"], row["stepped_ns"]) for row in metrics["clocks"] if row["stepped_ns"] >= STEP_NS]
    for name, ns in stepped[:NAMED]:
        text = f"The clock of recording {name} jumped by {duration(ns)}: it was set, or the machine slept."
        yield Finding("clocks", f"{text} Latencies are right, times before or after are not.", "Clocks")
