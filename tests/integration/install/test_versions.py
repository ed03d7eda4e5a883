"""Two versions of polybus on one link, in one cluster and over one capture: the wheel of the older one, and this tree.

`POLYBUS_OLDER_WHEEL` is the file of the older one. Without it the wheel is built from the tree, and both are the same version.
Both run with the dependencies of this environment.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import polybus
from polybus.cli.app import run
from tests.integration.install.version import WITHIN
from tests.integration.interop.nats_servers import nats_server

PROGRAM = Path(__file__).with_name("version.py")
TREE = Path(polybus.__file__).parents[1]
pytestmark = pytest.mark.timeout(300)
WAYS = pytest.mark.parametrize("older_serves", [True, False], ids=["older-serves", "older-asks"])


@pytest.fixture(scope="module")
def older(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the older version and nothing else."""
    given = os.environ.get("POLYBUS_OLDER_WHEEL")
    wheel = given or str(request.getfixturevalue("wheel"))
    target = tmp_path_factory.mktemp("older")
    command = [sys.executable, "-m", "pip", "install", "-qq", "--no-index", "--no-deps", "--target", str(target), wheel]
    subprocess.run(command, check=True)
    return target


@contextmanager
def started(version: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """The program with this version of polybus; its end must be a good one."""
    command = [sys.executable, str(PROGRAM), *arguments]
    environment = os.environ | {"PYTHONPATH": str(version), "PYTHONUNBUFFERED": "1"}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment, text=True, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        try:
            assert process.stdout is not None
            place = process.stdout.readline()
            assert place.startswith(str(version) + os.sep), (place, process.communicate())
            yield process
            _, errors = process.communicate(timeout=4 * WITHIN)
            assert process.returncode == 0, errors
        finally:
            process.kill()


def address_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip() or process.communicate()[1]


def talk(server: tuple[Path, str, str], asker: tuple[Path, str], *more: str) -> None:
    """One program answers, the other asks it for everything."""
    with started(*server) as answers:
        with started(*asker, address_of(answers), *more):
            pass


@WAYS
@pytest.mark.parametrize(
    "url", ["ubre+tcp://127.0.0.1:0", "ubre+ws://127.0.0.1:0/bus", "ubre+ws://127.0.0.1:0/bus?format=binary"]
)
def test_two_versions_ask_and_hear_each_other_on_one_link(url: str, older_serves: bool, older: Path) -> None:
    server, asker = (older, TREE) if older_serves else (TREE, older)
    talk((server, "serve", url), (asker, "ask"))


@WAYS
def test_two_versions_are_one_cluster(older_serves: bool, older: Path, tmp_path: Path) -> None:
    server, asker = (older, TREE) if older_serves else (TREE, older)
    with nats_server("wheel", f'jetstream {{ store_dir: "{tmp_path}" }}') as nats:
        talk((server, "node", f"{nats.url}/shop"), (asker, "ask-node"))


def test_a_capture_of_the_older_version_is_analysed_and_replayed(
    older: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capture = str(tmp_path / "capture")
    talk((older, "serve", "ubre+tcp://127.0.0.1:0"), (older, "ask"), capture)
    assert run(["analyse", capture, "--settle", "--out", str(tmp_path / "results")]) == 0
    told = capsys.readouterr().out
    assert ", 0 quarantined" in told and "3 exchanges: 1 ok, 1 error, 1 cancelled\n" in told, told
    with started(TREE, "serve", "ubre+tcp://127.0.0.1:0") as answers:
        assert run(["replay", capture, address_of(answers), "--speed", "0"]) == 0
    told = capsys.readouterr().out
    assert "\n1 answered, 2 failed\n" in told, told
