"""Errors of captures."""

from __future__ import annotations

from ..errors import BusError


class CaptureError(BusError, ValueError):
    """Raised if a folder is not a capture, or a capture cannot be read or written. The message says what to do next."""
