"""The worker side of ``run(workers=...)``: files inherited from the supervisor, and answers to the supervisor's questions.

The supervisor (`polybus.cluster.workers`) starts the same program again. In the new process, `run` uses this module to find out
that it is a worker, and which sockets to serve.
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

VARIABLE: Final = "POLYBUS_WORKER"  # Environment variable that lists the files that a worker inherits
ASK: Final = b"?"  # Question from the supervisor: is the worker ready?
ASK_METRICS: Final = b"m"  # Question from the supervisor: what is the text of ``/metrics``?

_LONGEST: Final = 4000
_GRACE: Final = 5.0  # Seconds between a graceful shutdown and the moment at which a worker without a supervisor kills itself


def _identity(file: int) -> str:
    known = os.fstat(file)
    return f"{known.st_dev}:{known.st_ino}"


@frozen
class Inheritance:
    number: int  # Number of the worker, starting at 1
    lifeline: int  # Read end of a pipe that closes when the supervisor exits
    reports: int  # Socket that carries the supervisor's questions and the worker's answers
    sockets: Mapping[str, Sequence[int]]  # Listening sockets, by the name that `run` uses to request them

    @property
    def name(self) -> str:
        return f"worker {self.number}"

    def environment(self) -> dict[str, str]:
        """Return `VARIABLE` for a worker. The worker's own children see the variable too, but do not inherit the lifeline."""
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
        """Return the inherited files, or None if this process is not a worker."""
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
        raise LocalProtocolError("run() was called again after it had returned: a worker can call it only once")

    @property
    def files(self) -> list[int]:
        return [self.lifeline, self.reports, *(file for files in self.sockets.values() for file in files)]


class Worker:
    def __init__(self, inherited: Inheritance) -> None:
        self.number: int = inherited.number
        self._lifeline = inherited.lifeline
        self._sockets = inherited.sockets
        for file in inherited.files:
            os.set_inheritable(file, False)  # for children of this process
        import multiprocessing  # imported here because browsers do not have it

        multiprocessing.current_process().name = inherited.name  # %(processName)s in logs
        self._reports = socket.socket(fileno=inherited.reports)
        self._reports.setblocking(False)
        self._measuring = False
        self._fields = log_fields(worker=inherited.number, pid=os.getpid())

    @classmethod
    def here(cls) -> Self | None:
        """Return the worker, or None if this process is not a worker.

        Raises:
            LocalProtocolError: If `run` has already been called in this worker.
        """
        inherited = Inheritance.of_this_process()
        return None if inherited is None else cls(inherited)

    def sockets(self, name: str) -> list[socket.socket]:
        if name not in self._sockets:
            raise LocalProtocolError(
                f"worker {self.number} serves {name!r}, but the supervisor has bound {', '.join(self._sockets) or 'nothing'}: "
                "a program with several workers must call run() with the same arguments each time"
            )
        return [socket.socket(fileno=file) for file in self._sockets[name]]

    def follow(self, seconds: float) -> None:
        """If the supervisor exits, send this process SIGTERM immediately and, after `seconds` and a grace period, SIGKILL."""
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
        """Report why this worker cannot serve. Returns False if the supervisor does not read the report."""
        return self._tell({"cannot": text[:_LONGEST]})

    async def answer(self, why_not_ready: Callable[[], str], metrics: Callable[[], Awaitable[str]] | None = None) -> None:
        """Answer the supervisor's questions. Runs in the event loop, so that the supervisor notices if the loop is blocked."""
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
        while True:
            await anyio.wait_readable(self._reports)
            try:
                return self._reports.recv(64)
            except BlockingIOError:
                continue
            except OSError:
                return b""

    async def _tell_metrics(self, metrics: Callable[[], Awaitable[str]], writing: anyio.Lock) -> None:
        """Send the text of ``/metrics``. Runs in a separate task, because other nodes have to send their metrics first."""
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
        except OSError as error:  # the supervisor has exited, or does not read
            logger.debug("worker %d: report not sent: %s", self.number, error, extra=self._fields)
            return False
        return True
