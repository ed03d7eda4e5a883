"""How the workers of `make test` begin."""

from __future__ import annotations

from pathlib import Path

import pytest

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


def test_a_module_that_cannot_be_imported_is_left_to_pytest(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(module: str) -> None:
        raise pytest.skip.Exception(module) if "cancel" in module else ImportError(module)

    monkeypatch.setattr("importlib.import_module", refuse)
    load([FOLDER], 0, 1)
