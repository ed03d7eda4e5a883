"""Durations of the test suite by file, from pytest's own reports.

    make durations NOTE="Two idle cores."

which is

    make test ARGS="-p scripts.durations --junitxml=all.xml"
    python -m scripts.durations all.xml --note "Two idle cores."

Reports of some files alone update the rows of these: the others stay as they are. As a plugin of pytest it adds the seconds of
CPU to each test in the report: they hold on a busy machine too, where those of the clock do not. A process counts where it was
waited for. To its first test each worker adds what it took until then, which is the collection, and what a fixed piece of work
takes at that moment: in units of it a sum says the same on any machine.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
import time
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
_met = pytest.StashKey[bool]()


def _cpu() -> float:
    return sum(os.times()[:4])


def calibration() -> float:
    """Seconds of CPU that a fixed piece of work in Python takes: objects, text and calls."""
    began = time.process_time()
    for number in range(1500):
        body = {f"name{key}": [key, str(key), {"of": number}] for key in range(30)}
        if json.loads(json.dumps(body)) != body:
            raise AssertionError("what was written is read again")
    return time.process_time() - began


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if _met not in item.session.stash:
        item.session.stash[_met] = True
        item.user_properties += [("until then", f"{_cpu():.3f}"), ("calibration", f"{calibration():.4f}")]
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


def of_workers(reports: list[Path], name: str) -> list[float]:
    """What each worker has added to its first test by this name."""
    path = f"testcase/properties/property[@name='{name}']"
    return [float(found.get("value", "0")) for report in reports for found in ElementTree.parse(report).iterfind(f".//{path}")]


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
    found = by_file(chosen.reports)
    files = {**kept(TABLE.read_text()), **found}
    out = io.StringIO()
    print("# Durations of the test suite\n", file=out)
    print("Made by `scripts/durations.py`; the runner begins with what takes longest (see CONTRIBUTING.md).", file=out)
    if chosen.note:
        print(f"\n{chosen.note}", file=out)
    if works := of_workers(chosen.reports, "calibration"):
        work, before = sum(works) / len(works), of_workers(chosen.reports, "until then")
        total = sum(row.cpu for row in found.values()) + sum(before)
        said = (
            f"Until the first test, {len(before)} workers took {sum(before):.1f} s of CPU. With it, and what was measured anew "
            f"below, that is {total:.0f} s, or {total / work:.0f} times a fixed piece of work in Python that took {work:.3f} s."
        )
        print(said)
        print(f"\n{said}", file=out)
    print("\n## By folder\n", file=out)
    table(by_folder(files), out)
    print("\n## By file\n", file=out)
    table(files, out)
    TABLE.write_text(out.getvalue())


if __name__ == "__main__":
    main(sys.argv[1:])
