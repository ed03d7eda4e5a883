"""The verdict, which describes failures, slow subjects, blind spots and changes since an earlier capture in sentences."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence, Sized
from math import sqrt
from statistics import median
from typing import Any, Final

import attrs
import msgspec

from polybus.capture.errors import CaptureError
from polybus.capture.paths import folder_path
from polybus.capture.store.filesystems import AnyPath

from ...plugins.tools import counted, shown_duration
from ..storage import TableStorage, absolute
from .tables import DEFECTS, FEW, MANY, broke_off, host_of
from .words import moment, part_of, shortened


@attrs.frozen
class Finding:
    about: str
    """Topic: fine, failed, missing, slow, broke, unheard, refused, new, better, same, unseen, cancelled, places or clocks."""
    text: str
    section: str


_FILE: Final = "metrics.json"


class SubjectRow(msgspec.Struct, frozen=True):
    """Exchanges of a subject, with some columns of ``metrics/latency``."""

    protocol: str | None
    subject: str | None
    n: int
    answered: int
    p50_ns: int | None
    p95_ns: int | None
    error: int
    late: int
    timeout: int
    unanswered: int
    asked: int
    lost: int = 0

    @property
    def as_asked(self) -> bool:
        """Return True if the client's view counts for most requests. Its latencies differ from the server's."""
        return self.asked * 2 > self.n

    @property
    def missing(self) -> int:
        return self.timeout + self.unanswered + self.lost


class TopicRow(msgspec.Struct, frozen=True):
    """Publications of a subject, with some columns of ``metrics/topics``."""

    protocol: str | None
    subject: str | None
    direction: int | None
    n: int


class _Totals(msgspec.Struct, frozen=True):
    exchanges: int


class Measured(msgspec.Struct, frozen=True):
    capture: str
    begin_ns: int
    end_ns: int
    totals: _Totals
    latency: list[SubjectRow]
    topics: list[TopicRow]

    def subjects(self) -> dict[tuple[str, str | None, str | None], SubjectRow]:
        """Return requests and publications by kind, protocol and subject."""
        found = {("request", row.protocol, row.subject): row for row in self.latency}
        for row in self.topics:
            key = "publish", row.protocol, row.subject
            found[key] = msgspec.structs.replace(_NONE, n=found.get(key, _NONE).n + row.n)
        return found


_NONE: Final = SubjectRow(None, None, 0, 0, None, None, 0, 0, 0, 0, 0)


class Earlier(msgspec.Struct, frozen=True):
    measured: Measured
    digest: str


def read_earlier(before: AnyPath, out: AnyPath) -> Earlier:
    """Read the metrics in `before`. Raises `CaptureError` if it has no metrics, or metrics from another version."""
    path = folder_path(before, "before")
    if absolute(path).rstrip("/") == absolute(folder_path(out, "out")).rstrip("/"):
        raise CaptureError(f"{path} is the folder of these results: choose the results of an earlier capture")
    storage = TableStorage(before)
    if _FILE not in storage.names():
        raise CaptureError(f"{path} has no {_FILE} to compare with: `polybus analyse CAPTURE --out {path}` writes it")
    text = storage.read(_FILE)
    try:
        measured = msgspec.json.decode(text, type=Measured)
    except (ValueError, RecursionError) as error:
        raise CaptureError(
            f"{path}/{_FILE} is of another version of polybus, or corrupt ({error}): analyse that capture again, into a new "
            "folder"
        ) from error
    return Earlier(measured, hashlib.sha256(text).hexdigest()[:16])


Rows = list[dict[str, Any]]

TIMES: Final = 1.5
"""A change in latency, or in the share of unsuccessful exchanges, is reported from this factor on."""
LEAST_CHANGE_NS: Final = 1_000_000
"""Minimum change in latency. Smaller changes are ignored."""
ERRORS: Final = 3.0
"""Minimum difference between two shares, in standard errors. A smaller difference may be chance."""
ENOUGH_EACH: Final = 20
"""Minimum answers on both sides for comparing medians. Comparing p95 requires `FEW`."""
EXPECTED: Final = 5.0
"""Minimum messages expected of a subject, based on the earlier capture, to report that the subject is gone."""
NAMED: Final = 3
"""Maximum subjects with a separate sentence, per kind of change."""

TITLE: Final = "Compared"


def compare(metrics: dict[str, Any], earlier: Earlier | None) -> dict[str, Any]:
    """Return the ``changes`` and ``compared`` members of the metrics."""
    if earlier is None:
        return {"changes": [], "compared": None}
    now, before = msgspec.convert(metrics, Measured), earlier.measured
    rows = list(_changes(now, before))
    rows.sort(key=lambda row: (row["change"] is None, -max(row["n"], row["n_before"]), str(list(row.values())[:3])))
    told = {name: getattr(before, name) for name in ("capture", "begin_ns", "end_ns")}
    more = {"exchanges": before.totals.exchanges, "digest": earlier.digest}
    return {"changes": rows[:MANY], "compared": told | more}


def is_of(metrics: dict[str, Any], earlier: Earlier | None) -> bool:
    """Return True if these metrics were compared with the same results."""
    made = metrics.get("compared")
    return (made["digest"] if made else None) == (earlier.digest if earlier is not None else None)


def _changes(now: Measured, before: Measured) -> Iterator[dict[str, Any]]:
    lists: dict[str, tuple[Sized, Sized]] = {"request": (now.latency, before.latency), "publish": (now.topics, before.topics)}
    ours, theirs, share = now.subjects(), before.subjects(), _share(now, before)
    for kind, protocol, subject in ours | theirs:
        one, other = (some.get((kind, protocol, subject), _NONE) for some in (ours, theirs))
        change = [*_came(one.n, other.n, share, *lists[kind]), *_ends(one, other), *_pace(one, other)]
        row: dict[str, Any] = {"kind": kind, "protocol": protocol, "subject": subject, "change": ", ".join(change) or None}
        row |= {"n": one.n, "n_before": other.n}
        if kind == "request":
            row |= {"failed": one.error, "failed_before": other.error, "lost": one.missing, "lost_before": other.missing}
            row |= {"late": one.late, "late_before": other.late, "p50_ns": one.p50_ns, "p50_before_ns": other.p50_ns}
            row |= {"p95_ns": one.p95_ns, "p95_before_ns": other.p95_ns}
        yield row


def _share(now: Measured, before: Measured) -> float:
    """Return the share of the earlier messages to expect now, given the durations of the captures."""
    length, length_before = now.end_ns - now.begin_ns, before.end_ns - before.begin_ns
    return min(1.0, length / length_before) if length_before > 0 else 1.0


def _came(n: int, n_before: int, share: float, ours: Sized, theirs: Sized) -> list[str]:
    """Compare message counts. A full list may have omitted a subject, so the subject is neither gone nor new."""
    expected = n_before * share
    if not n:
        return ["gone"] if len(ours) < MANY and expected >= EXPECTED else []
    if not n_before:
        return ["new"] if len(theirs) < MANY else []
    return ["fewer"] if n * TIMES <= expected and expected - n > ERRORS * sqrt(expected + n) else []


def _ends(one: SubjectRow, other: SubjectRow) -> list[str]:
    found = []
    kinds = (("failed", one.error, other.error), ("lost", one.missing, other.missing), ("late", one.late, other.late))
    for name, bad, bad_before in kinds:
        if _is_more(bad, one.n, bad_before, other.n):
            found.append(f"{name} more")
        elif _is_more(bad_before, other.n, bad, one.n):
            found.append(f"{name} less")
    return found


def _is_more(bad: int, n: int, bad_before: int, n_before: int) -> bool:
    """Return True if the share of unsuccessful exchanges has grown significantly, and enough to matter."""
    if not n or not n_before:
        return False
    share, share_before, pooled = bad / n, bad_before / n_before, (bad + bad_before) / (n + n_before)
    error = sqrt(pooled * (1 - pooled) * (1 / n + 1 / n_before))
    return share >= TIMES * share_before and share - share_before > ERRORS * error


def _pace(one: SubjectRow, other: SubjectRow) -> list[str]:
    if one.as_asked != other.as_asked:
        return []
    enough = min(one.answered, other.answered)
    pairs = [(one.p50_ns, other.p50_ns)] * (enough >= ENOUGH_EACH) + [(one.p95_ns, other.p95_ns)] * (enough >= FEW)
    if any(_is_slower(ns, ns_before) for ns, ns_before in pairs):
        return ["slower"]
    return ["faster"] if any(_is_slower(ns_before, ns) for ns, ns_before in pairs) else []


def _is_slower(ns: int | None, ns_before: int | None) -> bool:
    return ns is not None and ns_before is not None and ns >= TIMES * ns_before and ns - ns_before >= LEAST_CHANGE_NS


def changed(metrics: dict[str, Any]) -> Iterator[Finding]:
    if not (before := metrics.get("compared")):
        return
    rows = [row for row in metrics["changes"] if row["change"]]
    for change, about, tell, others in _TOLD:
        found = [row for row in rows if change in row["change"].split(", ")]
        for row in found[:NAMED]:
            yield Finding(about, f"{shortened(row['subject'] or 'no subject')} {tell(row)}", TITLE)
        if len(found) > NAMED:
            yield Finding(about, f"{len(found) - NAMED:,} further subjects {others}.", TITLE)
    if not rows:
        told = f"{counted(before['exchanges'], 'request')} from {moment(before['begin_ns'])} to {moment(before['end_ns'])}"
        yield Finding("same", f"No significant changes since the earlier capture: {told}.", TITLE)


def _ended(name: str, words: str) -> Any:
    def tell(row: dict[str, Any]) -> str:
        now, before = part_of(row[name], row["n"]), part_of(row[f"{name}_before"], row["n_before"])
        return f"{words}: {now}, before {before}."

    return tell


def _took(words: str, *, slower: bool) -> Any:
    def tell(row: dict[str, Any]) -> str:
        median = row["p50_ns"], row["p50_before_ns"]
        name, share = ("p50", "half") if _is_slower(*(median if slower else median[::-1])) else ("p95", "5 %")
        now, before = shown_duration(row[f"{name}_ns"]), shown_duration(row[f"{name}_before_ns"])
        return f"{words}: {share} of {row['n']:,} requests took {now} or more, before {before} of {row['n_before']:,}."

    return tell


def _what(row: dict[str, Any], when: str = "") -> str:
    return counted(row[f"n{when}"], "publication" if row["kind"] == "publish" else "request")


_TOLD: Final = (
    ("failed more", "failed", _ended("failed", "fails more often"), "fail more often"),
    ("lost more", "missing", _ended("lost", "gets no answer more often"), "get no answer more often"),
    ("gone", "missing", lambda row: f"is gone: none, before {_what(row, '_before')}.", "are gone"),
    ("fewer", "missing", lambda row: f"has become rare: {_what(row)}, before {_what(row, '_before')}.", "have become rare"),
    ("late more", "slow", _ended("late", "is answered too late more often"), "are answered too late more often"),
    ("slower", "slow", _took("has become slower", slower=True), "have become slower"),
    ("new", "new", lambda row: f"is new: {_what(row)}, before none.", "are new"),
    ("failed less", "better", _ended("failed", "fails less often"), "fail less often"),
    ("lost less", "better", _ended("lost", "gets no answer less often"), "get no answer less often"),
    ("late less", "better", _ended("late", "is answered too late less often"), "are answered too late less often"),
    ("faster", "better", _took("has become faster", slower=False), "have become faster"),
)
"""By kind of change: the finding's topic, the sentence about a single subject, and the words for further subjects."""


