"""Builds a release of the last commit into dist/, checks it, and publishes nothing. `make release` runs it.

It builds everything twice, from two exports of the commit in different folders, and compares the bytes. It stops with an
error at the first step that fails.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.integration.install.installs import PYTHONS, find_python

ROOT = Path(__file__).resolve().parents[1]
LICENCES = "Apache;BSD;MIT;ISC;MPL-2.0;Mozilla Public License 2.0;PSF-2.0"
"""Beginnings of the licences that a dependency may have; one of several is enough."""


def run(*command: str | Path, where: Path = ROOT, **settings: str) -> str:
    environment = {**os.environ, **settings}
    environment["PATH"] = os.pathsep.join((sysconfig.get_path("scripts"), environment["PATH"]))
    done = subprocess.run(
        command, cwd=where, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{done.stdout}make release: this failed: {' '.join(map(str, command))}")
    return done.stdout.strip()


def build(folder: Path, pythons: list[str], epoch: str) -> dict[str, str]:
    """Build the sdist and, from it, the wheels; return the SHA-256 of each file by its name."""
    archive = folder / "commit.tar"
    run("git", "archive", "-o", archive, "HEAD")
    run("tar", "-xf", archive, where=folder)
    out, raw = folder / "dist", folder / "linux"
    # Without debug information, which has the folder in it.
    settings: Any = {"SOURCE_DATE_EPOCH": epoch, "CFLAGS": "-g0"}
    command = ("uv", "build", "-q", "--build-constraints", "constraints.txt")
    run(*command, "-p", sys.executable, "-o", out, where=folder, **settings, POLYBUS_SPEEDUPS="0")
    (sdist,) = out.glob("*.tar.gz")
    for python in pythons:
        run(*command, "-p", python, "-o", raw, "--wheel", sdist, where=folder, **settings)
    for wheel in sorted(raw.glob("*.whl")):
        if "none-any" in wheel.name:
            sys.exit("make release: the module in C could not be compiled: install a C compiler")
        if sys.platform == "linux":
            run("auditwheel", "repair", "--only-plat", "-w", out, wheel, **settings)
        else:
            wheel.rename(out / wheel.name)
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(out.iterdir()) if path.suffix != ""}


def main() -> None:
    if changed := run("git", "status", "--porcelain", "--untracked-files=no"):
        sys.exit(f"make release: it is built from the last commit, but these files have changes:\n{changed}")
    epoch = run("git", "log", "-1", "--format=%ct")
    found = {version: find_python(version) for version in PYTHONS}
    dist = ROOT / "dist"
    with TemporaryDirectory(prefix="polybus-release-") as name:
        first, second = Path(name) / "first", Path(name) / "second"
        hashes = []
        for folder in (first, second):
            folder.mkdir()
            print("building", flush=True)
            hashes.append(build(folder, [python for python in found.values() if python], epoch))
        if differ := sorted({file for file, _ in hashes[0].items() ^ hashes[1].items()}):
            sys.exit(f"make release: two builds of one commit differ: {' '.join(differ)}")
        print(f"two builds gave the same {len(hashes[0])} files")
        run("twine", "check", "--strict", *(first / "dist" / file for file in hashes[0]))
        check_dependencies(first / "dist", Path(name), epoch)
        dist.mkdir(exist_ok=True)
        for old in dist.iterdir():
            old.unlink()
        for path in (first / "dist").iterdir():
            if path.suffix in {".whl", ".gz", ".json"}:
                (dist / path.name).write_bytes(path.read_bytes())
    sums = "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(dist.iterdir()))
    (dist / "SHA256SUMS").write_text(sums)
    print("trying the wheels in empty environments", flush=True)
    subprocess.run([sys.executable, "-m", "tests.integration.install.installs", dist], cwd=ROOT, check=True)
    print(sums, end="")
    for version in (version for version, python in found.items() if python is None):
        print(f"INCOMPLETE: no wheel for CPython {version}: no interpreter with headers found in PATH or pyenv")
    print("Nothing was published. The files are in dist/.")


def check_dependencies(dist: Path, folder: Path, epoch: str) -> None:
    """Check the licences of all that `polybus[all]` installs, and write the bill of materials."""
    (wheel,) = dist.glob("*none-any.whl")
    inside = folder / "venv" / ("Scripts" if os.name == "nt" else "bin") / "python"
    print("installing polybus[all]: its licences and bill of materials", flush=True)
    run("uv", "venv", "-q", "-p", sys.executable, folder / "venv")
    run("uv", "pip", "install", "-q", "-p", inside, "-c", "constraints.txt", f"polybus[all] @ {wheel.as_uri()}")
    run("pip-licenses", "--python", inside, "--partial-match", "--allow-only", LICENCES)
    bill = dist / f"{'-'.join(wheel.name.split('-')[:2])}.cdx.json"
    options = ("--pyproject", "pyproject.toml", "--mc-type", "library", "--output-reproducible", "-o", bill)
    run("cyclonedx-py", "environment", *options, inside, SOURCE_DATE_EPOCH=epoch)


if __name__ == "__main__":
    main()
