"""up-python in a separate process and environment: makes and reads messages on request."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support import missing


def python_of(folder: Path) -> Path:
    """The interpreter of the environment in a folder; skip the test where there is none, in CI that is a failure."""
    python = folder / ".venv" / "bin" / "python"
    if not python.exists():
        missing(f"{folder.name}: up-python is not installed: make peers")
    return python


class UpPython:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def __call__(self, do: str, **told: Any) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": do, **told}) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        assert "error" not in answer, answer["error"]
        return answer


@contextmanager
def up_python(folder: Path) -> Iterator[UpPython]:
    piped: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    with subprocess.Popen([python_of(folder), folder / "peer.py"], **piped) as process:
        yield UpPython(process)
        assert process.stdin is not None
        process.stdin.close()
