"""Cost of a program's start: ``python -m bench --start``. Processor time of whole processes, in turns."""

from __future__ import annotations

import os
import subprocess
import sys
from statistics import median

__all__ = ["start_times"]

_BASE = "import asyncio, anyio, attrs, msgspec"
"""Indispensable imports of a bus: `import polybus` is a multiple of their time."""
_STARTS = {
    "python": ["-c", "pass"],
    "import anyio, attrs, msgspec": ["-c", "import anyio, attrs, msgspec"],
    _BASE: ["-c", _BASE],
    "import polybus": ["-c", "import polybus"],
    "polybus --version": ["-m", "polybus", "--version"],
    "polybus --help": ["-m", "polybus", "--help"],
}


def _seconds(arguments: list[str]) -> float:
    # Modules are compiled, as at a program's second start.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    child = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.DEVNULL, env=env)
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise subprocess.CalledProcessError(child.returncode, arguments)
    return used.ru_utime + used.ru_stime


def start_times(rounds: int) -> list[str]:
    """Table rows: user and system time, minimum and median of `rounds`, after a run that fills caches."""
    samples: dict[str, list[float]] = {name: [] for name in _STARTS}
    for turn in range(rounds + 1):
        for name, arguments in _STARTS.items():
            seconds = _seconds(arguments)
            if turn:
                samples[name].append(seconds)
    low, middle = min(samples[_BASE]), median(samples[_BASE])
    rows = ["| start | ms, minimum | ms, median | of the base, minimum | median |", "| --- | --- | --- | --- | --- |"]
    for name, taken in samples.items():
        least, usual = min(taken), median(taken)
        rows.append(f"| {name} | {1000 * least:.0f} | {1000 * usual:.0f} | {least / low:.2f} | {usual / middle:.2f} |")
    return rows
