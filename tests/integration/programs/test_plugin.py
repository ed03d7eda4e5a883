"""The example of a protocol in a wheel of its own: built, installed, found by its entry point, and held to the contract."""

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import polybus

ROOT = Path(__file__).resolve().parents[3]
EXAMPLE = ROOT / "examples" / "plugin"
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "--no-cache-dir")

PROGRAM = """
import sys

import anyio

from polybus import Bus, NoHandler, connect

assert "polybus_lines" not in sys.modules
bus = Bus()


@bus.handle("user.get")
async def get_user(body: dict[str, int]) -> dict[str, object]:
    return {"id": body["id"], "name": "Ann"}


async def main() -> None:
    with anyio.fail_after(60):
        async with bus.serve(sys.argv[1]) as listener, connect(listener.url) as client:
            print(listener.url)
            print(await client.request("user.get", {"id": 7}))
            try:
                await client.request("user.put")
            except NoHandler:
                print("nobody")
            async with client.subscribe("news.*") as news:
                await bus.publish("news.today", "hello")
                print((await anext(news)).body)


anyio.run(main)
"""

SUITE = """
import pytest

from polybus.testing import protocol_suite
from polybus_lines import Lines


@pytest.fixture(scope="module", params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return request.param


TestLines = protocol_suite(Lines)
TestSmallLetters = protocol_suite(lambda: Lines(upper=False))
"""


def run(*command: str | Path, where: Path, path: Path | None = None) -> str:
    home = Path(polybus.__file__).parent.parent
    # Not the environment of this run: neither its options for pytest nor its path.
    environment = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "SYSTEMROOT") if name in os.environ}
    environment["PYTHONPATH"] = os.pathsep.join(str(part) for part in (path, home) if part is not None)
    done = subprocess.run(command, cwd=where, env=environment, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the installed example and nothing else."""
    if find_spec("hatchling") is None or find_spec("pip") is None:
        pytest.skip("needs hatchling and pip in this environment: nothing is fetched from elsewhere")
    source, wheels, target = (tmp_path_factory.mktemp(name) for name in ("source", "wheels", "target"))
    shutil.copytree(EXAMPLE, source / "plugin")
    options = ("--no-build-isolation", "--no-deps", "--no-index", "--quiet", "--wheel-dir", str(wheels))
    run(*PIP, "wheel", *options, str(source / "plugin"), where=source)
    (wheel,) = wheels.glob("*.whl")
    run(*PIP, "install", "--no-index", "--no-deps", "--quiet", "--target", str(target), str(wheel), where=source)
    return target


def test_the_example_is_short_and_its_wheel_holds_what_it_needs(installed: Path) -> None:
    lines = (EXAMPLE / "src" / "polybus_lines" / "__init__.py").read_text().splitlines()
    assert len(lines) <= 200
    files = {path.name for path in (installed / "polybus_lines").iterdir() if path.is_file()}
    assert files == {"__init__.py", "py.typed"}
    (metadata,) = installed.glob("polybus_lines-*.dist-info/METADATA")
    assert "REQUEST k3v9-1 user.get" in metadata.read_text()


@pytest.mark.parametrize(("address", "options"), [("tcp://127.0.0.1:0", ""), ("memory://lines", "?upper=no")])
def test_an_installed_protocol_is_found_by_the_word_in_the_url(
    installed: Path, tmp_path: Path, address: str, options: str
) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    written = run(sys.executable, program, f"lines+{address}{options}", where=tmp_path, path=installed).splitlines()
    assert written[0].startswith(f"lines+{address.partition('://')[0]}://")
    assert written[0].endswith(options)
    assert written[1:] == ["{'id': 7, 'name': 'Ann'}", "nobody", "hello"]


def test_an_installed_protocol_passes_the_contract_suite(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "test_lines.py").write_text(SUITE)
    (tmp_path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    options = ("-q", "-p", "no:cacheprovider", "-p", "no:asyncio", "-x", "--tb=short")
    written = run(sys.executable, "-m", "pytest", *options, "test_lines.py", where=tmp_path, path=installed)
    assert " passed" in written.splitlines()[-1]
    assert "failed" not in written
