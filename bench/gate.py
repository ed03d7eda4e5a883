"""The gate of the CI: processor time per message beside F, in short interleaved runs."""

from __future__ import annotations

from attrs import evolve

from .floors import GATE, Floor
from .results import Row
from .runner import Plan, run_workload
from .systems import MAIN, SYSTEMS
from .workloads import WORKLOADS

__all__ = ["run_gate"]

_PLAN = Plan(rounds=3, seconds=0.5, warmup=0.2)


def run_gate() -> int:
    """Prints what it found and gives the exit status.

    A gate that is not passed is measured once more, longer: noise passes the second time, a real loss does not.
    """
    good = True
    for bound in GATE:
        workload = WORKLOADS[bound.workload]
        for plan in (_PLAN, evolve(_PLAN, rounds=7)):
            rows = run_workload(workload, [SYSTEMS[name] for name in (bound.beside, MAIN) if name], plan, lambda _: None)
            value = bound.value(rows)
            passed = value is not None and bound.holds(value)
            if passed:
                break
        good = good and passed
        print(_line(bound, value, rows, passed=passed), flush=True)
    return 0 if good else 1


def _line(bound: Floor, value: float | None, rows: list[Row], *, passed: bool) -> str:
    if value is None:
        return f"{bound.workload}: FAILED, nothing was measured: {'; '.join(row.error for row in rows if row.error)}"
    costs = ", ".join(f"{row.system} {row.median('client_us'):.2f} + {row.median('server_us'):.2f} us" for row in rows)
    verdict = "passed" if passed else "FAILED"
    return f"{bound.workload}: {verdict}, {bound.figure} is {value:.2f}, must be {bound} ({costs})"
