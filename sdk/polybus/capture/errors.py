"""Errors of captures."""

from __future__ import annotations

from ..errors import BusError


class CaptureError(BusError, ValueError):
    """A folder is not a capture, or a capture cannot be read or written; the text says what to do next."""
