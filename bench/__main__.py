"""``python -m bench``."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path

from scripts.python_build import build

from .processes import available_cores
from .results import FLOORS, Row, table
from .runner import Plan, run_gate, run_workload
from .start import start_times
from .systems import MAIN, PEERS, REFERENCE, SYSTEMS, System, version
from .workloads import WORKLOADS, Workload

_QUICK = [REFERENCE, "F@asyncio", "websockets@asyncio", MAIN, "ubre-ws@asyncio", "ubre-binary-tcp@asyncio"]
_PEER_WORKLOADS = ["serial", "64", "one-way"]
_PACKAGES = ["polybus", "anyio", "attrs", "msgspec", "trio", "uvloop", "websockets"]


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    if arguments.gate:
        return 0 if run_gate() else 1
    if arguments.start:
        print("\n".join(start_times(arguments.rounds or 15)))
        return 0
    chosen, workloads, plan = _systems(arguments), _workloads(arguments), _plan(arguments)
    heading = _heading(chosen, plan)
    print("\n".join(heading), flush=True)
    rows: list[Row] = []
    for workload in workloads:
        found = run_workload(workload, [system for system in chosen if workload.name in system.workloads], plan, _tell)
        rows += found
        _tell("")
        print("\n".join(table(workload, found)), flush=True)
    print(f"\nload average at the end {_load()}")
    if arguments.json:
        arguments.json.write_text(json.dumps({"heading": heading, "rows": [row.as_dict() for row in rows]}, indent=1) + "\n")
    values = [(floor, floor.value(rows)) for floor in FLOORS]
    good = all(floor.holds(value) for floor, value in values if value is not None)
    return 0 if good and not any(row.error.startswith("failed") for row in rows) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description="polybus beside the limits of this machine")
    parser.add_argument("--quick", action="store_true", help="plain asyncio only, short runs")
    parser.add_argument("--peers", action="store_true", help="other libraries beside ours, five rounds")
    parser.add_argument("--gate", action="store_true", help="the CI gate: exit status 1 when polybus got dear")
    parser.add_argument("--start", action="store_true", help="processor time of an import and of --help, 15 rounds")
    parser.add_argument("--only", type=_names, default=[], metavar="64,...", help="these workloads")
    parser.add_argument("--systems", type=_names, default=[], metavar="ubre-*,...", help="these systems; * is allowed")
    parser.add_argument("--loops", type=_names, default=["asyncio", "uvloop", "trio"], metavar="asyncio,uvloop,trio")
    parser.add_argument("--rounds", type=int, help="how often each is measured")
    parser.add_argument("--seconds", type=float, help="of each measurement")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all samples here")
    return parser


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _plan(arguments: argparse.Namespace) -> Plan:
    rounds = arguments.rounds or (2 if arguments.quick else 5 if arguments.peers else 3)
    return Plan(rounds=rounds, seconds=arguments.seconds or (0.3 if arguments.quick else 0.6))


def _workloads(arguments: argparse.Namespace) -> list[Workload]:
    names = arguments.only or (_PEER_WORKLOADS if arguments.peers else list(WORKLOADS))
    if unknown := [name for name in names if name not in WORKLOADS]:
        raise SystemExit(f"unknown workload {', '.join(unknown)}; there are {', '.join(WORKLOADS)}")
    return [WORKLOADS[name] for name in names]


def _systems(arguments: argparse.Namespace) -> list[System]:
    patterns = arguments.systems or (PEERS if arguments.peers else _QUICK if arguments.quick else ["*"])
    chosen = [
        system
        for system in SYSTEMS.values()
        if system.loop in arguments.loops and any(fnmatchcase(system.key, pattern) for pattern in patterns)
    ]
    if not chosen:
        raise SystemExit(f"no such system; there are {', '.join(SYSTEMS)}")
    return chosen


def _heading(systems: Sequence[System], plan: Plan) -> list[str]:
    """Place and conditions of the measurement: absolute figures mean nothing without them."""
    needs = dict.fromkeys([*_PACKAGES, *(need for system in systems for need in system.needs)])
    return [
        f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC; {platform.python_implementation()} {platform.python_version()}, {build()}; "
        f"{platform.system()} {platform.release()}, {len(available_cores())} cores, {platform.machine()}",
        f"{', '.join(f'{need} {found}' for need in needs if (found := version(need)))}; load average {_load()}",
        f"Medians of {plan.rounds} interleaved rounds of {plan.seconds:g} s, and the lowest and the highest.",
        f"x R: rate as a multiple of {REFERENCE} right before and after, so more is better; CPU us: processor time of client "
        "and server for a message; x R's: as a multiple of that one's, so less is better; between: of a broker or an engine.",
        "Rates are of this machine at this load: only ratios and processor time travel.",
    ]


def _tell(text: str) -> None:
    """Show progress on a terminal."""
    if os.isatty(2):
        os.write(2, f"\r\033[K{text}".encode())


def _load() -> str:
    return " ".join(f"{load:.2f}" for load in os.getloadavg())


if __name__ == "__main__":
    sys.exit(main())
