"""Runs the systems of a workload in turn, with the raw peer between them, round after round."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import psutil
from attrs import evolve, frozen

from . import startup
from .processes import Child, ChildFailed, child, memory, spinners
from .results import Row, Sample
from .systems import REFERENCE, SYSTEMS
from .systems._base import System
from .workloads import Workload

__all__ = ["Plan", "run_workload"]

_DELIVERIES = 30_000
_FAN_TIMEOUT = 180.0
_SETTLE = 1.0


@frozen(kw_only=True)
class Plan:
    """How long and how often; `profile` is a folder for profiles of both sides, or empty."""

    rounds: int = 3
    seconds: float = 0.6
    warmup: float = 0.2
    profile: str = ""

    def arguments(self) -> list[str]:
        return ["--seconds", str(self.seconds), "--warmup", str(self.warmup)]


def run_workload(workload: Workload, systems: Sequence[System], plan: Plan, tell: Callable[[str], None]) -> list[Row]:
    """The rows of one workload, the reference first, and last those of the systems that are not installed."""
    absent = {system.key: missing for system in systems if (missing := system.missing)}
    systems = [system for system in systems if system.key not in absent]
    if workload.kind == "startup":
        return startup.measure(systems, tell)
    rows = [Row(workload=workload.name, system=key, missing=missing) for key, missing in absent.items()]
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
    rows[REFERENCE].samples[:] = [evolve(raw, ratio=1.0, cpu_ratio=1.0, ends_of_r=1.0) for raw in rows[REFERENCE].samples]
    return list(rows.values())


def compared(sample: Sample, near: Sequence[Sample]) -> Sample:
    """The sample with its ratios to the raw samples of the same moment."""
    rate = sum(raw.rate for raw in near) / len(near)
    cpu_us = sum(raw.cpu_us for raw in near) / len(near)
    others = max(run.others for run in (sample, *near))
    return evolve(
        sample,
        ratio=sample.rate / rate,
        cpu_ratio=cpu_us / sample.cpu_us,
        ends_of_r=sample.ends_us / cpu_us,
        between_of_r=sample.between_us / cpu_us,
        others=others,
    )


def _sample(workload: Workload, system: System, plan: Plan, rows: dict[str, Row]) -> Sample | None:
    """One more sample in the row of the system; after its first failure a system is not tried again."""
    row = rows[system.key]
    if row.error:
        return None
    try:
        sample = Sample.of(_run(workload, system, plan))
    except ChildFailed as error:
        rows[system.key] = evolve(row, error=str(error))
        return None
    row.samples.append(sample)
    return sample


def _run(workload: Workload, system: System, plan: Plan) -> dict[str, Any]:
    """A fresh server and a fresh client."""
    profiles = [f"{plan.profile}/{system.key}-{workload.name}-{side}.prof" for side in ("server", "client")]
    server_profile, client_profile = [["--profile", path] if plan.profile else [] for path in profiles]
    with child("server", system.key, *server_profile) as server:
        target = _target(workload, server.answer()["url"], server)
        if workload.kind == "fanout":
            with child("fan", system.key, *target, "--deliveries", str(_DELIVERIES)) as fan:
                return fan.answer(_FAN_TIMEOUT)
        with child("client", system.key, *target, *plan.arguments(), *client_profile) as client:
            return client.answer(60 + 5 * (plan.seconds + plan.warmup))


def _target(workload: Workload, url: str, server: Child) -> list[str]:
    return ["--workload", workload.name, "--url", url, "--server", str(server.pid)]


def _memory_row(workload: Workload, system: System, tell: Callable[[str], None]) -> Row:
    tell(f"{workload.name}, {system.key}")
    try:
        return Row(workload=workload.name, system=system.key, values=_memory(workload, system))
    except (ChildFailed, psutil.Error) as error:
        return Row(workload=workload.name, system=system.key, error=str(error))


def _memory(workload: Workload, system: System) -> dict[str, float]:
    """Growth of the server while light clients connect, per connection that it accepted."""
    # The clients' process comes first and opens later: pages that it shares with the server would count as shrinkage.
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