ENOUGH: Final = 20
SLOWER: Final = 4
"""A subject is called slow from this multiple of the usual p95 on."""
STEP_NS: Final = 1_000_000_000
"""Clock adjustments below this value are normal."""
LEAST_NS: Final = 5_000_000
"""Latencies below this value are never considered slow."""


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
    """Return the findings, most serious first. Problems of the service come before errors caused by a request."""
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
    rows = metrics["latency_over_time"]
    worst: dict[str, Any] = max(rows, key=lambda row: row.get("not_ok", 0), default={})
    bad = sum(row.get("not_ok", 0) for row in rows)
    if len(rows) < ENOUGH or worst.get("not_ok", 0) * 4 < bad or failed < ENOUGH:
        return ""
    within = shown_duration(metrics["window_ns"])
    return (
        f" {part_of(worst['not_ok'], bad, 'request')} without success began in the {within} from {moment(worst['window_ns'])}."
    )


def _missing(metrics: dict[str, Any]) -> Iterator[Finding]:
    yield from _without_answer(metrics, "missing", "were lost because their connection ended before the answer", "lost")
    yield from _without_answer(metrics, "missing", "were never answered", "timeout", "unanswered")
    if orphans := metrics["totals"]["orphans"]:
        told = [(_subject(row), row["n"]) for row in metrics["orphans"]]
        text = f"{counted(orphans, 'answer')} had no recorded request: {_most(told, orphans)}."
        yield Finding("missing", text, "Dead letters")


