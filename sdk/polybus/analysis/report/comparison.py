"""Comparison with an earlier capture: subjects that are slower, fail more, get lost more, are new or gone.

It is computed from both captures' metrics, so it does not depend on the engine.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Sized
from math import sqrt
from typing import Any, Final

import attrs
import msgspec

from polybus.capture.errors import CaptureError
from polybus.capture.store.filesystems import AnyPath

from ...plugins.tools import counted
from ..storage import TableStorage, absolute
from .tables import FEW, MANY
from .words import duration, moment, part_of, shortened


@attrs.frozen
class Finding:
    """A sentence of the verdict, and the place of its evidence."""

    about: str
    """fine, failed, missing, slow, broke, unheard, refused, new, better, same, unseen, cancelled, places or clocks."""
    text: str
    section: str
    """Title of the report's section with the evidence."""


_FILE: Final = "metrics.json"


class SubjectRow(msgspec.Struct, frozen=True):
    """Exchanges of a subject: some columns of ``metrics/latency``."""

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
        """Return True if the client's view counts for most requests; its latencies differ from the server's."""
        return self.asked * 2 > self.n

    @property
    def missing(self) -> int:
        return self.timeout + self.unanswered + self.lost


class TopicRow(msgspec.Struct, frozen=True):
    """Publications of a subject: some columns of ``metrics/topics``."""

    protocol: str | None
    subject: str | None
    direction: int | None
    n: int


class _Totals(msgspec.Struct, frozen=True):
    exchanges: int


class Measured(msgspec.Struct, frozen=True):
    """The compared part of a capture's metrics."""

    capture: str
    begin_ns: int
    end_ns: int
    totals: _Totals
    latency: list[SubjectRow]
    topics: list[TopicRow]


class Earlier(msgspec.Struct, frozen=True):
    """Results to compare with."""

    measured: Measured
    digest: str
    """Digest of the file, which identifies the results."""


def read_earlier(before: AnyPath, out: AnyPath) -> Earlier:
    """Read the metrics in `before` to compare the results `out` with; CaptureError if there are none, or of another version."""
    path = os.fspath(before)
    if absolute(path).rstrip("/") == absolute(os.fspath(out)).rstrip("/"):
        raise CaptureError(f"{path} is the folder of these results: choose the results of an earlier capture")
    storage = TableStorage(before)
    if _FILE not in storage.names():
        raise CaptureError(f"{path} has no {_FILE} to compare with: `polybus analyse CAPTURE --out {path}` writes it")
    text = storage.read(_FILE)
    try:
        measured = msgspec.json.decode(text, type=Measured)
    except (ValueError, RecursionError) as error:
        raise CaptureError(
            f"{path}/{_FILE} is of another version of polybus, or damaged ({error}): analyse that capture again, into a new "
            "folder"
        ) from error
    return Earlier(measured, hashlib.sha256(text).hexdigest()[:16])


def measured_of(metrics: object) -> Measured:
    return msgspec.convert(metrics, Measured)


Rows = list[dict[str, Any]]

TIMES: Final = 1.5
"""Factor of growth at which a latency or a share of bad ends is reported."""
LEAST_NS: Final = 1_000_000
"""A latency that changed by less is the same."""
ERRORS: Final = 3.0
"""Standard errors between two shares that are more than chance."""
ENOUGH: Final = 20
"""Answers on both sides needed to compare a median; a p95 needs `FEW`."""
EXPECTED: Final = 5.0
"""Expected messages of a subject, by the earlier capture, for it to be gone."""
NAMED: Final = 3
"""Subjects with a sentence of their own, per kind of change."""

TITLE: Final = "Compared"
_Key = tuple[str, str | None, str | None]


def compare(metrics: dict[str, Any], earlier: Earlier | None) -> dict[str, Any]:
    """Return the members ``changes`` and ``compared`` of the metrics; empty and None without an earlier capture."""
    if earlier is None:
        return {"changes": [], "compared": None}
    now, before = measured_of(metrics), earlier.measured
    rows = [*_requests(now, before), *_publications(now, before)]
    rows.sort(key=lambda row: (row["change"] is None, -max(row["n"], row["n_before"]), str(_key(row))))
    told = {name: getattr(before, name) for name in ("capture", "begin_ns", "end_ns")}
    more = {"exchanges": before.totals.exchanges, "digest": earlier.digest}
    return {"changes": rows[:MANY], "compared": told | more}


def is_of(metrics: dict[str, Any], earlier: Earlier | None) -> bool:
    """True if these metrics were compared with the same results."""
    made = metrics.get("compared")
    return (made["digest"] if made else None) == (earlier.digest if earlier is not None else None)


def _key(row: dict[str, Any]) -> _Key:
    return row["kind"], row["protocol"], row["subject"]


# -- rows --------------------------------------------------------------------------------------------------------------------


