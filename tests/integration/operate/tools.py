"""Programs that operators use, and the files of `examples/operate` that they read."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support import free_port, missing

ROOT = Path(__file__).resolve().parents[3]
FILES = ROOT / "examples" / "operate"


def tool(name: str, comes_by: str) -> str:
    found = shutil.which(name, path=f"{Path(sys.executable).parent}:{os.environ['PATH']}:/usr/sbin")
    if found is None:
        missing(f"{name} is not installed: {comes_by}")
    return found


def with_ports(name: str, ports: tuple[int, int]) -> str:
    """A file for two services, with these ports in place of its own."""
    text = (FILES / name).read_text()
    for theirs, ours in zip(("8001", "8002"), ports, strict=True):
        text = text.replace(f"127.0.0.1:{theirs}", f"127.0.0.1:{ours}")
    return text


@contextmanager
def prometheus(folder: Path, configuration: str) -> Iterator[str]:
    port, file = free_port(), folder / "prometheus.yml"
    file.write_text(configuration)
    command = [tool("prometheus", "scripts/debian-packages.sh prometheus"), f"--config.file={file}"]
    command += [f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address=127.0.0.1:{port}"]
    with (folder / "prometheus.log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            yield f"http://127.0.0.1:{port}/api/v1"
        finally:
            process.terminate()


def accepted(*command: str | Path, cwd: Path = FILES, **environment: str) -> str:
    """Run a checker, which must find nothing wrong; what it prints."""
    ended = subprocess.run(command, cwd=cwd, env=os.environ | environment, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout + ended.stderr
