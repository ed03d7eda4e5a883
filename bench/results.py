"""Results: samples, their medians, the bounds for them, and the table of a workload."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from attrs import asdict, field, frozen

from .systems import CEILING, MAIN, SYSTEMS
from .workloads import Workload

__all__ = ["FLOORS", "GATE", "Floor", "Row", "Sample", "table"]

_QUIET = 0.15


@frozen(kw_only=True)
class Sample:
    """One run of one system in one round.

    `between_us` is the time of a broker or engine between the two ends. `ratio` (of rates), `ends_of_r` and `between_of_r`
    (of processor time) are multiples of the raw peer's values right before and after. `others` is the number of cores busy
    with other work during these runs: if it is high, rates say little.
    """

    rate: float = 0.0
    client_us: float = 0.0
    server_us: float = 0.0
    between_us: float = 0.0
    p50_us: float = 0.0
    p99_us: float = 0.0
    ratio: float = 1.0
    ends_of_r: float = 1.0
    between_of_r: float = 0.0
    others: float = 0.0

    @property
    def disturbed(self) -> bool:
        return self.others > _QUIET

    @property
    def ends_us(self) -> float:
        return self.client_us + self.server_us

    @classmethod
    def of(cls, run: dict[str, Any]) -> Sample:
        """Parse the line that a client printed."""
        count = run["count"]
        return cls(
            rate=count / run["seconds"],
            client_us=run["client_cpu"] / count * 1e6,
            server_us=run["server_cpu"] / count * 1e6,
            between_us=run["between_cpu"] / count * 1e6,
            p50_us=run.get("p50", 0.0) * 1e6,
            p99_us=run.get("p99", 0.0) * 1e6,
            others=run["others"],
        )


@frozen(kw_only=True)
class Row:
    """One system at one workload."""

    workload: str
    system: str
    samples: list[Sample] = field(factory=list)
    memory: dict[str, float] = field(factory=dict)
    """KiB per additional connection, and MiB of the process without connections."""
    error: str = ""

    def median(self, name: str) -> float:
        """Median of the undisturbed samples, if there are any; 0 without samples."""
        if not self.samples:
            return self.memory.get(name, 0.0)
        quiet = [sample for sample in self.samples if not sample.disturbed]
        return float(median(getattr(sample, name) for sample in quiet or self.samples))

    def shown(self, name: str) -> str:
        """Median with minimum and maximum."""
        values = [getattr(sample, name) for sample in self.samples]
        spread = f" ({min(values):.2f} to {max(values):.2f})" if min(values) != max(values) else ""
        return f"{self.median(name):.2f}{spread}"

    def as_dict(self) -> dict[str, Any]:
        names = [name for name in asdict(Sample()) if self.samples] or list(self.memory)
        return {**asdict(self), "median": {name: self.median(name) for name in names}}


@frozen(kw_only=True)
class Floor:
    """Bound on one figure of one row; with `beside`, on its ratio to the same figure of another system."""

    workload: str
    system: str = MAIN
    figure: str = "ratio"
    at_least: float = 0.0
    at_most: float = float("inf")
    beside: str = ""

    def value(self, rows: Sequence[Row]) -> float | None:
        """The figure, or None if it was not measured."""
        found = {row.system: row.median(self.figure) for row in rows if row.workload == self.workload}
        value, other = found.get(self.system, 0.0), found.get(self.beside, 0.0) if self.beside else 1.0
        return value / other if value and other else None

    def holds(self, value: float) -> bool:
        return self.at_least <= value <= self.at_most

    def __str__(self) -> str:
        bound = f">= {self.at_least:g}" if self.at_least else f"<= {self.at_most:g}"
        return f"{self.figure} {bound}" + (f" x {self.beside.partition('@')[0]}" if self.beside else "")


# Processor time per message depends least on the machine and its load, and one of a hundred CI runs must not fail by chance.
# R is no yardstick for that: it is mostly one system call per message, whose price differs between machines (with 64 in
# flight the same commit has 0.54, 0.42 and 0.33 of R), and one-way it costs from 3 to 9 us, depending on whether its peer
# keeps up. F is Python like ours: with 64 in flight ours is 5.5 to 6.9 times F, and 8.9 beside a full load.
GATE = (
    Floor(workload="64", figure="ends_us", at_most=10, beside=CEILING),
    Floor(workload="one-way", figure="ends_us", at_most=12, beside=CEILING),
)

FLOORS = (
    *GATE,
    Floor(workload="serial", at_least=0.45),
    Floor(workload="256", figure="ends_us", at_most=12, beside=CEILING),
    Floor(workload="fan-out", at_least=0.75),
    Floor(workload="idle", figure="pss_kib", at_most=5),
    Floor(workload="idle", system="ubre-ws@asyncio", figure="pss_kib", at_most=12),
    Floor(workload="64", system="ubre-ws@asyncio", figure="rate", at_least=1.2, beside="websockets@asyncio"),
)

Column = tuple[str, Callable[[Row], str]]


def table(workload: Workload, rows: Sequence[Row]) -> list[str]:
    """Markdown table of one workload; a peer that is ahead of ours over the same kind of way is bold."""
    columns: list[Column] = [("system", lambda row: row.system), *_columns(workload, rows)]
    if any(floor.value(rows) for floor in FLOORS):
        columns.append(("floor", lambda row: _verdict(row, rows)))
    lines = [[title for title, _ in columns], ["---"] * len(columns)]
    lines += [[cell(row) for _, cell in columns] for row in rows if row.samples or row.memory]
    told = ["", f"{workload.name}: {workload.title}", "", *(f"| {' | '.join(cells)} |" for cells in lines)]
    samples = [sample for row in rows for sample in row.samples]
    if disturbed := sum(sample.disturbed for sample in samples):
        told += ["", f"disturbed by other processes: {disturbed} of {len(samples)} samples"]
    return told + [f"{row.system}: {row.error}" for row in rows if row.error]


def _columns(workload: Workload, rows: Sequence[Row]) -> list[Column]:
    if workload.kind == "memory":
        return [
            ("KiB, PSS", lambda row: f"{row.median('pss_kib'):.1f}"),
            ("KiB, USS", lambda row: f"{row.median('uss_kib'):.1f}"),
            ("process, MiB", lambda row: f"{row.median('base_mib'):.1f}"),
        ]
    columns: list[Column] = [
        ("a second", lambda row: f"{row.median('rate'):,.0f}"),
        ("x R", lambda row: _ahead(row, rows, "ratio", more=True)),
        ("CPU us", lambda row: f"{row.median('client_us'):.2f} + {row.median('server_us'):.2f}"),
        ("x R's", lambda row: _ahead(row, rows, "ends_of_r", more=False)),
    ]
    if any(row.median("between_us") for row in rows):
        columns.append(("between, us", lambda row: f"{row.median('between_us'):.2f}" if row.median("between_us") else ""))
        columns.append(("of R's", lambda row: row.shown("between_of_r") if row.median("between_us") else ""))
    if workload.in_flight == 1 and workload.kind == "request":
        columns.append(("p50, p99 us", lambda row: f"{row.median('p50_us'):.0f}, {row.median('p99_us'):.0f}"))
    return columns


def _ahead(row: Row, rows: Sequence[Row], figure: str, *, more: bool) -> str:
    ours = next((other for other in rows if other.system == SYSTEMS[row.system].beside and other.samples), row)
    theirs, own = row.median(figure), ours.median(figure)
    return f"**{row.shown(figure)}**" if (theirs > own if more else theirs < own) else row.shown(figure)


def _verdict(row: Row, rows: Sequence[Row]) -> str:
    words = []
    for floor in FLOORS:
        value = floor.value(rows)
        if (floor.workload, floor.system) == (row.workload, row.system) and value is not None:
            words.append(f"{floor} {'holds' if floor.holds(value) else 'BROKEN'}: {value:.2f}")
    return ", ".join(words)
