"""Recorded traffic: every frame of every link, both directions. Needs ``pip install 'polybus[capture]'``."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .decoding import Decoded as Decoded
    from .decoding import decode as decode
    from .errors import CaptureError as CaptureError
    from .exporting import compact as compact
    from .exporting import export as export
    from .inspecting import Info as Info
    from .inspecting import Verdict as Verdict
    from .inspecting import info as info
    from .inspecting import verify as verify
    from .reading import Batch as Batch
    from .reading import Capture as Capture
    from .reading import Position as Position
    from .recorder import Recorder as Recorder
    from .recorder import RecorderStats as RecorderStats
    from .recording import Recording as Recording
    from .recording import make_recorder as make_recorder
    from .recovering import Recovered as Recovered
    from .recovering import recover as recover
    from .redaction import redact_default as redact_default
    from .replaying import Replayed as Replayed
    from .replaying import Selection as Selection
    from .replaying import replay as replay

__all__ = [
    "Batch",
    "Capture",
    "CaptureError",
    "Decoded",
    "Info",
    "Position",
    "Recorder",
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
    "Batch": "reading",
    "Capture": "reading",
    "CaptureError": "errors",
    "Decoded": "decoding",
    "Position": "reading",
    "Recorder": "recorder",
    "RecorderStats": "recorder",
    "Recording": "recording",
    "decode": "decoding",
    "make_recorder": "recording",
    "redact_default": "redaction",
    "Replayed": "replaying",
    "Selection": "replaying",
    "replay": "replaying",
    "Info": "inspecting",
    "Recovered": "recovering",
    "Verdict": "inspecting",
    "compact": "exporting",
    "export": "exporting",
    "info": "inspecting",
    "recover": "recovering",
    "verify": "inspecting",
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
        return getattr(import_module(f"{__name__}.{home}"), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("pyarrow", "numpy"):
            raise
        raise ImportError(f"captures need {error.name}: pip install 'polybus[capture]'", name=error.name) from error
