"""The lines that polybus logs: the name of the logger stands before each of them, so that no text needs to say it again."""

import ast
from pathlib import Path

import pytest

import polybus

PACKAGE = Path(polybus.__file__).parent
SOURCES = sorted(path for path in PACKAGE.rglob("*.py") if path.relative_to(PACKAGE).parts[0] != "cli")


def texts(path: Path) -> list[str]:
    return [
        node.value
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]


def test_no_text_outside_of_the_command_begins_with_the_name_that_the_logger_has_already() -> None:
    assert len(SOURCES) > 300
    again = [
        f"{path.relative_to(PACKAGE)}: {text[:60]}" for path in SOURCES for text in texts(path) if text.startswith("polybus: ")
    ]
    assert not again


@pytest.mark.parametrize("text", ["polybus: serving", "serving"])
def test_such_a_text_is_found(text: str, tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text(f"logger.info({text!r})\n")
    assert (text in texts(tmp_path / "module.py")) and (text.startswith("polybus: ") is (text == "polybus: serving"))
