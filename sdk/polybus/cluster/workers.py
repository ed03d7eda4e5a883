"""The supervisor, which starts, monitors and stops worker processes that all serve the same addresses."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Final

import anyio
import anyio.abc

from .. import Bus
from ..errors import LocalProtocolError
from ..integrations import parts_of
from ..nodes import VARIABLE
from ..outcomes import first_of
from ..plugins.registry import metrics_maker
from ..plugins.tools import HttpStatus, Page, ending_signals, log_fields, unlink_if_ours
from ..retry import Backoff
from .engine import STORE, Child, Children, NatsServer, find_server, lines_from
from .worker import ASK, ASK_METRICS, Inheritance

logger: logging.Logger = logging.getLogger("polybus.cluster")

Bind = Callable[[], Awaitable[Mapping[str, Sequence[socket.socket]]]]

AUTO: Final = "auto"
_AGAIN: Final = Backoff(initial=0.2, maximum=30.0, jitter=False)
_STEADY: Final = 10.0  # Seconds of serving after which a worker that exits is restarted without delay
_ANSWER: Final = 1.0
"""Seconds to wait for a worker to say whether it is ready. A worker with a blocked event loop does not answer."""
_GRACE: Final = 2.0  # Seconds added to the worker's own time limit
_AT_ONCE: Final = 3.0  # Seconds that a worker has to exit after a second signal, as in `polybus.run`
_METRICS: Final = 1.5
"""Seconds to wait for a worker to send all metrics. The worker itself waits for other nodes for one second."""
_ASKED: Final = 2
"""Number of workers to ask for metrics, one after the other. This limits the response time of the page to five seconds."""
_READ: Final = 64 * 1024
_LINE: Final = 16 * 1024 * 1024  # Maximum size of a report from a worker, in bytes


def supervise(
    *,
    count: int,
    buses: Sequence[Bus],
    bind: Bind,
    patience: float,
    health: str | None = None,
    metrics: bool = False,
    unlink: bool = True,
) -> int:
    """Run workers until all of them have exited, and return the exit status.

    Args:
        count: Number of workers.
        buses: The buses that each worker serves.
        bind: Returns the listening sockets, by the names that workers use to request them.
        patience: Seconds that a worker has to exit after SIGTERM.
        health: URL of the health pages.
        metrics: Also serve ``/metrics`` at `health`.
        unlink: Remove the files of Unix sockets at the end.

    Raises:
        LocalProtocolError: If a bus does not have a cluster, requires stores that the engine does not have, nats-server is not
            installed, or this program cannot be started again.
        ValueError: If `health` is not a URL for health pages.
        OSError: If an address cannot be bound.
    """
    if os.name != "posix":
        raise LocalProtocolError("workers= requires POSIX: on this system, start several programs, each with its own port")
    for bus in buses:
        if bus.cluster is None:
            raise LocalProtocolError(
                f"workers={count}: without a cluster, each worker would be a separate bus, and a publication would reach only "
                "the clients of one worker: write Bus(cluster='auto')"
            )
    wants_engine = not os.environ.get(VARIABLE) and any(bus.cluster is not None and bus.cluster.url == AUTO for bus in buses)
    if wants_engine and not os.environ.get(STORE):
        _check_keeps_nothing(count, buses)
    binary = find_server() if wants_engine else None
    cluster = next((bus.cluster.name for bus in buses if bus.cluster is not None), "polybus")
    supervisor = Supervisor(count, this_program(), patience, health, binary, cluster, metrics=metrics)
    return anyio.run(supervisor.main, bind, unlink)


def _check_keeps_nothing(count: int, buses: Sequence[Bus]) -> None:
    for bus in buses:
        durable = any(spec.reading is not None for spec in parts_of(bus).lookup.subscribers)
        if durable or (bus.cluster is not None and bus.cluster.stores):
            raise LocalProtocolError(
                f"workers={count}: a bus uses stores= or durable=, but the NATS server that is started for its workers has no "
                f"folder for them: set {STORE} to a folder, or {VARIABLE} to the URL of a server with JetStream"
            )


def this_program() -> list[str]:
    """Return the command that starts this program again. Raises `LocalProtocolError` if the program is not in a file."""
    if sys.argv[:1] != ["-c"] and getattr(sys.modules["__main__"], "__file__", None) in (None, "<stdin>"):
        raise LocalProtocolError(
            "several workers start this program again, but it is not in a file: save it, or use polybus serve --workers"
        )
    return [sys.executable, *sys.orig_argv[1:]]


class Slot:
    def __init__(self, number: int) -> None:
        self.number: int = number
        self.served: anyio.Event = anyio.Event()
        self.urls: list[str] = []
        self.child: Child | None = None
        self.serves: bool = False
        self.why_not: str = ""  # Reason why the worker cannot serve, from its last report
        self._ready = False
        self._why_not_ready = ""
        self._reports: socket.socket | None = None
        self._answered = anyio.Event()
        self._metrics: str | None = None
        self._measured = anyio.Event()

    @property
    def name(self) -> str:
        return f"worker {self.number}" if self.child is None else f"worker {self.number}, pid {self.child.pid}"

    async def live(self, child: Child, reports: socket.socket) -> None:
        self.child, self._reports, self.serves, self.why_not = child, reports, False, ""
        try:
            with reports:
                async for line in lines_from(reports, lambda: reports.recv(_READ), _LINE):
                    self._heed(json.loads(line))
            await child.ended.wait()
        finally:
            self.child = self._reports = None
            self.serves = False

    def _heed(self, said: Mapping[str, Any]) -> None:
        if "serves" in said:
            self.urls, self.serves = said["serves"], True
            if self.child is not None:
                fields = log_fields(worker=self.number, pid=self.child.pid)
                if self.served.is_set():
                    logger.info("worker %d, pid %d, serves in its place", self.number, self.child.pid, extra=fields)
                else:
                    logger.info("worker %d, pid %d, serves", self.number, self.child.pid, extra=fields)
            self.served.set()
        elif "cannot" in said:
            self.why_not = said["cannot"]
        elif "ready" in said:
            self._ready, self._why_not_ready = said["ready"], said["why"]
            self._answered.set()
            self._answered = anyio.Event()
        elif "metrics" in said:
            self._metrics = said["metrics"]
            self._measured.set()
            self._measured = anyio.Event()

    async def state(self) -> str:
        """Return ``ready``, ``not ready``, ``silent``, ``starts`` or ``ended``."""
        if self.child is None:
            return "ended"
        if not self.serves:
            return "starts"
        if not await self._asked(ASK, self._answered, _ANSWER):
            return "silent"
        return "ready" if self._ready else "not ready"

    async def _asked(self, question: bytes, answered: anyio.Event, seconds: float) -> bool:
        if self._reports is None:
            return False
        try:
            self._reports.send(question)
        except OSError:
            return False
        with anyio.move_on_after(seconds):
            await answered.wait()
            return True
        return False

    def described(self, state: str) -> str:
        why = f" ({self._why_not_ready})" if state == "not ready" and self._why_not_ready else ""
        return f"{self.name}: {state}{why}"

    async def metrics(self) -> str | None:
        return self._metrics if await self._asked(ASK_METRICS, self._measured, _METRICS) else None


class Supervisor:
    def __init__(
        self,
        count: int,
        command: Sequence[str],
        patience: float,
        health: str | None,
        binary: str | None,
        cluster: str,
        *,
        metrics: bool = False,
    ) -> None:
        self._count = count
        self._command = command
        self._patience = patience
        pages: dict[str, Page] = {"/livez": self._livez, "/readyz": self._readyz}
        if metrics:
            pages["/metrics"] = self._metrics
        self._restarts = 0
        self._why_not: set[str] = set()
        self._health = None if health is None else HttpStatus("health", health, pages, "http://127.0.0.1:8081")
        self._binary = binary
        self._cluster = cluster
        self._children = Children()
        self._slots: list[Slot] = []
        self._engine: NatsServer | None = None
        self._sockets: Mapping[str, Sequence[socket.socket]] = {}
        self._lifeline = -1
        self._status = 0
        self._forced: signal.Signals | None = None
        self._stopping: anyio.Event
        self._scope: anyio.CancelScope
        self._group: anyio.abc.TaskGroup

    async def main(self, bind: Bind, unlink: bool) -> int:
        self._stopping, self._scope = anyio.Event(), anyio.CancelScope()
        self._slots = [Slot(number) for number in range(1, self._count + 1)]
        failure: BaseException | None = None
        with anyio.open_signal_receiver(*ending_signals(), signal.SIGCHLD) as signals, ExitStack() as stack:
            async with anyio.create_task_group() as group:
                self._group = group
                group.start_soon(self._heed, signals)
                try:
                    await self._bind(bind, stack, unlink)
                    if self._health is not None:
                        await self._health.listen()
                        group.start_soon(self._health.serve)
                    with self._scope:
                        await self._run()
                except anyio.get_cancelled_exc_class():
                    raise
                except BaseException as error:
                    failure = first_of(error)
                group.cancel_scope.cancel()
        if failure is not None:
            raise failure
        return self._status

    async def _bind(self, bind: Bind, stack: ExitStack, unlink: bool) -> None:
        self._sockets = await bind()
        for sock in (sock for sockets in self._sockets.values() for sock in sockets):
            stack.enter_context(sock)
            if unlink and sock.family == socket.AF_UNIX and (path := sock.getsockname()):
                stack.callback(unlink_if_ours, path, os.stat(path).st_ino)
        self._lifeline, held = os.pipe()
        stack.callback(os.close, self._lifeline)
        stack.callback(os.close, held)

    async def _run(self) -> None:
        async with anyio.create_task_group() as group:
            if self._binary is not None:
                self._engine = NatsServer(self._children, self._binary, self._cluster, self._lifeline)
                await group.start(self._engine.run)
            group.start_soon(self._announce)
            async with anyio.create_task_group() as workers:
                for slot in self._slots:
                    workers.start_soon(self._keep, slot)
            group.cancel_scope.cancel()

    async def _announce(self) -> None:
        for slot in self._slots:
            await slot.served.wait()
        for url in () if self._stopping.is_set() else self._slots[0].urls:
            logger.info("%d workers serve %s", self._count, url, extra=log_fields(address=url))
            print(f"serving {url}", flush=True)

    async def _keep(self, slot: Slot) -> None:
        attempt = 0
        while not self._stopping.is_set():
            began = anyio.current_time()
            try:
                child, reports = self._start(slot)
            except OSError as error:  # out of processes, memory or files
                if not slot.served.is_set():
                    raise
                pause, fields = _AGAIN.maximum, log_fields(worker=slot.number)
                logger.error("worker %d cannot be started, next attempt in %g s: %s", slot.number, pause, error, extra=fields)
                with anyio.move_on_after(pause):
                    await self._stopping.wait()
                continue
            try:
                await slot.live(child, reports)
            except anyio.get_cancelled_exc_class():
                child.end_now()
                raise
            if self._stopping.is_set():
                self._count_end(slot, child)
                return
            if child.status >= 0 and not slot.served.is_set():
                self._fail(slot, child)
                return
            steady = slot.served.is_set() and anyio.current_time() - began >= _STEADY
            attempt = 0 if steady else attempt + 1
            pause = _AGAIN.bound(attempt - 1) if attempt else 0.0
            how = f"{_how(child)}: {slot.why_not}" if slot.why_not else _how(child)
            text = "worker %d, pid %d, has ended (%s): another one in %g s"
            logger.warning(text, slot.number, child.pid, how, pause, extra=log_fields(worker=slot.number, pid=child.pid))
            with anyio.move_on_after(pause):
                await self._stopping.wait()
            self._restarts += not self._stopping.is_set()

    def _start(self, slot: Slot) -> tuple[Child, socket.socket]:
        ours, theirs = socket.socketpair()
        with theirs:
            ours.setblocking(False)
            files = {name: [sock.fileno() for sock in sockets] for name, sockets in self._sockets.items()}
            inherited = Inheritance(slot.number, self._lifeline, theirs.fileno(), files)
            more = {} if self._engine is None else {VARIABLE: self._engine.url}
            environment = {**os.environ, **more, **inherited.environment()}
            try:
                return self._children.start(self._command, pass_fds=inherited.files, env=environment), ours
            except BaseException:
                ours.close()
                raise

    def _fail(self, slot: Slot, child: Child) -> None:
        """Stop the supervisor. A worker that exits before it has served would fail in the same way when restarted."""
        fields = log_fields(worker=slot.number, pid=child.pid)
        if slot.why_not:
            self._say_why_not(slot, fields)
        else:
            text = "" if child.status else ": does the program come to run()?"
            logger.error("worker %d has ended (%s) before it served%s", slot.number, _how(child), text, extra=fields)
        self._status = self._status or child.status or 1
        if not self._stopping.is_set():
            self._stop()

    def _say_why_not(self, slot: Slot, fields: dict[str, Any]) -> None:
        if slot.why_not not in self._why_not:
            self._why_not.add(slot.why_not)
            logger.error("worker %d cannot serve: %s", slot.number, slot.why_not, extra=fields)

    def _count_end(self, slot: Slot, child: Child) -> None:
        # Before and after `run`, signals have their default action.
        if child.status in (0, -signal.SIGTERM, -signal.SIGINT):
            return
        fields = log_fields(worker=slot.number, pid=child.pid)
        if slot.why_not and not slot.served.is_set():
            self._say_why_not(slot, fields)
        else:
            logger.warning("worker %d, pid %d, has ended (%s)", slot.number, child.pid, _how(child), extra=fields)
        own = child.status if child.status > 0 else 128 - child.status
        self._status = self._status or (own if self._forced is None else 128 + self._forced)

    async def _heed(self, signals: AsyncIterator[signal.Signals]) -> None:
        async for number in signals:
            if number == signal.SIGCHLD:
                self._children.reap()
            elif not self._stopping.is_set():
                logger.info("%s: the workers drain", number.name)
                self._stop()
                if not any(slot.child for slot in self._slots):
                    self._scope.cancel()  # the engine is starting
            elif self._forced is None and number.name != "SIGHUP":  # a terminal sends it twice when it closes
                logger.warning("%s: ending at once", number.name)
                self._group.start_soon(self._force, number)

    def _stop(self) -> None:
        self._stopping.set()
        self._group.start_soon(self._bound_end)
        for child in self._living:
            child.send_signal(signal.SIGTERM)

    async def _bound_end(self) -> None:
        await anyio.sleep(self._patience + _GRACE)
        if self._forced is None:
            logger.error("workers have not ended after %g s: ending at once", self._patience + _GRACE)
            await self._force(signal.SIGKILL)

    async def _force(self, number: signal.Signals) -> None:
        self._forced = number
        for child in self._living:
            child.send_signal(signal.SIGINT)
        await anyio.sleep(_AT_ONCE + _GRACE)
        for child in self._living:
            child.send_signal(signal.SIGKILL)

    @property
    def _living(self) -> list[Child]:
        return [slot.child for slot in self._slots if slot.child is not None]

    async def _states(self) -> dict[str, str]:
        states = {slot.name: "" for slot in self._slots}

        async def ask(slot: Slot) -> None:
            states[slot.name] = await slot.state()

        async with anyio.create_task_group() as group:
            for slot in self._slots:
                group.start_soon(ask, slot)
        return states

    async def _livez(self) -> tuple[int, str]:
        states = await self._states()
        return self._page("silent" not in states.values(), states)

    async def _readyz(self) -> tuple[int, str]:
        states = await self._states()
        return self._page(not self._stopping.is_set() and set(states.values()) == {"ready"}, states)

    async def _metrics(self) -> tuple[int, str]:
        states = await self._states()
        serving = [slot for slot in self._slots if states.get(slot.name) in ("ready", "not ready")]
        text = None
        for slot in serving[:_ASKED]:
            if (text := await slot.metrics()) is not None:
                break
        return 200, metrics_maker("workers", "run(metrics=True)")(text or "", states, self._restarts)

    def _page(self, well: bool, states: Mapping[str, str]) -> tuple[int, str]:
        described = {slot.name: slot.described(states.get(slot.name, "ended")) for slot in self._slots}
        lines = [described.get(name, f"{name}: {state}") for name, state in states.items()]
        if self._engine is not None:
            lines.append(f"engine, {self._engine.state}")
        return (200 if well else 503), "\n".join(["OK" if well else "not all workers take requests", *lines, ""])


def _how(child: Child) -> str:
    status = child.status
    return f"status {status}" if status >= 0 else signal.Signals(-status).name
