"""The tables of peers: what each system takes of the processor beside R, and the rate; where a peer is ahead of ours first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from attrs import frozen

from .results import Row, Sample
from .systems import REFERENCE, SYSTEMS
from .workloads import WORKLOADS

__all__ = ["ROUNDS", "PEER_WORKLOADS", "peer_lines"]

ROUNDS = 5
"""Fewer are no medians to quote."""

PEER_WORKLOADS = ("W1", "W2_64", "W3_64")
_TITLES = {"W1": "serial", "W1_awake": "serial, awake", "W2_64": "64 in flight", "W2_256": "256 in flight", "W3_64": "one way"}


@frozen(kw_only=True)
class Table:
    """One figure of every system at every workload."""

    title: str
    figure: str
    less_is_better: bool
    besides: str = ""
    """A figure that is shown apart, behind a plus sign, and not compared."""

    def ahead(self, peer: Row, ours: Row) -> bool:
        theirs, own = median(peer.of_all(self.figure)), median(ours.of_all(self.figure))
        return theirs < own if self.less_is_better else theirs > own

    def cell(self, row: Row, *, ahead: bool) -> str:
        values = row.of_all(self.figure)
        shown = _number(median(values))
        text = f"**{shown}**" if ahead else shown
        if values[0] != values[-1]:
            text += f" ({_number(values[0])} to {_number(values[-1])})"
        between = median(row.of_all(self.besides)) if self.besides else 0.0
        return f"{text} + {_number(between)}" if between else text


_TIMES = Table(
    title="Processor time of both ends for a message, as a multiple of R's: less is better. "
    "Behind a plus sign that of the server in between.",
    figure="ends_of_r",
    besides="between_of_r",
    less_is_better=True,
)
_RATES = Table(title="Messages a second, as a multiple of R's: more is better.", figure="ratio", less_is_better=False)


def peer_lines(rows: Sequence[Row], machine: Mapping[str, Any], load_after: Sequence[float], day: str) -> list[str]:
    """Both tables, in Markdown, below what they were measured with."""
    found: dict[str, dict[str, Row]] = {}
    for row in rows:
        found.setdefault(row.system, {})[row.workload] = row
    workloads = list(dict.fromkeys(row.workload for row in rows if row.workload in WORKLOADS))
    lines = ["", "Peers", "", *_heading(rows, machine, load_after, day)]
    for table in (_TIMES, _RATES):
        lines += ["", table.title, "", *_aligned(_table(table, found, workloads))]
    failed = [f"{row.system}, {row.workload}, failed: {row.error}" for row in rows if row.error]
    return lines + (["", *failed] if failed else [])


def _heading(rows: Sequence[Row], machine: Mapping[str, Any], load_after: Sequence[float], day: str) -> list[str]:
    samples = [sample for row in rows for sample in row.samples]
    rounds = min((len(row.samples) for row in rows if row.samples and row.system != REFERENCE), default=0)
    packages = ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
    few = "" if rounds >= ROUNDS else f", fewer than {ROUNDS}: not to be quoted"
    return [
        f"{day}, {machine['python']}, {machine['system']}, {machine['cores']} cores; {packages}",
        f"Medians of {rounds} interleaved rounds{few}, and the lowest and the highest; R right before and after each run",
        f"Load average {_load(machine['load'])} before, {_load(load_after)} after; {_others(samples)}",
        "Bold: ahead of ours over the same kind of way (TCP, WebSocket, a server in between)",
    ]


def _load(averages: Sequence[float]) -> str:
    return " ".join(f"{average:.2f}" for average in averages)


def _others(samples: Sequence[Sample]) -> str:
    if not samples:
        return "nothing was measured"
    busy = median(sample.others for sample in samples)
    disturbed = sum(sample.disturbed for sample in samples)
    verdict = "the machine was not quiet, so the rates are no figures to compare" if disturbed * 10 > len(samples) else "quiet"
    return f"other programs kept {busy:.2f} cores busy, in {disturbed} of {len(samples)} runs more than is quiet: {verdict}"


def _table(table: Table, found: Mapping[str, Mapping[str, Row]], workloads: Sequence[str]) -> list[list[str]]:
    """The head, and the rows: peers that are ahead somewhere, ours, the other peers, the limits, what is not there."""
    systems = sorted(found, key=lambda key: _place(table, key, found, workloads))
    head = ["system", "carries", *(_TITLES.get(workload, workload) for workload in workloads)]
    return [head] + [
        [
            key.removesuffix("@asyncio"),
            "JSON" if SYSTEMS[key].options.get("body") == "json" else "bytes",
            *(_cell(table, key, found, workload) for workload in workloads),
        ]
        for key in systems
    ]


def _cell(table: Table, key: str, found: Mapping[str, Mapping[str, Row]], workload: str) -> str:
    row = found[key].get(workload)
    if row is None:
        return ""
    if row.samples:
        return table.cell(row, ahead=_ahead(table, key, found, workload))
    return f"not installed: {row.missing}" if row.missing else "failed"


def _ahead(table: Table, key: str, found: Mapping[str, Mapping[str, Row]], workload: str) -> bool:
    """Whether it is a peer and ahead of ours there."""
    theirs, ours = found[key].get(workload), found.get(SYSTEMS[key].beside, {}).get(workload)
    return bool(theirs and theirs.samples and ours and ours.samples and table.ahead(theirs, ours))


def _place(
    table: Table, key: str, found: Mapping[str, Mapping[str, Row]], workloads: Sequence[str]
) -> tuple[int, int, float, str]:
    measured = [row for row in found[key].values() if row.samples]
    ahead = sum(_ahead(table, key, found, workload) for workload in workloads)
    system = SYSTEMS[key]
    if not measured:
        group = 4
    elif ahead:
        group = 0
    elif system.beside:
        group = 2
    else:
        group = 3 if system.note == "limit" else 1
    value = sum(median(row.of_all(table.figure)) for row in measured) / max(1, len(measured))
    return group, -ahead, value if table.less_is_better else -value, key


def _aligned(table: list[list[str]]) -> Iterable[str]:
    head, *others = table
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |"

    return [line(head), "| " + " | ".join("-" * width for width in widths) + " |", *map(line, others)]


def _number(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"
