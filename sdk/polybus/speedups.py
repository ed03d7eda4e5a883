"""The choice between two twins: the C of this package where it has been built, else the functions of Python that it replaces.

Both do the same, with the same errors; C takes less time. The environment variable ``POLYBUS_SPEEDUPS=0`` chooses Python.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any, Final

__all__ = ["ACTIVE"]


def _built() -> Any:
    if os.environ.get("POLYBUS_SPEEDUPS") == "0":
        return None
    try:
        return import_module("polybus._speedups")
    except ImportError:
        return None


native: Final = _built()
"""The module in C, or None."""

ACTIVE: Final[bool] = native is not None
"""True where C runs."""
