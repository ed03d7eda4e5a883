"""``bus.record(...)`` and ``connect(..., record=...)``: for how long what is recorded."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable
from datetime import timedelta
from importlib.util import find_spec
from types import TracebackType
from typing import TYPE_CHECKING, Literal

import anyio

from ...errors import Unsupported
from .recorder import Recorder, RecorderStats

if TYPE_CHECKING:
    from ..._bus.bus import Bus
    from .redaction import Redact

__all__ = ["Recording", "make_recorder"]

_GIB = 1 << 30


def make_recorder(
    path: str | os.PathLike[str],
    *,
    max_bytes: int = 10 * _GIB,
    max_age: float | timedelta = timedelta(days=7),
    bodies: bool = True,
    redact: Redact | Literal["default"] | None = "default",
    source: str | None = None,
) -> Recorder:
    """A recorder, not open yet.

    Raises:
        TypeError, ValueError: An argument is not what it should be.
        Unsupported: There are no threads here.
        ImportError: pyarrow is not installed.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"record={path!r:.80}: the path of a folder, not {type(path).__name__}")
    if "://" in os.fspath(path):
        raise ValueError(f"record={os.fspath(path)!r}: into a folder on this machine only; copy its sealed segments from there")
    seconds = max_age.total_seconds() if isinstance(max_age, timedelta) else float(max_age)
    if type(max_bytes) is not int or max_bytes < 1 << 18:
        raise ValueError(f"max_bytes={max_bytes!r}: a number of bytes, not below {1 << 18}")
    if not seconds > 0 or math.isnan(seconds):
        raise ValueError(f"max_age={max_age!r}: seconds or a timedelta, above 0")
    if redact is not None and redact != "default" and not callable(redact):
        raise TypeError(f"redact={redact!r:.80}: a function redact(protocol, frame), 'default', or None")
    if sys.platform == "emscripten":
        raise Unsupported("recording needs threads and files, which this platform has not")
    for module in ("pyarrow", "numpy"):  # loaded where it is written, which may be another process
        if not _installed(module):
            raise ImportError(f"captures need {module}: pip install 'polybus[capture]'", name=module)
    return Recorder(
        path,
        max_bytes=max_bytes,
        max_age=seconds,
        redact=redact,
        bodies=bodies,
        metadata={} if source is None else {"source": source},
    )


def _installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ValueError:
        return False


class Recording:
    """An async context manager: while it is entered, every frame of every link of a bus is recorded.

    Attributes:
        recorder: Does the work.
    """

    def __init__(self, bus: Bus, recorder: Recorder) -> None:
        self._bus = bus
        self.recorder: Recorder = recorder

    @property
    def capture_id(self) -> str:
        """Of all that is recorded by this one."""
        return self.recorder.capture_id

    @property
    def path(self) -> str:
        """The folder."""
        return str(self.recorder.path)

    def stats(self) -> RecorderStats:
        """What has been recorded so far, and what was lost."""
        return self.recorder.stats()

    async def __aenter__(self) -> Recording:
        self.recorder.claim()
        try:
            await anyio.to_thread.run_sync(self.recorder.open)
            self._bus._recorders.append(self.recorder)
            await self._between_turns(self._begin)
        except BaseException:
            await self._left()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._left()

    async def _left(self) -> None:
        with anyio.CancelScope(shield=True):
            if self.recorder in self._bus._recorders:
                self._bus._recorders.remove(self.recorder)
                await self._between_turns(self._end)
            await anyio.to_thread.run_sync(self.recorder.close)

    async def _between_turns(self, change: Callable[[], None]) -> None:
        """Change links where none of them is in the middle of a frame."""
        runtime = self._bus._services.runtime
        if runtime is None:
            return
        done = anyio.Event()

        def now() -> None:
            try:
                change()
            finally:
                done.set()

        runtime.call_soon(now)
        with anyio.move_on_after(1):
            await done.wait()

    def _begin(self) -> None:
        if self._bus._services.runtime is not None:
            for link in self._bus._services.runtime.links:
                link.record(self.recorder)

    def _end(self) -> None:
        if self._bus._services.runtime is not None:
            for link in self._bus._services.runtime.links:
                link.unrecord(self.recorder)
