"""Recorded traffic: every frame of every link, both directions. Needs ``pip install 'polybus[capture]'``."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .decoding import Decoded as Decoded
    from .decoding import decode as decode
    from .errors import CaptureError as CaptureError
    from .reading import Batch as Batch
    from .reading import Capture as Capture
    from .reading import Position as Position
    from .recorder import Recorder as Recorder
    from .recorder import RecorderStats as RecorderStats
    from .recording import Recording as Recording
    from .recording import make_recorder as make_recorder
    from .redaction import redact_default as redact_default
    from .replaying import Replayed as Replayed
    from .replaying import Selection as Selection
    from .replaying import replay as replay
    from .tools import Info as Info
    from .tools import Recovered as Recovered
    from .tools import Verdict as Verdict
    from .tools import compact as compact
    from .tools import export as export
    from .tools import info as info
    from .tools import recover as recover
    from .tools import verify as verify

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
    "Info": "tools",
    "Recovered": "tools",
    "Verdict": "tools",
    "compact": "tools",
    "export": "tools",
    "info": "tools",
    "recover": "tools",
    "verify": "tools",
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
