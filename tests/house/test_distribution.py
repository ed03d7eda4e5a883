"""How the workers of `make test` begin."""

from __future__ import annotations

from pathlib import Path

import pytest

import polybus.message
from tests import distribution
from tests.distribution import load

FOLDER = Path(__file__).parents[1] / "unit" / "util"


@pytest.mark.parametrize("number", range(4))
def test_each_worker_imports_all_modules_of_tests_and_begins_with_another(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr("importlib.import_module", asked.append)
    load([FOLDER, FOLDER / "test_text_files.py", Path("gone.py::test_x")], number, 4)
    modules = [f"tests.unit.util.{file.stem}" for file in sorted(FOLDER.glob("test_*.py"))]
    begin = len(modules) * number // 4
    assert asked == modules[begin:] + modules[:begin]


def test_each_worker_reads_the_constants_of_all_of_the_package_and_begins_with_another_module(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("importlib.import_module", lambda name: None)
    read: dict[int, list[str]] = {number: [] for number in range(4)}
    for number, names in read.items():
        monkeypatch.setattr(distribution, "constants_from_module", lambda module, names=names: names.append(module.__name__))
        load([], number, 4)
    assert {polybus.__name__, polybus.message.__name__} <= {*read[0]}
    assert not [name for name in read[0] if name.startswith("tests")]
    for number, names in read.items():
        begin = len(read[0]) * number // 4
        assert names == read[0][begin:] + read[0][:begin]


def test_a_module_that_cannot_be_imported_is_left_to_pytest(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(module: str) -> None:
        raise pytest.skip.Exception(module) if "cancel" in module else ImportError(module)

    monkeypatch.setattr("importlib.import_module", refuse)
    load([FOLDER], 0, 1)
