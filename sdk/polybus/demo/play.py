"""Rows and steps of the demo, and their outcomes."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Literal, TypeAlias

import anyio
from attrs import define, field, frozen

from .certificates import Certificate, make_certificate

Outcome: TypeAlias = Literal["waiting", "running", "ok", "failed", "not here"]

TIMEOUT = 12.0
"""Seconds in which something that must happen at the other side has to be seen. On a busy machine two may be gone at once."""
REFUSALS = 3
"""Requests that a plant refuses before it closes: the first may be one of its sensors', or a link's own."""
STEP_SECONDS = 4 * TIMEOUT
ROW_SECONDS = 3 * STEP_SECONDS
"""Bounds for when things go wrong; when they do not, a row takes two or three seconds. All rows together have none."""


class CheckFailed(Exception):
    """A step did not give what it has to give."""


class NotHere(Exception):
    """A step makes no sense on this wire, or cannot be done on this machine; the text says why."""


def check(holds: object, text: str) -> None:
    """Raise CheckFailed where a claim of a step does not hold."""
    if not holds:
        raise CheckFailed(text)


@frozen
class DemoRow:
    """One wire: the words by which ``--only`` finds it, and how its steps are run."""

    protocol: str
    variant: str
    transport: str
    steps: tuple[str, ...]
    run: Callable[[RowRun, Workshop], Awaitable[None]] = field(repr=False)

    @property
    def name(self) -> str:
        return " ".join(word for word in (self.protocol, self.variant, self.transport) if word)


@define
class StepRun:
    name: str
    outcome: Outcome = "waiting"
    detail: str = ""
    seconds: float = 0.0


@define
class RowRun:
    """One row while it is played and afterwards."""

    row: DemoRow
    steps: dict[str, StepRun]
    not_here: str = ""
    """Why the whole row cannot be played on this machine."""
    trouble: str = ""
    """An error outside of the steps."""
    ended_at: float | None = None
    """On the clock of `time.perf_counter`; None while it waits or is played."""
    seconds: float = 0.0
    sent: int = 0
    received: int = 0

    @classmethod
    def of(cls, row: DemoRow) -> RowRun:
        return cls(row, {name: StepRun(name) for name in row.steps})

    @property
    def ok(self) -> bool:
        """True if every step that can be played here held."""
        if self.not_here:
            return True
        return not self.trouble and all(step.outcome in ("ok", "not here") for step in self.steps.values())

    async def step(self, name: str, play: Callable[[], Awaitable[str]]) -> None:
        """Play one step within its time and note what came of it. Never raises, but for cancellation."""
        step = self.steps[name]
        step.outcome = "running"
        begin = perf_counter()
        try:
            with anyio.fail_after(STEP_SECONDS):
                step.detail = await play()
            step.outcome = "ok"
        except NotHere as error:
            step.outcome, step.detail = "not here", str(error)
        except CheckFailed as error:
            step.outcome, step.detail = "failed", str(error)
        except Exception as error:
            step.outcome, step.detail = "failed", f"{type(error).__name__}: {error}"
        finally:
            step.seconds = perf_counter() - begin


@define
class Workshop:
    """Common things of the rows: a folder, a certificate, and the fault of the back end, if any."""

    folder: Path
    sabotage: str = ""
    record: Path | None = None
    """Folder that the consoles record to."""
    _certificate: Certificate | str | None = None
    _making: anyio.Lock = field(factory=anyio.Lock)

    async def certificate(self) -> Certificate | str:
        """Made when first asked for; text says why there is none."""
        async with self._making:
            if self._certificate is None:
                self._certificate = await anyio.to_thread.run_sync(make_certificate, self.folder)
            return self._certificate


async def play(runs: Sequence[RowRun], sabotage: str = "", at_once: int | None = None, record: Path | None = None) -> None:
    """Play rows side by side. Their outcome is in the runs; a row that did not end in time says so."""
    limiter = anyio.CapacityLimiter(at_once or max(2, min(8, 2 * (os.cpu_count() or 1))))
    with tempfile.TemporaryDirectory(prefix="polybus-") as folder, _quiet():
        workshop = Workshop(Path(folder), sabotage, record)
        async with anyio.create_task_group() as group:
            for run in runs:
                group.start_soon(_play_row, run, workshop, limiter)
    for run in runs:
        if not run.not_here and not run.trouble and any(step.outcome in ("waiting", "running") for step in run.steps.values()):
            run.trouble = "it did not come to its end in time"


async def _play_row(run: RowRun, workshop: Workshop, limiter: anyio.CapacityLimiter) -> None:
    async with limiter:
        begin = perf_counter()
        try:
            with anyio.fail_after(ROW_SECONDS):
                await run.row.run(run, workshop)
        except NotHere as error:
            run.not_here = str(error)
        except Exception as error:
            run.trouble = f"{type(error).__name__}: {error}"
        finally:
            run.ended_at = perf_counter()
            run.seconds = run.ended_at - begin


@contextmanager
def _quiet() -> Generator[None]:
    """Failing handlers are part of the show: where they run in this process, they are not to be logged into it."""
    logger = logging.getLogger("polybus")
    nowhere = logging.NullHandler()
    propagate, logger.propagate = logger.propagate, False
    logger.addHandler(nowhere)
    try:
        yield
    finally:
        logger.removeHandler(nowhere)
        logger.propagate = propagate
