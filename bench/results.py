"""What was measured: samples, and the medians that the table is made of."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median
from typing import Any

from attrs import asdict, field, frozen

__all__ = ["Row", "Sample"]

_QUIET = 0.15


@frozen(kw_only=True)
class Sample:
    """One run of one system in one round.

    `between_us` is what a broker or an engine takes that stands between the two ends: `cpu_us` is with it, `ends_us` without.
    `ratio` and `cpu_ratio` compare it with the raw peer right before and after it; `ends_of_r` and `between_of_r` say the same
    the other way round, as multiples of what that one takes. `others` is how many cores were busy with something else during
    these runs: where that is much, rates say little.
    """

    rate: float = 0.0
    client_us: float = 0.0
    server_us: float = 0.0
    between_us: float = 0.0
    p50_us: float = 0.0
    p99_us: float = 0.0
    ratio: float = 0.0
    cpu_ratio: float = 0.0
    ends_of_r: float = 0.0
    between_of_r: float = 0.0
    others: float = 0.0

    @property
    def disturbed(self) -> bool:
        return self.others > _QUIET

    @property
    def cpu_us(self) -> float:
        return self.ends_us + self.between_us

    @property
    def ends_us(self) -> float:
        return self.client_us + self.server_us

    @classmethod
    def of(cls, run: dict[str, Any]) -> Sample:
        """From the line that a client printed."""
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
    values: dict[str, float] = field(factory=dict)
    """Figures of the workloads that have no rate: memory and start-up."""
    error: str = ""
    missing: str = ""
    """What is not installed, so that nothing was measured."""

    def median(self, name: str) -> float:
        """Of the samples that nothing disturbed, if there are such."""
        if name in self.values:
            return self.values[name]
        quiet = [sample for sample in self.samples if not sample.disturbed]
        return _median(getattr(sample, name) for sample in quiet or self.samples)

    def of_all(self, name: str) -> list[float]:
        """One figure of every sample, from the lowest up."""
        return sorted(getattr(sample, name) for sample in self.samples)

    @property
    def measured(self) -> bool:
        return bool(self.samples or self.values)

    def as_dict(self) -> dict[str, Any]:
        names = ["rate", "ratio", "cpu_ratio", "ends_of_r", "between_of_r"]
        names += ["client_us", "server_us", "between_us", "ends_us", "p50_us", "p99_us"]
        medians = {name: self.median(name) for name in names} if self.samples else dict(self.values)
        return {**asdict(self), "median": medians}


def _median(values: Iterable[float]) -> float:
    present = [value for value in values if value]
    return median(present) if present else 0.0
