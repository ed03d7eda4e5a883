"""Builds a release of the last commit into dist/, checks it, and publishes nothing. `make release` runs it.

It builds everything twice, from two exports of the commit in different folders, and compares the bytes. It stops with an
error at the first step that fails, and at the end if an interpreter is missing.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from scripts import try_wheels

ROOT = Path(__file__).resolve().parents[1]
LICENCES = (
    "3-Clause BSD License;BSD License;BSD-2-Clause;BSD-3-Clause;Apache Software License;Apache-2.0;ISC License (ISCL);MIT;"
    "MIT License;MIT-0;Mozilla Public License 2.0 (MPL 2.0);PSF-2.0;Apache-2.0 AND BSD-2-Clause;Apache-2.0 OR BSD-2-Clause;"
    "Apache-2.0 OR BSD-3-Clause;BSD-3-Clause AND 0BSD AND MIT AND Zlib AND CC0-1.0;MIT OR Apache-2.0"
)
"""What packages may declare as their licence, word for word. A package that lists several licences needs only one of these."""


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
    """Build the sdist, from it the wheels, and the bill of materials; return the SHA-256 of each file by its name."""
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
    run("twine", "check", "--strict", sdist, *out.glob("*.whl"))
    check_dependencies(out, folder, epoch)
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(out.iterdir()) if path.suffix != ""}


def main() -> None:
    if changed := run("git", "status", "--porcelain", "--untracked-files=no"):
        sys.exit(f"make release: it is built from the last commit, but these files have changes:\n{changed}")
    epoch = run("git", "log", "-1", "--format=%ct")
    pythons = [python for version in try_wheels.PYTHONS if (python := try_wheels.find_python(version))]
    dist = ROOT / "dist"
    with TemporaryDirectory(prefix="polybus-release-") as name:
        first, second = Path(name) / "first", Path(name) / "second"
        hashes = []
        for folder in (first, second):
            folder.mkdir()
            print("building", flush=True)
            hashes.append(build(folder, pythons, epoch))
        if differ := sorted({file for file, _ in hashes[0].items() ^ hashes[1].items()}):
            sys.exit(f"make release: two builds of one commit differ: {' '.join(differ)}")
        print(f"two builds gave the same {len(hashes[0])} files")
        dist.mkdir(exist_ok=True)
        for old in dist.glob("polybus-*"):
            if old.is_file():
                old.unlink()
        for file in hashes[0]:
            shutil.copyfile(first / "dist" / file, dist / file)
    sums = "".join(f"{digest}  {file}\n" for file, digest in hashes[0].items())
    (dist / "SHA256SUMS").write_text(sums)
    print(f"{sums}Nothing was published. The files are in dist/.\ntrying the wheels in empty environments", flush=True)
    try_wheels.main(dist)


def check_dependencies(dist: Path, folder: Path, epoch: str) -> None:
    """Check the licences of all that `polybus[all]` installs, and write the bill of materials."""
    (wheel,) = dist.glob("*none-any.whl")
    inside = folder / "venv" / ("Scripts" if os.name == "nt" else "bin") / "python"
    print("installing polybus[all]: its licences and bill of materials", flush=True)
    run("uv", "venv", "-q", "-p", sys.executable, folder / "venv")
    run("uv", "pip", "install", "-q", "-p", inside, "-c", "constraints.txt", f"polybus[all] @ {wheel.as_uri()}")
    run("pip-licenses", "--python", inside, "--allow-only", LICENCES)
    bill = dist / f"{'-'.join(wheel.name.split('-')[:2])}.cdx.json"
    options = ("--pyproject", "pyproject.toml", "--mc-type", "library", "--output-reproducible", "-o", bill)
    run("cyclonedx-py", "environment", *options, inside, SOURCE_DATE_EPOCH=epoch)


if __name__ == "__main__":
    main()
