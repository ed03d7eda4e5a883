"""The tables, the floors and the rows where somebody else is better."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from .floors import FLOORS, TARGETS, floor_of, goal_of
from .results import Row
from .systems import CEILING, MAIN, REFERENCE
from .workloads import WORKLOADS, Workload

__all__ = ["better_rows", "floor_lines", "machine_lines", "target_lines", "workload_lines"]

Column = tuple[str, Callable[[Row], str]]


def _number(value: float, digits: int = 2) -> str:
    return f"{value:,.{digits}f}" if value else "-"


def _rate(row: Row) -> str:
    rate = row.median("rate")
    if row.workload == "W6":
        return f"{rate * WORKLOADS['W6'].size / 1e6:,.0f} MB/s"
    return f"{rate / 1000:,.1f} k/s"


def _value(name: str, digits: int) -> Callable[[Row], str]:
    return lambda row: _number(row.values.get(name, 0.0), digits)


def _floor(row: Row) -> str:
    floor = floor_of(row)
    return str(floor) if floor else ""


def _goal(row: Row) -> str:
    goal = goal_of(row)
    return f"{goal:g}" if goal else ""


def _beside_ceiling(rows: Sequence[Row]) -> Callable[[Row], str]:
    ceiling = next((row.median("rate") for row in rows if row.system == CEILING), 0.0)
    return lambda row: _number(row.median("rate") / ceiling if ceiling else 0.0)


def _columns(workload: Workload, rows: Sequence[Row]) -> list[Column]:
    if workload.kind == "memory":
        return [
            ("KiB, PSS", _value("pss_kib", 1)),
            ("KiB, USS", _value("uss_kib", 1)),
            ("process, MiB", _value("base_mib", 1)),
        ]
    if workload.kind == "startup":
        return [("CPU ms", _value("cpu_ms", 1)), ("first reply ms", _value("first_reply_ms", 1))]
    columns: list[Column] = [
        ("rate", _rate),
        ("CPU us client", lambda row: _number(row.median("client_us"))),
        ("server", lambda row: _number(row.median("server_us"))),
    ]
    if any(row.median("between_us") for row in rows):
        columns.append(("between", lambda row: _number(row.median("between_us"))))
    if workload.in_flight == 1 and workload.kind == "request":
        columns += [
            ("p50 us", lambda row: _number(row.median("p50_us"), 0)),
            ("p99 us", lambda row: _number(row.median("p99_us"), 0)),
        ]
    return [
        *columns,
        ("x CPU of R", lambda row: _number(row.median("cpu_ratio"))),
        ("x F", _beside_ceiling(rows)),
        ("x R", lambda row: _number(row.median("ratio"))),
    ]


def workload_lines(workload: Workload, rows: Sequence[Row]) -> list[str]:
    """The table of one workload."""
    columns: list[Column] = [("system", lambda row: row.system), *_columns(workload, rows)]
    columns += [("goal", _goal), ("floor", _floor), ("", lambda row: _verdict(row, rows))]
    table = [[title for title, _ in columns]]
    table += [[cell(row) for _, cell in columns] for row in rows if row.measured]
    lines = ["", f"{workload.name}: {workload.title}", *_aligned(table)]
    samples = [sample for row in rows for sample in row.samples]
    if disturbed := sum(sample.disturbed for sample in samples):
        lines.append(f"  disturbed by other processes: {disturbed} of {len(samples)} samples")
    lines += [f"  {row.system} failed: {row.error}" for row in rows if row.error]
    return lines + [f"  {row.system}: not installed: {row.missing}" for row in rows if row.missing]


def _verdict(row: Row, rows: Sequence[Row]) -> str:
    floor = floor_of(row)
    value = floor.value(rows) if floor else None
    if floor is None or value is None:
        return ""
    shown = "" if floor.figure == "ratio" and not floor.beside else f" ({floor.figure} {value:.2f})"
    return ("holds" if floor.holds(value) else "BROKEN") + shown


def _aligned(table: list[list[str]]) -> Iterable[str]:
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for cells in table:
        first, *others = [
            cell.ljust(width) if index in (0, len(cells) - 1) else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        yield "  " + "  ".join([first, *others]).rstrip()


def floor_lines(rows: Sequence[Row]) -> tuple[list[str], bool]:
    """Every floor that was measured, and whether all of these hold."""
    lines, good = [], True
    for floor in FLOORS:
        value = floor.value(rows)
        if value is None:
            continue
        holds = floor.holds(value)
        good = good and holds
        word = "holds " if holds else "BROKEN"
        lines.append(f"  {word} {floor.workload:9}{floor.system:18}{floor.figure:8}{floor!s:>20}   is {value:.2f}")
    return (["", "Floors:", *lines] if lines else []), good


def target_lines(rows: Sequence[Row]) -> list[str]:
    """Every target beside another system that was measured: nothing fails for them."""
    lines = []
    for target in TARGETS:
        value = target.value(rows)
        if value is not None:
            word = "reached" if target.holds(value) else "MISSED "
            lines.append(f"  {word} {target.workload:9}{target.system:22}{target.figure:8}{target!s:>20}   is {value:.2f}")
    return ["", "Targets:", *lines] if lines else []


def better_rows(rows: Sequence[Row]) -> list[str]:
    """Where a limit or a peer is ahead of polybus on plain asyncio: said as plainly as the rest."""
    lines = []
    for name in dict.fromkeys(row.workload for row in rows):
        of_workload = {row.system: row for row in rows if row.workload == name and row.samples}
        main = of_workload.get(MAIN)
        if main is None:
            continue
        ours = main.median("rate")
        ahead = [
            f"{row.system} {row.median('rate') / ours:.2f} x"
            for row in of_workload.values()
            if not row.system.startswith("ubre-") and row.median("rate") > ours
        ]
        if ahead:
            lines.append(f"  {name:9}{', '.join(ahead)}")
    return ["", f"Ahead of {MAIN}:", *lines] if lines else []


def machine_lines(machine: dict[str, Any]) -> list[str]:
    packages = ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
    load = " ".join(map(str, machine["load"]))
    return [
        f"{machine['python']}, {machine['system']}, {machine['cores']} cores, {machine['processor']}",
        f"{packages}; load average {load}",
        f"x R: rate as a multiple of {REFERENCE} right before and after; x F: median rate as a multiple of {CEILING}'s.",
        "between: processor time of a broker or an engine between the two ends, for a message.",
        "x CPU of R: processor time per message of R as a multiple of this one's, so more is better.",
        "Rates are of this machine at this load: only the ratios travel.",
    ]
