"""The forks that share the tests: what one process would have told, and what only happens among several."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the workers are those of pytest-xdist")

ROOT = Path(__file__).parents[2]

_CONFTEST = """
import os
import pytest
from tests.conftest import pytest_addoption, pytest_runtestloop
from tests.house.test_workers import note

@pytest.fixture(scope="session")
def whole():
    note("session begins")
    yield
    note("session ends")

@pytest.fixture(scope="module")
def shared(whole, request):
    note(f"{request.module.__name__} begins")
    yield os.getpid()
    note(f"{request.module.__name__} ends")
"""


_IMPORTS = "import os, pytest, time, warnings\nfrom tests.house.test_workers import note\n"


def note(what: str) -> None:
    """What a test tells, past pytest: a line of a file."""
    with open(os.environ["NOTES"], "a") as file:
        file.write(f"{os.getpid()} {what}\n")


def _run(folder: Path, *arguments: str, **modules: str) -> tuple[int, str, list[list[str]]]:
    """The exit status, what is printed, and what the tests noted."""
    (folder / "conftest.py").write_text(_CONFTEST)
    for name, text in modules.items():
        (folder / f"test_{name}.py").write_text(
            f"import os, pytest, warnings\nfrom tests.house.test_workers import note\n{text}"
        )
    notes = folder / "notes"
    notes.touch()
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:asyncio", "--rootdir", str(folder)]
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *arguments, str(folder)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "NOTES": str(notes), "PY_COLORS": "0"},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    return ran.returncode, ran.stdout + ran.stderr, [line.split(" ", 1) for line in notes.read_text().splitlines()]


_EVERY_KIND = """
def test_passes(shared): pass
def test_fails(shared): print("said" + " before"); assert 1 == 2
@pytest.mark.skip(reason="not today")
def test_skipped(): pass
@pytest.mark.xfail(strict=True)
def test_expected(): assert False
def test_error_of_fixture(gone): pass
def test_warns(): warnings.warn("careful", UserWarning)
def test_writes(capfd, tmp_path): os.system("echo loud"); assert capfd.readouterr().out == "loud\\n"
"""


def test_forks_tell_what_one_process_would(tmp_path: Path) -> None:
    told = []
    for workers in ("0", "2"):
        folder = tmp_path / workers
        folder.mkdir()
        modules = {"one": _EVERY_KIND, "two": _EVERY_KIND, "three": _EVERY_KIND}
        status, out, _ = _run(folder, "--workers", workers, "--junitxml", str(folder / "all.xml"), **modules)
        assert status == 1, out
        counts = re.findall(r"(\d+) (failed|passed|skipped|xfailed|warnings|error)", out.splitlines()[-1])
        assert out.count("said before") == 3
        assert "UserWarning: careful" in out
        cases = ElementTree.parse(folder / "all.xml").iter("testcase")
        told.append((counts, sorted((case.get("classname"), case.get("name"), [each.tag for each in case]) for case in cases)))
    assert told[0] == told[1]
    assert ("3", "failed") in told[1][0]


def test_a_module_is_run_by_one_fork_and_what_tests_share_ends_where_it_began(tmp_path: Path) -> None:
    tests = "\n".join(f"def test_{number}(shared): assert shared == os.getpid(); note('test')" for number in range(5))
    status, out, notes = _run(tmp_path, "--workers", "3", **{f"number_{number}": tests for number in range(7)})
    assert (status, out.splitlines()[-1].partition(" in ")[0]) == (0, "35 passed")
    for process in {process for process, _ in notes}:
        said = [what for by, what in notes if by == process]
        assert (said[0], said[-1]) == ("session begins", "session ends")
        inside = said[1:-1]
        assert len(inside) % 7 == 0
        for first in range(0, len(inside), 7):
            module = inside[first].split()[0]
            assert inside[first : first + 7] == [f"{module} begins", *["test"] * 5, f"{module} ends"]
    assert sum(what.endswith(" begins") for _, what in notes if "number" in what) == 7


_DIES = """
def test_a(shared): pass
def test_b(): os._exit(7)
def test_c(): os.kill(os.getpid(), 9)
def test_d(shared): pass
"""


def test_a_fork_that_dies_fails_its_test_and_another_one_goes_on(tmp_path: Path) -> None:
    status, out, _ = _run(tmp_path, "--workers", "2", dies=_DIES, lives="def test_e(shared): pass\n")
    assert (status, out.splitlines()[-1].partition(" in ")[0]) == (1, "2 failed, 3 passed")
    assert re.search(r"ended with status 7 while it ran \S*test_dies.py::test_b", out)
    assert re.search(r"ended with signal 9 while it ran \S*test_dies.py::test_c", out)


def test_the_first_failure_is_the_last_where_that_is_wanted(tmp_path: Path) -> None:
    fails = "def test_a(): assert False\n" + "\n".join(f"def test_{number}(): note('ran')" for number in range(20))
    status, out, notes = _run(tmp_path, "--workers", "1", "-x", fails=fails)
    assert (status, notes) == (1, [])
    assert "stopping after 1 failures" in out


_WAITS = """
def test_waits(shared):
    while True: time.sleep(0.01)
"""
_LEAVES = """
def test_leaves():
    while 'test_waits begins' not in open(os.environ['NOTES']).read(): pass
    pytest.exit('enough')
"""


def test_whoever_ends_the_session_ends_all_forks(tmp_path: Path) -> None:
    status, out, notes = _run(tmp_path, "--workers", "2", waits=_WAITS, leaves=_LEAVES)
    assert status == 2
    assert "enough" in out
    assert [what for _, what in notes][-2:] == ["test_waits ends", "session ends"]


def test_what_goes_wrong_beside_the_tests_is_no_success(tmp_path: Path) -> None:
    hook = "\n@pytest.hookimpl(wrapper=True)\ndef pytest_runtest_protocol(item):\n    yield\n    raise OSError('broken')\n"
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "conftest.py").write_text("import pytest\n" + hook)
    (tmp_path / "sub" / "test_x.py").write_text("def test_x(): pass\n")
    status, out, _ = _run(tmp_path, "--workers", "2", fine="def test_y(): pass\n")
    assert (status, "OSError: broken" in out) == (3, True)
