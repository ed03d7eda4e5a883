"""Distribution of the tests over the workers of `make test`: by file, so that what a module shares is made once."""

from __future__ import annotations

import functools
import importlib
import os
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from hypothesis.internal.constants_ast import constants_from_module, is_local_module_file

__all__ = ["load", "scheduler", "scope_of", "seconds_by_file"]

_ROOT = Path(__file__).parents[1]
_TABLE = Path(__file__).with_name("durations.md")
_ROW = re.compile(r"\| `(?P<file>tests/\S+\.py)` \| \d+ \| (?P<seconds>[\d.]+) \|")

TOGETHER = {
    "tests/integration/spark/": re.compile(r"/spark/(?!test_(killed|plots|storage|submit)\.py)"),
    "tests/integration/browser/": re.compile(r"/browser/|/web/test_(browser|chat_page|nginx)\.py"),
}
"""Files that share what is expensive: a JVM, a browser. Others of these folders have none, or one of their own. A second JVM
would load and compile everything anew."""
BY_CLASS = re.compile(r"contract/|contract\.py$|test_suite\.py$")
"""Files that share nothing, and whose classes are as long as other files."""


def scope_of(nodeid: str) -> str:
    """What a test is run together with, in one worker."""
    file, _, inside = nodeid.partition("::")
    for name, files in TOGETHER.items():
        if files.search(file):
            return name
    if "::" in inside and BY_CLASS.search(file):
        return f"{file}::{inside.partition('::')[0]}"
    return file


@functools.cache
def seconds_by_file() -> dict[str, float]:
    """What each file took when the table was made, and the folders that stay together."""
    seconds: dict[str, float] = defaultdict(float)
    if _TABLE.exists():
        for row in _ROW.finditer(_TABLE.read_text()):
            seconds[scope_of(row["file"])] += float(row["seconds"])
    return seconds


def load(folders: Iterable[Path], number: int, workers: int) -> None:
    """Import the modules of tests in these folders, each of the workers from another place on.

    Where nothing is compiled as yet, as in a new checkout, each compiles a share of them, and finds the others compiled. So it
    is with the constants of the package, which Hypothesis tries.
    """
    files = sorted(chain.from_iterable(map(_tests_in, folders)))
    begin = len(files) * number // workers
    for file in files[begin:] + files[:begin]:
        with suppress(Exception, pytest.skip.Exception):  # pytest tries it again, and says it
            importlib.import_module(".".join(file.relative_to(_ROOT).with_suffix("").parts))
    _find_constants(number, workers)


def _find_constants(number: int, workers: int) -> None:
    """Have Hypothesis read the constants of all modules that are loaded and ours: it keeps them on disk."""
    found = ((getattr(module, "__file__", None), module) for module in [*sys.modules.values()])
    modules = sorted(
        ((file, module) for file, module in found if file and is_local_module_file(file)), key=lambda each: each[0]
    )
    begin = len(modules) * number // workers
    for _, module in modules[begin:] + modules[:begin]:
        constants_from_module(module)


def _tests_in(folder: Path) -> Iterator[Path]:
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".") and name != "node_modules"]
        yield from (Path(place, name) for name in files if name.startswith("test_") and name.endswith(".py"))


def scheduler(config: Any, log: Any) -> Any:
    """The scheduler of pytest-xdist for these scopes, in the order of the collection."""
    from xdist.scheduler import LoadScopeScheduling

    class Scopes(LoadScopeScheduling):  # type: ignore[misc]  # it has no types
        def _split_scope(self, nodeid: str) -> str:
            return scope_of(nodeid)

    config.option.loadscopereorder = False
    return Scopes(config, log)
