"""Durations of the test suite by file, from pytest's own reports.

    make durations NOTE="Two idle cores."

which is

    make test ARGS="-p scripts.durations --junitxml=all.xml"
    python -m scripts.durations all.xml --note "Two idle cores."

Reports of some files alone update the rows of these: the others stay as they are. As a plugin of pytest it adds the seconds of
CPU to each test in the report: they hold on a busy machine too, where those of the clock do not. A process counts where it was
waited for.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO
from xml.etree import ElementTree

import attrs
import pytest

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "tests" / "durations.md"
_began = pytest.StashKey[float]()


def _cpu() -> float:
    return sum(os.times()[:4])


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    item.stash[_began] = _cpu()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    yield
    item.user_properties.append(("cpu", f"{_cpu() - item.stash.get(_began, _cpu()):.3f}"))


@attrs.define
class Row:
    """What the tests of one file or folder took."""

    tests: int = 0
    seconds: float = 0.0
    cpu: float = 0.0

    def add(self, other: Row) -> None:
        self.tests += other.tests
        self.seconds += other.seconds
        self.cpu += other.cpu

    def line(self, name: str) -> str:
        return f"| {name} | {self.tests} | {self.seconds:.1f} | {self.cpu:.1f} |"


def file_of(classname: str) -> str:
    """The file of a dotted name that may end in classes: ``tests.contract.test_csb.TestCsb``."""
    parts = classname.split(".")
    for end in range(len(parts), 0, -1):
        path = "/".join(parts[:end]) + ".py"
        if (ROOT / path).is_file():
            return path
    return classname


def by_file(reports: list[Path]) -> dict[str, Row]:
    """Rows of one or more reports, a file each."""
    rows: dict[str, Row] = defaultdict(Row)
    for report in reports:
        for case in ElementTree.parse(report).iter("testcase"):
            cpu = case.find("properties/property[@name='cpu']")
            spent = 0.0 if cpu is None else float(cpu.get("value", "0"))
            rows[file_of(case.get("classname", ""))].add(Row(1, float(case.get("time", "0")), spent))
    return rows


def by_folder(files: dict[str, Row]) -> dict[str, Row]:
    """Rows of the folders that these files are in."""
    folders: dict[str, Row] = defaultdict(Row)
    for name, row in files.items():
        folders[name.rpartition("/")[0]].add(row)
    return folders


def kept(text: str) -> dict[str, Row]:
    """Rows of files that are still there, of a table that was made before."""
    found = (line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| `tests/"))
    rows = {name.strip("`"): Row(int(tests), float(seconds), float(cpu)) for name, tests, seconds, cpu in found}
    return {name: row for name, row in rows.items() if (ROOT / name).is_file()}


def table(rows: dict[str, Row], out: TextIO) -> None:
    """Rows as a table in Markdown, the longest first, the sum last."""
    total = Row()
    print("| | tests | seconds | seconds of CPU |\n| --- | ---: | ---: | ---: |", file=out)
    for name, row in sorted(rows.items(), key=lambda each: (-each[1].seconds, each[0])):
        print(row.line(f"`{name}`"), file=out)
        total.add(row)
    print(total.line("all"), file=out)


def main(arguments: list[str]) -> None:
    """Write the table anew, with the reports that are named."""
    parser = argparse.ArgumentParser(description="Durations of the test suite by file.")
    parser.add_argument("reports", nargs="+", type=Path, metavar="REPORT", help="what pytest --junitxml wrote")
    parser.add_argument("--note", default="", help="where and when it was measured")
    chosen = parser.parse_args(arguments)
    files = {**kept(TABLE.read_text()), **by_file(chosen.reports)}
    out = io.StringIO()
    print("# Durations of the test suite\n", file=out)
    print("Made by `scripts/durations.py`; the runner begins with what takes longest (see CONTRIBUTING.md).", file=out)
    if chosen.note:
        print(f"\n{chosen.note}", file=out)
    print("\n## By folder\n", file=out)
    table(by_folder(files), out)
    print("\n## By file\n", file=out)
    table(files, out)
    TABLE.write_text(out.getvalue())


if __name__ == "__main__":
    main(sys.argv[1:])
