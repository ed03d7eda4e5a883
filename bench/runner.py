"""Runs the systems of a workload in turn, with the raw peer in between, round after round."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import psutil
from attrs import evolve, frozen

from .processes import Child, ChildFailed, child, memory, spinners
from .results import GATE, Floor, Row, Sample
from .systems import MAIN, REFERENCE, SYSTEMS, System
from .workloads import WORKLOADS, Workload

__all__ = ["Plan", "compared", "run_gate", "run_workload"]

_DELIVERIES = 30_000
_FAN_TIMEOUT = 180.0
_SETTLE = 1.0


@frozen(kw_only=True)
class Plan:
    """Durations in seconds, and number of rounds."""

    rounds: int = 3
    seconds: float = 0.6
    warmup: float = 0.2


def run_workload(workload: Workload, systems: Sequence[System], plan: Plan, tell: Callable[[str], None]) -> list[Row]:
    """Rows of one workload: the reference first, systems that are not installed last."""
    absent = {system.key: missing for system in systems if (missing := system.missing)}
    systems = [system for system in systems if system.key not in absent]
    rows = [Row(workload=workload.name, system=key, error=f"not installed: {missing}") for key, missing in absent.items()]
    if workload.kind == "memory":
        return [_memory_row(workload, system, tell) for system in systems] + rows
    with ExitStack() as stack:
        if workload.awake:
            stack.enter_context(spinners())
        return _interleaved(workload, systems, plan, tell) + rows


def _interleaved(workload: Workload, systems: Sequence[System], plan: Plan, tell: Callable[[str], None]) -> list[Row]:
    reference = SYSTEMS[REFERENCE]
    rows = {system.key: Row(workload=workload.name, system=system.key) for system in (reference, *systems)}
    others = [system for system in systems if system.key != REFERENCE]
    for turn in range(plan.rounds):
        tell(f"{workload.name}, round {turn + 1} of {plan.rounds}")
        before = _sample(workload, reference, plan, rows)
        for system in others:
            sample = _sample(workload, system, plan, rows)
            after = _sample(workload, reference, plan, rows)
            if sample is not None and (near := [raw for raw in (before, after) if raw is not None]):
                rows[system.key].samples[-1] = compared(sample, near)
            before = after
    return list(rows.values())


def compared(sample: Sample, near: Sequence[Sample]) -> Sample:
    """Sample with its ratios to the adjacent raw samples."""
    rate = sum(raw.rate for raw in near) / len(near)
    cpu_us = sum(raw.ends_us for raw in near) / len(near)
    return evolve(
        sample,
        ratio=sample.rate / rate,
        ends_of_r=sample.ends_us / cpu_us,
        between_of_r=sample.between_us / cpu_us,
        others=max(run.others for run in (sample, *near)),
    )


def _sample(workload: Workload, system: System, plan: Plan, rows: dict[str, Row]) -> Sample | None:
    """Add a sample to the row of a system; a system that has failed is not tried again."""
    row = rows[system.key]
    if row.error:
        return None
    try:
        sample = Sample.of(_run(workload, system, plan))
    except ChildFailed as error:
        rows[system.key] = evolve(row, error=f"failed: {error}")
        return None
    row.samples.append(sample)
    return sample


def _run(workload: Workload, system: System, plan: Plan) -> dict[str, Any]:
    """Run a fresh server and a fresh client."""
    with child("server", system.key) as server:
        target = _target(workload, server.answer()["url"], server)
        if workload.kind == "fanout":
            with child("fan", system.key, *target, "--deliveries", str(_DELIVERIES)) as fan:
                return fan.answer(_FAN_TIMEOUT)
        times = ["--seconds", str(plan.seconds), "--warmup", str(plan.warmup)]
        with child("client", system.key, *target, *times) as client:
            return client.answer(60 + 5 * (plan.seconds + plan.warmup))


def _target(workload: Workload, url: str, server: Child) -> list[str]:
    return ["--workload", workload.name, "--url", url, "--server", str(server.pid)]


def _memory_row(workload: Workload, system: System, tell: Callable[[str], None]) -> Row:
    tell(f"{workload.name}, {system.key}")
    try:
        return Row(workload=workload.name, system=system.key, memory=_memory(workload, system))
    except (ChildFailed, psutil.Error) as error:
        return Row(workload=workload.name, system=system.key, error=f"failed: {error}")


def _memory(workload: Workload, system: System) -> dict[str, float]:
    """Growth of the server while light clients connect, per accepted connection."""
    # Start the clients' process first: pages that it shares with the server would otherwise count as shrinkage.
    with (
        child("server", system.key) as server,
        child("idle", system.key, *_target(workload, server.answer()["url"], server)) as clients,
    ):
        clients.answer()
        time.sleep(_SETTLE)
        process = psutil.Process(server.pid)
        descriptors, (shared, unique) = process.num_fds(), memory(server.pid)
        clients.tell("open")
        clients.answer(_FAN_TIMEOUT)
        end = time.monotonic() + _FAN_TIMEOUT
        while process.num_fds() - descriptors < workload.connections and time.monotonic() < end:
            time.sleep(0.1)
        time.sleep(_SETTLE)
        accepted = process.num_fds() - descriptors
        if accepted < workload.connections:
            raise ChildFailed(f"{accepted} of {workload.connections} connections were kept")
        shared_after, unique_after = memory(server.pid)
    return {
        "pss_kib": (shared_after - shared) / accepted / 1024,
        "uss_kib": (unique_after - unique) / accepted / 1024,
        "base_mib": unique / 1024 / 1024,
    }


_GATE_PLAN = Plan(rounds=3, seconds=0.5)


def run_gate() -> bool:
    """True if polybus keeps the bounds of the CI; prints the results.

    A failed gate is measured once more, longer: noise passes the second time, a real loss does not.
    """
    good = True
    for bound in GATE:
        for plan in (_GATE_PLAN, evolve(_GATE_PLAN, rounds=7)):
            rows = run_workload(WORKLOADS[bound.workload], [SYSTEMS[bound.beside], SYSTEMS[MAIN]], plan, lambda _: None)
            value = bound.value(rows)
            passed = value is not None and bound.holds(value)
            if passed:
                break
        good = good and passed
        print(_gate_line(bound, value, rows, passed=passed), flush=True)
    return good


def _gate_line(bound: Floor, value: float | None, rows: Sequence[Row], *, passed: bool) -> str:
    if value is None:
        return f"{bound.workload}: FAILED, nothing was measured: {'; '.join(row.error for row in rows if row.error)}"
    costs = ", ".join(f"{row.system} {row.median('client_us'):.2f} + {row.median('server_us'):.2f} us" for row in rows)
    return f"{bound.workload}: {'passed' if passed else 'FAILED'}, is {value:.2f}, must be {bound} ({costs})"
