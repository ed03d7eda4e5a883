"""Commands of Node and of its packages."""

import os
import subprocess
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
NODE = ROOT / "tests" / "integration" / "interop" / "node"


def run(*command: str, cwd: Path = HERE, **variables: str) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=cwd, timeout=120, check=False, env={**os.environ, **variables}
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-8000:]
    return done.stdout
