"""Report of the recording of `polybus demo`: without DuckDB it says so and goes on."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import define

from .. import analysis
from .problems import UsageError

if TYPE_CHECKING:
    from ..analysis import Done


@define
class DemoReport:
    """The recording of a demo and what comes of it."""

    wanted: bool
    record: Path | None = None
    """Folder that the demo records to; None without a report."""
    missing: str = ""
    """Why there is no report."""
    done: Done | None = None

    @classmethod
    def begin(cls, folder: str, *, wanted: bool) -> DemoReport:
        """Before the demo: in a new folder, which is made where none is named; UsageError where it holds something."""
        if not wanted:
            return cls(False)
        try:
            analysis.DuckEngine().close()
        except ImportError as error:
            return cls(True, missing=str(error))
        place = Path(folder) if folder else Path(tempfile.mkdtemp(prefix="polybus-demo-"))
        if place.exists() and any(place.iterdir()):
            raise UsageError(f"--report {folder}: there is something in it; name a new folder")
        return cls(True, place / "capture")

    def analyse(self) -> None:
        if self.record is None:
            return
        try:
            with analysis.DuckEngine() as engine:
                self.done = analysis.Pipeline(engine).run(self.record, self.record.parent / "analysed")
        except (ValueError, OSError) as error:
            self.missing = str(error)

    def lines(self) -> list[str]:
        if self.done is None:
            return [f"no report of it: {self.missing}"]
        counts, outcomes = self.done.total, self.done.metrics["totals"]["outcomes"]
        said = ", ".join(f"{n:,} {name}" for name, n in outcomes.items() if n)
        return [
            f"recorded: {counts.frames:,} frames, {counts.events:,} messages, {counts.exchanges:,} exchanges ({said})",
            f"report: {self.done.report}",
        ]

    def as_json(self) -> dict[str, Any]:
        """For machines: nothing where none was wanted."""
        if not self.wanted:
            return {}
        return {"report": self.done.report if self.done is not None else None, "no_report": self.missing or None}
