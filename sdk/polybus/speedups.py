"""Loads the C extension if it has been built. Otherwise, equivalent Python functions are used.

Both behave the same and raise the same errors. Set ``POLYBUS_SPEEDUPS=0`` in the environment to force Python.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any, Final

__all__ = ["ACTIVE"]

_VERSION: Final = 3


def _built() -> Any:
    if os.environ.get("POLYBUS_SPEEDUPS") == "0":
        return None
    try:
        module: Any = import_module("polybus._speedups")
        return module if getattr(module, "VERSION", 1) == _VERSION else None  # it may have been built from older sources
    except ImportError:  # not built, or for another platform: `polybus doctor` says which one runs
        return None


native: Final = _built()
"""The C module, or None if the Python functions are used."""

ACTIVE: Final[bool] = native is not None
"""True if the C module is used."""
