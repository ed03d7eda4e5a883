"""Days of a bus, made by hand: requests of UBRE and their outcomes."""

from pathlib import Path
from typing import Any

from polybus.analysis import DuckEngine, Pipeline
from polybus.analysis.pipeline import Done
from tests.unit.capture import rows as frames
from tests.unit.capture.folders import write_segment

MS = 1_000_000
SUBJECTS = ("tank.get", "valve.set", "pump.stop", "door.open")
GOOD = '{"success":"ID"}'
BAD = '{"fail":"ID","body":"no such tank","code":5}'


def analyse(capture: Path | str, out: Path | str, *, report: bool = False, settle: bool = False, **options: Any) -> Done:
    with DuckEngine(threads=1) as engine:
        return Pipeline(engine, **options).run(capture, out, report=report, settle=settle)


class Day:
    """Requests of UBRE and their answers, one after the other."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self._at = 0

    def ask(self, number: int, subject: str, answer: str | None, after_ms: float = 1.0) -> None:
        self.say(f'{{"request":"{subject}","id":"{number}"}}', 0)
        if answer is not None:
            self._at += round(after_ms * MS)
            self.say(answer.replace("ID", str(number)), 1)
        self._at += 10 * MS

    def say(self, text: str | None, direction: int, **given: Any) -> None:
        row = frames.row(len(self.rows), frame=text and text.encode(), direction=direction, **given)
        self.rows.append(row | {"ts_ns": row["ts_ns"] + self._at, "mono_ns": row["mono_ns"] + self._at})

    def wait(self, seconds: float) -> None:
        self._at += round(seconds * 1000 * MS)

    def write(self, capture: Path) -> Path:
        return write_segment(capture, frames.batch(*self.rows), ends=True).parent

    def analysed(self, folder: Path, **given: Any) -> Done:
        with DuckEngine(threads=1) as engine:
            return Pipeline(engine).run(self.write(folder / "capture"), folder / "out", **given)

    def metrics(self, folder: Path) -> dict[str, Any]:
        return self.analysed(folder).metrics
