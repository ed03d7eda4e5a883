"""Installs built wheels into empty environments outside the clone, and tries them there.

`python -m scripts.try_wheels dist` tries each wheel in that folder with the newest and with the oldest dependencies, and the
wheel that the sdist gives without a C compiler. It prints a table, fails if a version of Python is missing, and needs uv. An
environment has the dependencies of polybus at first, then those of the extra `cli` and pytest, for the programs of README and
tutorial.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from glob import glob
from pathlib import Path
from shutil import which
from tempfile import TemporaryDirectory
from typing import Literal

ROOT = Path(__file__).resolve().parents[1]
PYTHONS = ("3.11", "3.12", "3.13")
RESOLUTIONS: tuple[Literal["highest", "lowest-direct"], ...] = ("highest", "lowest-direct")
PROGRAMS = ROOT / "tests" / "integration" / "documentation" / "test_programs.py"
UV = which("uv", path=sysconfig.get_path("scripts") + os.pathsep + os.environ.get("PATH", ""))

IMPORT = """
import os, sys, sysconfig, time

opened = []
sys.addaudithook(lambda event, arguments: opened.append(arguments[0]) if event == "open" else None)
began = time.process_time()
import polybus
took = time.process_time() - began

places = [os.path.realpath(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
opened = [os.path.realpath(os.fsdecode(path)) for path in opened if not isinstance(path, int)]
strange = [path for path in opened if not path.startswith(tuple(place + os.sep for place in places))]
assert opened and not strange, strange
from polybus.speedups import ACTIVE
print(took, ACTIVE)
"""
"""What `import polybus` opens is of Python, of polybus or of its dependencies."""

WHICH = """
import os, sys, sysconfig
header = os.path.join(sysconfig.get_path("include"), "Python.h")
print(sysconfig.get_python_version(), sys.implementation.name, os.path.exists(header))
"""

WITHOUT_EXTRAS = {
    "import polybus.fastapi": "fastapi",
    "import polybus.prometheus": "prometheus",
    "import polybus.opentelemetry": "opentelemetry",
    "from polybus.capture import Capture": "capture",
    "from polybus.analysis import DuckEngine": "analyse",
    "from polybus.spark import Pipeline": "spark",
    "polybus.run(polybus.Bus(), 'ubre+tcp://127.0.0.1:0', uvloop=True)": "uvloop",
    "import asyncio; asyncio.run(polybus.connect('up+zenoh://127.0.0.1:1').__aenter__())": "zenoh",
    "from polybus.cli import main; main([])": "cli",
}
"""Statements that need an extra; the error names it."""

MUST_FAIL = """
import subprocess, sys
done = subprocess.run([sys.executable, "-I", "-c", sys.argv[1]], capture_output=True, text=True)
assert done.returncode and sys.argv[2] in done.stderr, done
"""

PYTEST = (
    *("-q", "--noconftest", "-c", os.devnull, "-p", "no:cacheprovider", "--import-mode=importlib", "-o", f"pythonpath={ROOT}"),
    f"{PROGRAMS}::test_the_programs_of_a_page_run[docs/tutorial/index.md]",
    f"{PROGRAMS}::test_the_readme_serves_and_asks_in_two_programs_and_names_two_commands",
)
"""Tests of the programs of the README and of the tutorial, without the settings of the clone."""


class Failed(Exception):
    """A step failed; the text has the command and what it wrote."""


def run(*command: str | Path, where: Path, **settings: str) -> str:
    """Run a program that must succeed, without the settings of this process for Python, and return what it writes."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTEST", "COV_"))}
    environment.update(settings)
    done = subprocess.run(command, cwd=where, env=environment, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        raise Failed(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def uv(*arguments: str | Path, where: Path, **settings: str) -> str:
    if UV is None:
        raise Failed("uv is missing: pip install uv")
    return run(UV, *arguments, where=where, **settings)


def find_python(version: str) -> str | None:
    """Return the first CPython of this minor version that has headers and a compiler's settings; else None."""
    pyenv = os.environ.get("PYENV_ROOT") or os.path.expanduser("~/.pyenv")
    places = [*sorted(glob(f"{pyenv}/versions/{version}.*/bin/python")), f"python{version}", "python3"]
    for place in places:
        if found := which(place):
            told = subprocess.run([found, "-c", WHICH], capture_output=True, text=True, check=False).stdout.split()
            if told == [version, "cpython", "True"]:
                return found
    return None


def wheel_without_compiler(sdist: Path, python: str, folder: Path) -> Path:
    """Build a wheel from the sdist as on a machine without a C compiler.

    Raises:
        Failed: The build failed, or the wheel has the module in C.
    """
    uv("build", "-q", "--wheel", "-p", python, "-o", folder / "built", sdist.resolve(), where=folder, PATH=str(folder / "none"))
    (wheel,) = (folder / "built").glob("*.whl")
    if not is_pure(wheel):
        raise Failed(f"{wheel.name}: there was a compiler")
    return wheel


def try_wheel(wheel: Path, python: str, resolution: Literal["highest", "lowest-direct"], folder: Path) -> tuple[int, float]:
    """Install a wheel and try it; return the number of packages that come along and the import's processor time in seconds.

    Raises:
        Failed: A step failed.
    """
    uv("venv", "-q", "--no-project", "-p", python, folder / "venv", where=folder)
    inside = folder / "venv" / ("Scripts" if os.name == "nt" else "bin") / "python"
    install: tuple[str | Path, ...] = ("pip", "install", "-q", "-p", inside)
    if resolution == "lowest-direct":
        oldest = folder / "oldest.txt"
        options = ("--resolution", resolution, "--extra", "cli", "-p", inside, "-o", oldest)
        uv("pip", "compile", "-q", *options, ROOT / "pyproject.toml", where=folder)
        install = (*install, "-c", oldest)

    uv(*install, f"polybus @ {wheel.resolve().as_uri()}", where=folder)
    packages = len(uv("pip", "freeze", "-p", inside, where=folder).splitlines()) - 1
    told = [run(inside, "-I", "-c", IMPORT, where=folder).split() for _ in range(5)]
    if told[0][1] != str(not is_pure(wheel)):
        raise Failed(f"{wheel.name}: the module in C is {'on' if is_pure(wheel) else 'off'}")
    for statement, extra in WITHOUT_EXTRAS.items():
        wanted = f"pip install 'polybus[{extra}]'"
        run(inside, "-I", "-c", MUST_FAIL, f"import polybus; {statement}", wanted, where=folder)

    uv(*install, f"polybus[cli] @ {wheel.resolve().as_uri()}", "pytest", where=folder)
    uv("pip", "check", "-q", "-p", inside, where=folder)
    run(inside, "-m", "pytest", *PYTEST, "--rootdir", folder, "--basetemp", folder / "programs", where=folder)
    return packages, min(float(took) for took, _ in told)


def is_pure(wheel: Path) -> bool:
    return wheel.stem.endswith("none-any")


def cells(dist: Path) -> Iterator[tuple[str, Path, Literal["highest", "lowest-direct"]]]:
    """Each version of Python, its wheels and the sdist in the folder, and the versions of dependencies."""
    for version in PYTHONS:
        for wheel in sorted(dist.glob("*.whl")):
            if f"-cp{version.replace('.', '')}-" in wheel.name or is_pure(wheel):
                for resolution in RESOLUTIONS:
                    yield version, wheel, resolution
        for sdist in dist.glob("*.tar.gz"):
            yield version, sdist, "highest"


def main(dist: Path) -> None:
    print("| Python | package | dependencies | size | packages that come along | import |")
    print("| --- | --- | --- | --- | --- | --- |")
    for version, package, resolution in cells(dist):
        is_sdist = package.suffix == ".gz"
        kind = "sdist, no compiler" if is_sdist else "wheel, pure" if is_pure(package) else "wheel, speedups"
        begin = f"| {version} | {kind} | {'oldest' if resolution == 'lowest-direct' else 'newest'} |"
        python = find_python(version)
        if python is None:
            print(begin, "not tried: no such Python here | | |", flush=True)
            continue
        with TemporaryDirectory(prefix="polybus-install-") as name:
            folder = Path(name)
            try:
                wheel = wheel_without_compiler(package, python, folder) if is_sdist else package
                packages, took = try_wheel(wheel, python, resolution, folder)
            except Failed as failure:
                sys.exit(f"{begin} failed:\n{failure}")
        print(begin, f"{package.stat().st_size / 1e6:.2f} MB | {packages} | {took * 1000:.0f} ms |", flush=True)
    if missing := [version for version in PYTHONS if find_python(version) is None]:
        sys.exit(f"INCOMPLETE: no interpreter with headers for CPython {', '.join(missing)} in PATH or pyenv")
    print(f"COMPLETE: tried on CPython {', '.join(PYTHONS)}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
