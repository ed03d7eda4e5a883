"""Programs that mypy and pyright refuse, with the error that each must give. What they must accept is in `test_inference`."""

import json
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

pytestmark = [pytest.mark.native, pytest.mark.timeout(300)]

PROGRAMS = Path(__file__).with_name("wrong_programs.txt")
CONTRACTS = Path(__file__).with_name("contract_programs.py")
WRONG = {number for number, line in enumerate(CONTRACTS.read_text().splitlines(), 1) if line.endswith("# wrong")}
EXPECTED = re.compile(r"# E: (-|[a-z-]+) \| (\w+)$")


def expected(checker: int) -> dict[int, str]:
    lines = enumerate(PROGRAMS.read_text().splitlines(), 1)
    marked = {number: found[checker] for number, line in lines if (found := EXPECTED.search(line))}
    return {number: code for number, code in marked.items() if code != "-"}


def checked(programs: Path, folder: Path, *command: str) -> str:
    """What a type checker, which must refuse something, says of programs."""
    (folder / "wrong.py").write_text(programs.read_text())
    command = (sys.executable, "-m", *command, "wrong.py")
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=280, check=False)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    return ended.stdout


def compare(wanted: dict[int, str], found: dict[int, set[str]]) -> None:
    missed = {number: code for number, code in wanted.items() if code not in found.get(number, ())}
    assert missed == {}, f"accepted, or refused for something else: {found}"
    assert {number: codes for number, codes in found.items() if number not in wanted} == {}


def test_mypy_refuses_wrong_programs(tmp_path: Path) -> None:
    said = checked(PROGRAMS, tmp_path, "mypy", "--strict", "--config-file=", "--output=json", f"--cache-dir={tmp_path}")
    found = defaultdict[int, set[str]](set)
    for line in said.splitlines():
        if line.startswith("{") and (error := json.loads(line))["severity"] == "error":
            found[error["line"]].add(error["code"])
    compare(expected(1), found)


def test_pyright_refuses_wrong_programs(tmp_path: Path) -> None:
    settings = {"typeCheckingMode": "strict", "pythonPlatform": "All", "reportUnusedExpression": False}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    said = checked(PROGRAMS, tmp_path, "pyright", "--outputjson", f"--pythonpath={sys.executable}")
    found = defaultdict[int, set[str]](set)
    for error in json.loads(said)["generalDiagnostics"]:
        if error["severity"] == "error":
            found[error["range"]["start"]["line"] + 1].add(error["rule"])
    compare(expected(2), found)


def test_mypy_without_any_flag_refuses_wrong_contracts_and_no_others(tmp_path: Path) -> None:
    said = checked(CONTRACTS, tmp_path, "mypy", "--config-file=", f"--cache-dir={tmp_path / 'cache'}")
    assert {int(number) for number in re.findall(r"^wrong\.py:(\d+): error", said, re.M)} == WRONG, said


def test_pyright_without_any_flag_refuses_wrong_contracts_and_no_others(tmp_path: Path) -> None:
    said = checked(CONTRACTS, tmp_path, "pyright", "--outputjson", f"--pythonpath={sys.executable}")
    found = json.loads(said)["generalDiagnostics"]
    assert {one["range"]["start"]["line"] + 1 for one in found if one["severity"] == "error"} == WRONG, said
