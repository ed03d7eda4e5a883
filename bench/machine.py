"""Where and with what it was measured: absolute figures mean nothing without it."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from scripts.python_build import build

from .processes import available_cores
from .systems._base import System

__all__ = ["describe"]

_PACKAGES = ["polybus", "anyio", "attrs", "msgspec", "trio", "uvloop", "websockets"]


def describe(systems: Iterable[System] = ()) -> dict[str, Any]:
    """The machine, with what these systems need."""
    needs = {need.name: need for system in systems for need in system.needs}
    return {
        "python": f"{platform.python_implementation()} {platform.python_version()}, {build()}",
        "system": f"{platform.system()} {platform.release()}",
        "processor": _processor(),
        "cores": len(available_cores()),
        "load": [round(load, 2) for load in os.getloadavg()],
        "packages": {
            **{name: found for name in _PACKAGES if (found := _version(name))},
            **{name: found for name, need in needs.items() if (found := need.version)},
        },
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
