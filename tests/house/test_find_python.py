"""`scripts/find-python.sh`: which Python the environments are made with."""

import subprocess
import sys
from pathlib import Path

import pytest

from scripts.python_build import build, is_optimised

SCRIPT = Path(__file__).parents[2] / "scripts" / "find-python.sh"
PROGRAM = """#!/bin/sh
case "$*" in
    *python_version*) echo {version} ;;
    *version_info*) exit {old} ;;
    *ensurepip*) exit 0 ;;
    *_base_executable*) echo "$0" ;;
    *python_build.py) exit {plain} ;;
    *) exit 9 ;;
esac
"""


@pytest.mark.parametrize(
    ("arguments", "prefix", "expected", "optimised"),
    [
        ("'--enable-shared' '--enable-optimizations'", "/opt", "built with --enable-optimizations", True),
        ("'--enable-shared'", "/opt", "built without --enable-optimizations", False),
        ("", "/opt", "of an unknown build", False),
        pytest.param(
            "'--enable-shared'",
            "/usr",
            "a package of the system",
            True,
            marks=pytest.mark.skipif(sys.platform != "linux", reason="/usr is of the distribution on Linux"),
        ),
    ],
)
def test_a_build_is_told_by_its_arguments_and_its_place(arguments: str, prefix: str, expected: str, optimised: bool) -> None:
    assert build(arguments, prefix) == expected
    assert is_optimised(expected) is optimised


def test_the_script_s_verdict_is_about_the_interpreter_that_runs_it() -> None:
    done = subprocess.run([sys.executable, SCRIPT.with_name("python_build.py")])
    assert done.returncode == int(not is_optimised(build()))


def interpreters(folder: Path, **builds: tuple[str, bool]) -> str:
    """The names of programs that answer as such interpreters: version, and whether the build is an optimised one."""
    for name, (version, optimised) in builds.items():
        old = tuple(map(int, version.split("."))) < (3, 11)
        (folder / name).write_text(PROGRAM.format(version=version, old=int(old), plain=int(not optimised)))
        (folder / name).chmod(0o755)
    return " ".join(str(folder / name) for name in builds)


def found(names: str) -> tuple[int, str, str]:
    result = subprocess.run(["bash", SCRIPT], env={"PATH": "/usr/bin:/bin", "PYTHON": names}, capture_output=True, text=True)
    return result.returncode, Path(result.stdout.strip()).name, result.stderr


OLD = ("3.9.2", True)


@pytest.mark.skipif(sys.platform == "win32", reason="a script for a shell")
@pytest.mark.parametrize(
    ("builds", "status", "name", "says"),
    [
        ({"old": OLD, "plain": ("3.11.7", False), "fast": ("3.11.2", True), "last": ("3.14.0", True)}, 0, "fast", []),
        ({"old": OLD, "first": ("3.12.1", False), "second": ("3.13.0", False)}, 0, "first", []),
        ({"old": OLD}, 1, "", ["old is 3.9.2;", "make PYTHON="]),
    ],
    ids=["an optimised build", "the first that is usable", "none"],
)
def test_the_script_finds_an_optimised_build_else_the_first_that_is_usable_else_says_how_to_name_one(
    builds: dict[str, tuple[str, bool]], status: int, name: str, says: list[str], tmp_path: Path
) -> None:
    ended, found_name, said = found(interpreters(tmp_path, **builds))
    assert (ended, found_name, bool(said)) == (status, name, bool(says))
    assert all(text in said for text in says)
