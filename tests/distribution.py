"""Distribution of the tests over the workers of `make test`: by file, so that what a module shares is made once."""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

__all__ = ["scheduler", "scope_of", "seconds_by_file"]

_TABLE = Path(__file__).with_name("durations.md")
_ROW = re.compile(r"\| `(?P<file>tests/\S+\.py)` \| \d+ \| (?P<seconds>[\d.]+) \|")

TOGETHER = {
    "tests/integration/spark/": re.compile(r"/spark/(?!test_(killed|plots|session|storage|submit)\.py)"),
    "tests/integration/browser/": re.compile(r"/browser/|/web/test_(browser|chat_page|nginx)\.py"),
}
"""Files that share what is expensive: a JVM, a browser. Others of these folders have none, or one of their own."""
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


def scheduler(config: Any, log: Any) -> Any:
    """The scheduler of pytest-xdist for these scopes, in the order of the collection."""
    from xdist.scheduler import LoadScopeScheduling

    class Scopes(LoadScopeScheduling):  # type: ignore[misc]  # it has no types
        def _split_scope(self, nodeid: str) -> str:
            return scope_of(nodeid)

    config.option.loadscopereorder = False
    return Scopes(config, log)
