"""Recorders for ``bus.record(...)`` and ``connect(..., record=...)``, from their arguments."""

from __future__ import annotations

import math
import os
import sys
from datetime import timedelta
from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal

from ...errors import Unsupported
from .recorder import CaptureRecorder

if TYPE_CHECKING:
    from .redaction import Redact

__all__ = ["make_recorder"]

_GIB = 1 << 30


def make_recorder(
    path: str | os.PathLike[str],
    *,
    max_bytes: int = 10 * _GIB,
    max_age: float | timedelta = timedelta(days=7),
    bodies: bool = True,
    redact: Redact | Literal["default"] | None = "default",
    source: str | None = None,
) -> CaptureRecorder:
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
    return CaptureRecorder(
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