def _requests(now: Measured, before: Measured) -> Iterator[dict[str, Any]]:
    ours, theirs = _by_subject(now.latency), _by_subject(before.latency)
    share = _share(now, before)
    for key in {**ours, **theirs}:
        one, other = ours.get(key, _NONE), theirs.get(key, _NONE)
        came = _came(one.n, other.n, share, now.latency, before.latency)
        yield {
            **{"kind": "request", "protocol": key[0], "subject": key[1]},
            "change": ", ".join([*came, *_ends(one, other), *_pace(one, other)]) or None,
            **{"n": one.n, "n_before": other.n, "failed": one.error, "failed_before": other.error},
            **{"lost": one.missing, "lost_before": other.missing, "late": one.late, "late_before": other.late},
            **{"p50_ns": one.p50_ns, "p50_before_ns": other.p50_ns, "p95_ns": one.p95_ns, "p95_before_ns": other.p95_ns},
        }


def _publications(now: Measured, before: Measured) -> Iterator[dict[str, Any]]:
    ours, theirs = _by_topic(now.topics), _by_topic(before.topics)
    share = _share(now, before)
    for protocol, subject in {**ours, **theirs}:
        n, n_before = ours.get((protocol, subject), 0), theirs.get((protocol, subject), 0)
        change = ", ".join(_came(n, n_before, share, now.topics, before.topics)) or None
        said = {"kind": "publish", "protocol": protocol, "subject": subject, "change": change}
        yield said | {"n": n, "n_before": n_before}


_NONE: Final = SubjectRow(None, None, 0, 0, None, None, 0, 0, 0, 0, 0)


def _by_subject(rows: Iterable[SubjectRow]) -> dict[tuple[str | None, str | None], SubjectRow]:
    return {(row.protocol, row.subject): row for row in rows}


def _by_topic(rows: Iterable[TopicRow]) -> dict[tuple[str | None, str | None], int]:
    found: dict[tuple[str | None, str | None], int] = {}
    for row in rows:
        found[row.protocol, row.subject] = found.get((row.protocol, row.subject), 0) + row.n
    return found


def _share(now: Measured, before: Measured) -> float:
    """Return the share of the earlier messages to expect now, by the lengths of the captures."""
    length, length_before = now.end_ns - now.begin_ns, before.end_ns - before.begin_ns
    return min(1.0, length / length_before) if length_before > 0 else 1.0


def _came(n: int, n_before: int, share: float, ours: Sized, theirs: Sized) -> list[str]:
    """Compare numbers of messages. A subject that is missing in a full list may be neither gone nor new."""
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
    """True if the share of bad ends has grown beyond chance, and enough to matter."""
    if not n or not n_before:
        return False
    share, share_before, pooled = bad / n, bad_before / n_before, (bad + bad_before) / (n + n_before)
    error = sqrt(pooled * (1 - pooled) * (1 / n + 1 / n_before))
    return share >= TIMES * share_before and share - share_before > ERRORS * error


def _pace(one: SubjectRow, other: SubjectRow) -> list[str]:
    if one.as_asked != other.as_asked:
        return []
    enough = min(one.answered, other.answered)
    pairs = [(one.p50_ns, other.p50_ns)] * (enough >= ENOUGH) + [(one.p95_ns, other.p95_ns)] * (enough >= FEW)
    if any(_is_slower(ns, ns_before) for ns, ns_before in pairs):
        return ["slower"]
    return ["faster"] if any(_is_slower(ns_before, ns) for ns, ns_before in pairs) else []


def _is_slower(ns: int | None, ns_before: int | None) -> bool:
    return ns is not None and ns_before is not None and ns >= TIMES * ns_before and ns - ns_before >= LEAST_NS


# -- sentences ---------------------------------------------------------------------------------------------------------------


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
        now, before = duration(row[f"{name}_ns"]), duration(row[f"{name}_before_ns"])
        return f"{words}: {share} of {row['n']:,} requests took {now} or more, before {before} of {row['n_before']:,}."

    return tell


def _what(row: dict[str, Any], n: int) -> str:
    word = "publication" if row["kind"] == "publish" else "request"
    return counted(n, word)


_TOLD: Final = (
    ("failed more", "failed", _ended("failed", "fails more often"), "fail more often"),
    ("lost more", "missing", _ended("lost", "gets no answer more often"), "get no answer more often"),
    ("gone", "missing", lambda row: f"is gone: none, before {_what(row, row['n_before'])}.", "are gone"),
    (
        "fewer",
        "missing",
        lambda row: f"has become rare: {_what(row, row['n'])}, before {_what(row, row['n_before'])}.",
        "have become rare",
    ),
    ("late more", "slow", _ended("late", "is answered too late more often"), "are answered too late more often"),
    ("slower", "slow", _took("has become slower", slower=True), "have become slower"),
    ("new", "new", lambda row: f"is new: {_what(row, row['n'])}, before none.", "are new"),
    ("failed less", "better", _ended("failed", "fails less often"), "fail less often"),
    ("lost less", "better", _ended("lost", "gets no answer less often"), "get no answer less often"),
    ("late less", "better", _ended("late", "is answered too late less often"), "are answered too late less often"),
    ("faster", "better", _took("has become faster", slower=False), "have become faster"),
)
"""By kind of change: the finding's topic, the sentence about one subject, and the words for further subjects."""
