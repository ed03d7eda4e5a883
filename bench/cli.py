"""The command line."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from importlib.util import find_spec
from pathlib import Path

from attrs import asdict

from . import report
from .gate import run_gate
from .machine import describe
from .peers import PEER_WORKLOADS, ROUNDS, peer_lines
from .results import Row
from .runner import Plan, run_workload
from .systems import MAIN, PEERS, REFERENCE, SYSTEMS
from .systems._base import System
from .workloads import WORKLOADS, Workload

__all__ = ["main"]

_QUICK_SYSTEMS = [REFERENCE, "F@asyncio", "websockets@asyncio", MAIN, "ubre-ws@asyncio", "ubre-binary-tcp@asyncio"]
_NEEDS = {"asyncio": "asyncio", "uvloop": "uvloop", "trio": "trio"}


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    if arguments.gate:
        return run_gate()
    if arguments.peers:
        _mean_peers(arguments)
    plan, chosen = _plan(arguments), _systems(arguments)
    if plan.profile:
        Path(plan.profile).mkdir(parents=True, exist_ok=True)
    machine, started = describe(chosen), datetime.now(UTC)
    print("\n".join([f"{started:%Y-%m-%d %H:%M} UTC", *report.machine_lines(machine)]), flush=True)
    rows: list[Row] = []
    for workload in _workloads(arguments):
        found = run_workload(workload, [system for system in chosen if _takes_part(system, workload)], plan, _tell)
        rows += found
        _tell("")
        print("\n".join(report.workload_lines(workload, found)), flush=True)
    floors, good = report.floor_lines(rows)
    if arguments.peers:
        # Floors and targets are of the runs that are made for them.
        print("\n".join(peer_lines(rows, machine, os.getloadavg(), f"{started:%Y-%m-%d}")))
        good = True
    else:
        print(
            "\n".join(
                [*floors, *report.target_lines(rows), *report.better_rows(rows), "", f"load average at the end {_load()}"]
            )
        )
    if arguments.json:
        _write(arguments.json, {"at": started.isoformat(), "machine": machine, "plan": asdict(plan)}, rows)
    return 0 if good and not any(row.error for row in rows) else 1


def _mean_peers(arguments: argparse.Namespace) -> None:
    """What --peers stands for, where nothing else is said."""
    arguments.systems = arguments.systems or list(PEERS)
    arguments.only = arguments.only or list(PEER_WORKLOADS)
    arguments.rounds = arguments.rounds or ROUNDS


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description="polybus beside the limits of this machine")
    parser.add_argument("--quick", action="store_true", help="plain asyncio only, short runs")
    parser.add_argument("--full", action="store_true", help="also 5,000 idle connections, and five rounds")
    parser.add_argument("--peers", action="store_true", help="other libraries by processor time and by rate, five rounds")
    parser.add_argument("--gate", action="store_true", help="the CI gate: exit status 1 when polybus got dear")
    parser.add_argument("--only", type=_names, default=[], metavar="W2_64,...", help="these workloads")
    parser.add_argument("--systems", type=_names, default=[], metavar="ubre-*,...", help="these systems; * is allowed")
    parser.add_argument("--loops", type=_names, default=[], metavar="asyncio,uvloop,trio")
    parser.add_argument("--rounds", type=int, help="how often each is measured")
    parser.add_argument("--seconds", type=float, help="of each measurement")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all samples here")
    parser.add_argument("--profile", default="", metavar="DIR", help="write profiles of both sides; the rates are void")
    return parser


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _plan(arguments: argparse.Namespace) -> Plan:
    rounds = arguments.rounds or (2 if arguments.quick else 5 if arguments.full else 3)
    seconds = arguments.seconds or (0.3 if arguments.quick else 0.6)
    return Plan(rounds=rounds, seconds=seconds, profile=arguments.profile)


def _workloads(arguments: argparse.Namespace) -> list[Workload]:
    if unknown := [name for name in arguments.only if name not in WORKLOADS]:
        raise SystemExit(f"unknown workload {', '.join(unknown)}; there are {', '.join(WORKLOADS)}")
    if arguments.only:
        return [WORKLOADS[name] for name in arguments.only]
    return [workload for workload in WORKLOADS.values() if arguments.full or not workload.full_only]


def _systems(arguments: argparse.Namespace) -> list[System]:
    patterns = arguments.systems or (_QUICK_SYSTEMS if arguments.quick else ["*"])
    loops = arguments.loops or [loop for loop, module in _NEEDS.items() if find_spec(module)]
    chosen = [
        system
        for system in SYSTEMS.values()
        if system.loop in loops and any(fnmatchcase(system.key, pattern) for pattern in patterns)
    ]
    if not chosen:
        raise SystemExit(f"no such system; there are {', '.join(SYSTEMS)}")
    return chosen


def _takes_part(system: System, workload: Workload) -> bool:
    return workload.kind == "startup" or workload.name in system.workloads


def _tell(text: str) -> None:
    """Progress, where somebody watches."""
    if os.isatty(2):
        os.write(2, f"\r\033[K{text}".encode())


def _load() -> str:
    return " ".join(f"{load:.2f}" for load in os.getloadavg())


def _write(path: Path, head: dict[str, object], rows: Sequence[Row]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**head, "rows": [row.as_dict() for row in rows]}, indent=1) + "\n")
