"""A worker: one of several processes that serve the same addresses, with the files that it inherits from the supervisor.

The supervisor (`polybus.cluster.workers`) starts the same program again. There `run` finds out from this module that the
process is a worker, and which sockets it serves.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, Self

import anyio
from attrs import frozen

from ..errors import LocalProtocolError
from ..plugins.tools import log_fields

logger: logging.Logger = logging.getLogger("polybus")

VARIABLE: Final = "POLYBUS_WORKER"
"""Environment variable that makes a process a worker, together with inherited files."""
ASK: Final = b"?"
"""Question of the supervisor: is the worker ready?"""
ASK_METRICS: Final = b"m"
"""Question of the supervisor: the text of ``/metrics``."""

_LONGEST: Final = 4000
_GRACE: Final = 5.0
"""Seconds from the end of a graceful shutdown to SIGKILL for a worker without a supervisor."""


def _identity(file: int) -> str:
    """Return the device and inode of an open file, which are unique."""
    known = os.fstat(file)
    return f"{known.st_dev}:{known.st_ino}"


@frozen
class Inheritance:
    """Open files that a worker inherits from its supervisor, as the environment variable lists them."""

    number: int
    """Number of the worker, from 1."""
    lifeline: int
    """Reading end of a pipe, which ends when the supervisor ends or is killed."""
    reports: int
    """Socket for questions and answers."""
    sockets: Mapping[str, Sequence[int]]
    """Listening sockets, by the name that `run` asks for."""

    @property
    def name(self) -> str:
        return f"worker {self.number}"

    def environment(self) -> dict[str, str]:
        """Return the variable for the worker. Children of the worker see it too, but do not have the lifeline."""
        fields = {
            "number": self.number,
            "lifeline": self.lifeline,
            "reports": self.reports,
            "sockets": {name: list(files) for name, files in self.sockets.items()},
            "are": [_identity(file) for file in self.files],
        }
        return {VARIABLE: json.dumps(fields)}

    @classmethod
    def of_this_process(cls) -> Self | None:
        """Return the inherited files; None if this process is not a worker.

        Raises:
            LocalProtocolError: `run` was called before in this worker.
        """
        try:
            fields = json.loads(os.environ[VARIABLE])
            identities = fields.pop("are")
            inherited = cls(**fields)
            if identities[0] != _identity(inherited.lifeline):
                return None
        except (KeyError, TypeError, ValueError, OSError):
            return None
        try:
            if identities == [_identity(file) for file in inherited.files]:
                return inherited
        except OSError:
            pass
        raise LocalProtocolError("a worker runs once: run() has returned in this process, and was called again")

    @property
    def files(self) -> list[int]:
        return [self.lifeline, self.reports, *(file for files in self.sockets.values() for file in files)]


class Worker:
    def __init__(self, inherited: Inheritance) -> None:
        self.number: int = inherited.number
        self._lifeline = inherited.lifeline
        self._sockets = inherited.sockets
        for file in inherited.files:
            os.set_inheritable(file, False)  # not for children of this process
        import multiprocessing  # imported late: a browser page does not have it

        multiprocessing.current_process().name = inherited.name  # `%(processName)s` of every record
        self._reports = socket.socket(fileno=inherited.reports)
        self._reports.setblocking(False)
        self._measuring = False
        self._fields = log_fields(worker=inherited.number, pid=os.getpid())

    @classmethod
    def here(cls) -> Self | None:
        """Return the worker; None if this process is not a worker. Raises as `Inheritance.of_this_process`."""
        inherited = Inheritance.of_this_process()
        return None if inherited is None else cls(inherited)

    def sockets(self, name: str) -> list[socket.socket]:
        """Return the listening sockets of that name, which the supervisor has bound.

        Raises:
            LocalProtocolError: The supervisor has bound none.
        """
        if name not in self._sockets:
            raise LocalProtocolError(
                f"worker {self.number} wants to serve {name!r}, and there is {', '.join(self._sockets) or 'nothing'} for it: "
                "a program with several workers has to call run() with the same arguments each time"
            )
        return [socket.socket(fileno=file) for file in self._sockets[name]]

    def follow(self, seconds: float) -> None:
        """From now on end with the supervisor: by SIGTERM at once, by SIGKILL some seconds after `seconds`."""
        threading.Thread(target=self._follow, args=(seconds + _GRACE,), name="polybus lifeline", daemon=True).start()

    def _follow(self, seconds: float) -> None:
        while os.read(self._lifeline, 1):
            pass
        logger.warning("worker %d: the process that started it has ended: ending too", self.number, extra=self._fields)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(seconds)
        os.kill(os.getpid(), signal.SIGKILL)

    def tell_served(self, urls: Sequence[str]) -> None:
        self._tell({"serves": list(urls)})

    def tell_why_not(self, text: str) -> bool:
        """Report why this worker cannot serve. Returns False if the supervisor is gone."""
        return self._tell({"cannot": text[:_LONGEST]})

    async def answer(self, why_not_ready: Callable[[], str], metrics: Callable[[], Awaitable[str]] | None = None) -> None:
        """Answer the supervisor's questions. Runs in this event loop, so that the supervisor notices a stuck loop."""
        writing = anyio.Lock()
        with self._reports:
            async with anyio.create_task_group() as group:
                while asked := await self._asked():
                    if ASK_METRICS in asked and metrics is not None and not self._measuring:
                        self._measuring = True
                        group.start_soon(self._tell_metrics, metrics, writing)
                    if ASK in asked:
                        async with writing:
                            why = why_not_ready()
                            self._tell({"ready": not why, "why": why[:_LONGEST]})
                group.cancel_scope.cancel()

    async def _asked(self) -> bytes:
        """Wait for questions; returns b"" once the supervisor is gone."""
        while True:
            await anyio.wait_readable(self._reports)
            try:
                return self._reports.recv(64)
            except BlockingIOError:
                continue
            except OSError:
                return b""

    async def _tell_metrics(self, metrics: Callable[[], Awaitable[str]], writing: anyio.Lock) -> None:
        """Send the text of ``/metrics``, in a separate task because collecting it asks other nodes."""
        try:
            text: str | None = await metrics()
        except Exception:
            logger.exception("worker %d: the metrics cannot be collected", self.number, extra=self._fields)
            text = None
        finally:
            self._measuring = False
        rest = memoryview(json.dumps({"metrics": text}).encode() + b"\n")
        async with writing:
            while rest:
                try:
                    rest = rest[self._reports.send(rest) :]
                except BlockingIOError:
                    await anyio.wait_writable(self._reports)
                except OSError as error:
                    logger.debug("worker %d: report not sent: %s", self.number, error, extra=self._fields)
                    return

    def _tell(self, fields: Mapping[str, object]) -> bool:
        try:
            self._reports.send(json.dumps(fields).encode() + b"\n")
        except OSError as error:  # the supervisor has ended, or does not read
            logger.debug("worker %d: report not sent: %s", self.number, error, extra=self._fields)
            return False
        return True
