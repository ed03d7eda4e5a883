"""Recorded traffic: every frame of every link, both directions. Needs ``pip install 'polybus[capture]'``."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .._bus.recording import Recording as Recording
    from ..plugins.recording import RecorderStats as RecorderStats
    from .decoding.decoder import Decoded as Decoded
    from .decoding.decoder import decode as decode
    from .errors import CaptureError as CaptureError
    from .record.recorder import CaptureRecorder as CaptureRecorder
    from .record.recording import make_recorder as make_recorder
    from .record.redaction import redact_default as redact_default
    from .replaying.player import Replayed as Replayed
    from .replaying.player import Selection as Selection
    from .replaying.player import replay as replay
    from .store.export import compact as compact
    from .store.export import export as export
    from .store.inspection import Info as Info
    from .store.inspection import Verdict as Verdict
    from .store.inspection import info as info
    from .store.inspection import verify as verify
    from .store.reader import Batch as Batch
    from .store.reader import Capture as Capture
    from .store.reader import Position as Position
    from .store.recovery import Recovered as Recovered
    from .store.recovery import recover as recover

__all__ = [
    "Batch",
    "Capture",
    "CaptureError",
    "Decoded",
    "Info",
    "Position",
    "CaptureRecorder",
    "RecorderStats",
    "Recording",
    "Recovered",
    "Replayed",
    "Selection",
    "Verdict",
    "compact",
    "decode",
    "export",
    "info",
    "make_recorder",
    "recover",
    "redact_default",
    "replay",
    "verify",
]

_HOMES = {
    "Batch": ".store.reader",
    "Capture": ".store.reader",
    "CaptureError": ".errors",
    "Decoded": ".decoding.decoder",
    "Position": ".store.reader",
    "CaptureRecorder": ".record.recorder",
    "RecorderStats": "..plugins.recording",
    "Recording": ".._bus.recording",
    "decode": ".decoding.decoder",
    "make_recorder": ".record.recording",
    "redact_default": ".record.redaction",
    "Replayed": ".replaying.player",
    "Selection": ".replaying.player",
    "replay": ".replaying.player",
    "Info": ".store.inspection",
    "Recovered": ".store.recovery",
    "Verdict": ".store.inspection",
    "compact": ".store.export",
    "export": ".store.export",
    "info": ".store.inspection",
    "recover": ".store.recovery",
    "verify": ".store.inspection",
}


def __getattr__(name: str) -> Any:
    """Loads what is asked for: pyarrow takes its time.

    Raises:
        ImportError: pyarrow is not installed.
    """
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(home, __name__), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("pyarrow", "numpy"):
            raise
        raise ImportError(f"captures need {error.name}: pip install 'polybus[capture]'", name=error.name) from error
