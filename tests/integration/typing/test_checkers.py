"""Type checkers without any flag of ours: which lines of right and wrong programs they refuse."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).with_name("contract_programs.py")
WRONG = {number for number, line in enumerate(PROGRAMS.read_text().splitlines(), 1) if line.endswith("# wrong")}

pytestmark = [pytest.mark.native, pytest.mark.timeout(300)]


def run(folder: Path, *command: str) -> str:
    shutil.copy(PROGRAMS, folder / "program.py")
    ended = subprocess.run(
        [sys.executable, "-m", *command, "program.py"], cwd=folder, capture_output=True, text=True, timeout=280, check=False
    )
    assert ended.returncode == 1, ended.stdout + ended.stderr
    return ended.stdout


def test_mypy_refuses_what_is_wrong_and_nothing_else(tmp_path: Path) -> None:
    said = run(tmp_path, "mypy", "--config-file=", f"--cache-dir={tmp_path / 'cache'}")
    assert {int(number) for number in re.findall(r"^program\.py:(\d+): error", said, re.M)} == WRONG, said


@pytest.mark.skipif(shutil.which("node") is None, reason="pyright runs in Node")
def test_pyright_refuses_what_is_wrong_and_nothing_else(tmp_path: Path) -> None:
    said = run(tmp_path, "pyright", "--outputjson", f"--pythonpath={sys.executable}")
    found = json.loads(said)["generalDiagnostics"]
    assert {one["range"]["start"]["line"] + 1 for one in found if one["severity"] == "error"} == WRONG, said
