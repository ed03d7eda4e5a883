"""Records every frame of every link in both directions, and reads recordings. Requires ``pip install 'polybus[capture]'``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..plugins.tools import lazy_names

if TYPE_CHECKING:
    from ..integrations import Recording
    from ..plugins.extensions import RecorderStats
    from .columns.writer import DecodedCapture, write_columns
    from .decoding import Decoded, decode
    from .errors import CaptureError
    from .record.recorder import CaptureRecorder, make_recorder
    from .record.redaction import redact_default
    from .replaying import Replayed, Selection, replay
    from .store.export import compact, export
    from .store.inspection import Info, Recovered, Verdict, info, recover, verify
    from .store.reader import Batch, Capture, Position

__all__ = ["Batch", "Capture", "CaptureError", "CaptureRecorder", "Decoded", "DecodedCapture", "Info", "Position"]
__all__ += ["RecorderStats", "Recording", "Recovered", "Replayed", "Selection", "Verdict", "compact", "decode", "export"]
__all__ += ["info", "make_recorder", "recover", "redact_default", "replay", "verify", "write_columns"]

__getattr__: Callable[[str], Any] = lazy_names(
    __name__,
    {
        "..integrations": ("Recording",),
        "..plugins.extensions": ("RecorderStats",),
        ".columns.writer": ("DecodedCapture", "write_columns"),
        ".decoding": ("Decoded", "decode"),
        ".errors": ("CaptureError",),
        ".record.recorder": ("CaptureRecorder", "make_recorder"),
        ".record.redaction": ("redact_default",),
        ".replaying": ("Replayed", "Selection", "replay"),
        ".store.export": ("compact", "export"),
        ".store.inspection": ("Info", "Recovered", "Verdict", "info", "recover", "verify"),
        ".store.reader": ("Batch", "Capture", "Position"),
    },
    ("pyarrow", "numpy"),
    "captures need {}: pip install 'polybus[capture]'",
)