def _without_answer(metrics: dict[str, Any], about: str, what: str, *outcomes: str) -> Iterator[Finding]:
    totals = metrics["totals"]
    if n := sum(totals["outcomes"].get(name, 0) for name in outcomes):
        told = [(_subject(row), sum(row[name] for name in outcomes)) for row in metrics["latency"]]
        yield Finding(about, f"{part_of(n, totals['exchanges'])} {what}: {_most(told, n)}.", "Dead letters")


def _slow(metrics: dict[str, Any]) -> Iterator[Finding]:
    if late := metrics["totals"]["outcomes"].get("late", 0):
        told = [(_subject(row), row.get("late", 0)) for row in metrics["latency"]]
        yield Finding("slow", f"{counted(late, 'answer')} came too late: {_most(told, late)}.", "Slowest exchanges")
    rows = [row for row in metrics["latency"] if row["answered"] >= ENOUGH and row["p95_ns"]]
    usual = median(row["p95_ns"] for row in rows) if rows else 0
    for row in sorted(rows, key=lambda row: -row["p95_ns"])[:NAMED]:
        if len(rows) > 1 and row["p95_ns"] >= max(SLOWER * usual, LEAST_NS):
            text = (
                f"{shortened(_subject(row))} is slow: 5 % of its {row['answered']:,} answers took "
                f"{shown_duration(row['p95_ns'])} or more, compared with {shown_duration(usual)} for a typical subject."
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
            f"From {begin} to {end} all subjects were slow at times: half of the answers took "
            f"{shown_duration(worst['p50_ns'])} or more, compared with {shown_duration(usual)} usually."
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
    yield from _without_answer(metrics, "cancelled", "were cancelled by the asker", "cancelled")
    yield from _without_answer(
        metrics, "unseen", "had no answer before a gap in the recording, which may contain the answer", "unseen"
    )
    if open_at_end := metrics["totals"]["outcomes"].get("open-at-end", 0):
        yield Finding("unseen", f"{counted(open_at_end, 'request')} had no answer when the recording ended.", "Dead letters")


def _unheard(metrics: dict[str, Any]) -> Iterator[Finding]:
    told = [(_subject(row), row["n"]) for row in metrics["unheard"]]
    if lost := sum(n for _, n in told):
        text = f"{counted(lost, 'publication')} arrived without a subscribed client: {_most(told, lost)}."
        yield Finding("unheard", f"{text} Only the recorded program itself can have handled them.", "Throughput")


def _subject(row: dict[str, Any]) -> str:
    return row["subject"] or "no subject"


def _most(told: Sequence[tuple[str, int]], whole: int) -> str:
    """List the most frequent items with their counts, and the remaining share of the total."""
    summed = Counter[str]()
    for name, n in told:  # protocols may share names
        summed[name] += n
    some = sorted((pair for pair in summed.items() if pair[1]), key=lambda pair: -pair[1])[:NAMED]
    named = [f"{shortened(name)} ({n:,})" for name, n in some]
    rest = whole - sum(n for _, n in some)  # includes subjects beyond the list's length
    others = f" and {rest:,} other{'s' * (rest > 1)}" if rest else ""  # not "others (3)", which may be a subject
    return ", ".join(named) + others


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
    return session.get("who") or host_of(session["peer"]) or "unknown peer"


def _places(metrics: dict[str, Any]) -> Iterator[Finding]:
    """Report exchanges that have several views, and which view counts."""
    rows = [row for row in metrics["places"] if row["views"] > 1]
    if not (seen := sum(row["n"] for row in rows)):
        return
    other = seen - sum(row["n"] for row in rows if row["direction"] == 0)
    whose = f", {other:,} of them as the server saw it" if other else ""
    several = part_of(seen, metrics["totals"]["exchanges"])
    text = f"{several} were recorded at several places; each counts once, as the client saw it"
    ways = [(row["way_ns"], row["n"]) for row in rows if row["way_ns"] is not None]
    mean = sum(ns * n for ns, n in ways) / sum(n for _, n in ways) if ways else 0
    way = f" On average {shown_duration(mean)} of the latency was network time." if ways else ""
    yield Finding("places", f"{text}{whose}.{way}", "Latency")


def _clocks(metrics: dict[str, Any]) -> Iterator[Finding]:
    ahead = [(shortened(row["capture_id"]), row["ahead_ns"]) for row in metrics["clocks"] if row["ahead_ns"]]
    for name, ns in ahead[:NAMED]:
        way = "ahead of" if ns > 0 else "behind"
        yield Finding("clocks", f"The clock of recording {name} is {shown_duration(abs(ns))} {way} the others'.", "Clocks")
    stepped = [(shortened(row["capture_id"]), row["stepped_ns"]) for row in metrics["clocks"] if row["stepped_ns"] >= STEP_NS]
    for name, ns in stepped[:NAMED]:
        text = f"The clock of recording {name} jumped by {shown_duration(ns)}: it was set, or the machine slept."
        yield Finding("clocks", f"{text} Latencies are right, times before or after are not.", "Clocks")
