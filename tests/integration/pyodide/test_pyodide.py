"""The core runs in a browser's Python: its own tests, inside a real Pyodide in Node.

Needs Node, the npm package `pyodide` and the wheels of `requirements.txt`, all of which ``make peers`` installs; where they are
not there the tests are skipped, in CI they fail. Can be run alone: ``make test-integration ARGS=tests/integration/pyodide``.
"""

import re
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

from tests.integration.browser.site import built_wheel
from tests.loops import FULL
from tests.support import missing

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
PYODIDE = ROOT / "tests/integration/interop/node/node_modules/pyodide"
WHEELS = HERE / "wheels"

# Without sockets there is only memory. What has to do with the interpreter and its loop: tasks, turns, the ports of a page.
SUITE = [
    "tests/unit/bus/test_lifecycle.py",
    "tests/unit/rpc/test_channels.py",
    "tests/unit/testing/test_testing.py",
    "tests/unit/core/test_workers.py",
    "tests/contract/test_ports.py",
    "tests/unit/transports/postmessage/test_channels.py",
    "tests/unit/transports/postmessage/test_connections.py",
    "tests/unit/transports/test_memory.py",
]
# In `make test-all`: tables of bytes and texts, every protocol in memory, and properties.
MORE = [
    "tests/unit/handlers/test_handlers.py",
    "tests/unit/pubsub/test_publications.py",
    "tests/unit/contracts/test_client.py",
    "tests/unit/contracts/test_wrong_contracts.py",
    "tests/unit/bus/test_limits.py",
    "tests/unit/bus/test_stats_and_events.py",
    "tests/unit/transports/postmessage/test_conformance.py",
    "tests/unit/protocols/ubre",
    "tests/unit/transports/test_length_framing.py",
    "tests/unit/transports/test_ws_policy.py",
    "tests/contract/test_protocols.py",
]


@pytest.fixture(scope="module")
def ours() -> Path:
    """The wheel that a user would hand to micropip."""
    for needed, remedy in ((PYODIDE / "pyodide.mjs", "npm"), (WHEELS / ".ready", "pip")):
        if shutil.which("node") is None or not needed.exists():
            missing(f"Pyodide is not here ({remedy} brings it): make peers")
    return built_wheel()


@pytest.fixture(scope="module")
def output(ours: Path) -> str:
    """What the page's program prints in Pyodide, and then the tests."""
    programs = ",".join(str(HERE / name) for name in ("page.py", "suite.py"))
    wheels = sorted(WHEELS.glob("*.whl"))
    tests = ["-q", *SUITE, *(MORE if FULL else [])]
    command: list[str | Path] = ["node", HERE / "run.mjs", PYODIDE, ROOT, programs, ours, *wheels, "--", *tests]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    output = done.stdout + done.stderr
    assert done.returncode == 0, "\n".join(line[:300] for line in output.splitlines()[-80:])
    return output


@pytest.mark.timeout(920)
def test_the_unit_tests_of_the_core_pass_inside_pyodide(output: str) -> None:
    passed = re.search(r"(\d+) passed", output)
    assert passed is not None
    assert int(passed[1]) > (900 if FULL else 200), output[-2000:]


@pytest.mark.timeout(920)
def test_a_program_on_the_loop_of_the_page_has_all_verbs(output: str) -> None:
    assert "names of polybus in Pyodide" in output


def test_the_wheel_has_the_javascript_and_its_types(ours: Path) -> None:
    with zipfile.ZipFile(ours) as wheel:
        names = {name.rpartition("/")[2] for name in wheel.namelist()}
    assert {"polybus.js", "polybus.d.ts", "polybus-frames.js", "polybus-frames.d.ts"} <= names
