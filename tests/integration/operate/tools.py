"""Programs that operators use, and the files of `examples/operate` that they read."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.integration.web.browser import missing

__all__ = ["FILES", "ROOT", "accepted", "tool"]

ROOT = Path(__file__).resolve().parents[3]
FILES = ROOT / "examples" / "operate"


def tool(name: str, comes_by: str) -> str:
    """The path of a program; skips the test if it is not installed, which fails in CI."""
    found = shutil.which(name, path=f"{Path(sys.executable).parent}:{os.environ['PATH']}:/usr/sbin")
    if found is None:
        missing(f"{name} is not installed: {comes_by}")
    return found


def accepted(*command: str | Path, cwd: Path = FILES, **environment: str) -> str:
    """Run a checker, which must find nothing wrong; what it prints."""
    ended = subprocess.run(
        command, cwd=cwd, env=os.environ | environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout + ended.stderr
