"""Workers of `make test`: forks of the process that has collected the tests, which share them by file.

An interpreter that imports all modules and collects their tests takes ten seconds, in a new checkout twenty-five: a fork has
done so when it begins, and shares the memory. Only on Linux; elsewhere the workers are those of pytest-xdist.
"""

from __future__ import annotations

import atexit
import gc
import os
import pickle
import selectors
import signal
import struct
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import attrs
import pytest

__all__ = ["run_in_workers"]

_LENGTH: Final = struct.Struct("<I")
_AT_ONCE: Final = 1 << 16


class _Units:
    """Units of work, each run by one worker: their numbers lie in a pipe, from which whoever is free takes the next one."""

    def __init__(self, units: list[list[pytest.Item]]) -> None:
        self.units = units
        self._reading, writing = os.pipe()
        # The pipe holds 16,000 of them; a read of four bytes is never torn.
        with open(writing, "wb") as out:
            for number in range(len(units)):
                out.write(_LENGTH.pack(number))

    def take(self) -> int | None:
        """The number of the next one; None when nothing is left."""
        found = os.read(self._reading, _LENGTH.size)
        return _LENGTH.unpack(found)[0] if found else None

    def close(self) -> None:
        os.close(self._reading)


# -- in the worker -----------------------------------------------------------------------------------------------------


class _Sender:
    """The plugin that tells the reports of a worker to the process that has forked it, those of a test in one go."""

    def __init__(self, config: pytest.Config, out: int) -> None:
        self._config = config
        self._out = out
        self._said: list[tuple[str, Any]] = []

    def send(self, *said: tuple[str, Any]) -> None:
        data = memoryview(pickle.dumps(said))
        os.write(self._out, _LENGTH.pack(len(data)))
        while data:
            data = data[os.write(self._out, data) :]

    def run(self, item: pytest.Item, nextitem: Any) -> None:
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=nextitem)
        self.send(*self._said, ("ran", None))
        self._said.clear()

    def pytest_runtest_logstart(self, nodeid: str, location: tuple[str, int | None, str]) -> None:
        self._said.append(("pytest_runtest_logstart", {"nodeid": nodeid, "location": location}))

    def pytest_runtest_logfinish(self, nodeid: str, location: tuple[str, int | None, str]) -> None:
        self._said.append(("pytest_runtest_logfinish", {"nodeid": nodeid, "location": location}))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._said.append(("report", data))

    def pytest_warning_recorded(self, warning_message: warnings.WarningMessage, when: str, nodeid: str, location: Any) -> None:
        said = warnings.WarningMessage(
            UserWarning(f"{warning_message.category.__name__}: {warning_message.message}"),
            UserWarning,
            warning_message.filename,
            warning_message.lineno,
        )
        given = {"warning_message": said, "when": when, "nodeid": nodeid, "location": location}
        self._said.append(("warning", given))


def _own_streams(config: pytest.Config) -> None:
    """Let go of what is captured into files that all processes would share; what is written past pytest goes to stderr."""
    capture: Any = config.pluginmanager.getplugin("capturemanager")
    capture.stop_global_capturing()
    reporter = config.pluginmanager.unregister(name="terminalreporter")
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    if config.option.capture != "no":
        os.dup2(nothing, 1)
    os.close(nothing)
    capture.start_global_capturing()
    # pytest-timeout asks for a terminal on which to say what hangs.
    writer = type(getattr(reporter, "_tw"))(sys.__stderr__)  # noqa: B009
    config.pluginmanager.register(SimpleNamespace(_tw=writer), "terminalreporter")


def _own_folder(config: pytest.Config, number: int) -> None:
    factory: Any = getattr(config, "_tmp_path_factory")  # noqa: B009
    folder: Path = factory.getbasetemp() / f"worker-{number}"
    folder.mkdir()
    factory._basetemp = folder


def _is_over(session: pytest.Session) -> bool:
    return bool(session.shouldfail or session.shouldstop)


def _work(session: pytest.Session, sender: _Sender, units: _Units, first: list[pytest.Item]) -> None:
    """Run the tests of a unit, then take another one, and so on."""
    items = first
    while not _is_over(session):
        # Whatever comes next, it has nothing but the session in common with the last test.
        for item, following in zip(items, [*items[1:], session], strict=False):
            sender.run(item, following)
            if _is_over(session):
                break
        if (number := units.take()) is None:
            break
        sender.send(("took", number))
        items = units.units[number]
    getattr(session, "_setupstate").teardown_exact(None)  # noqa: B009


def _be_worker(session: pytest.Session, out: int, number: int, units: _Units, first: list[pytest.Item]) -> None:
    """All that a worker does; it never returns."""
    status = 1
    sender = _Sender(session.config, out)
    try:
        getattr(atexit, "_clear")()  # noqa: B009  # those of the other process
        _own_streams(session.config)
        _own_folder(session.config, number)
        session.config.pluginmanager.register(sender, "sender")
        _work(session, sender, units, first)
        status = 0
    except (KeyboardInterrupt, pytest.exit.Exception) as end:
        sender.send(("stop", str(end) or type(end).__name__))
    except BaseException:
        sender.send(("error", traceback.format_exc()))
    with suppress(BaseException):
        getattr(session, "_setupstate").teardown_exact(None)  # noqa: B009  # where it has not run to its end
        getattr(threading, "_shutdown")()  # noqa: B009
        getattr(atexit, "_run_exitfuncs")()  # noqa: B009
        sender.send(("end", status))
    os._exit(status)


# -- in the process that forks -----------------------------------------------------------------------------------------


@attrs.define(eq=False)
class _Worker:
    """A worker, seen from outside: its pipe, and which tests it has taken and not told of yet."""

    number: int
    process: int
    pipe: int
    left: list[pytest.Item]
    data: bytearray = attrs.Factory(bytearray)
    ended: bool = False

    def said(self, more: bytes) -> Iterator[tuple[str, Any]]:
        self.data += more
        while len(self.data) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(self.data)[0]
            if len(self.data) < end:
                return
            said = pickle.loads(self.data[_LENGTH.size : end])
            del self.data[:end]
            yield from said


class _Pool:
    """The workers of a run."""

    def __init__(self, session: pytest.Session, units: _Units) -> None:
        self._session = session
        self._units = units
        self._hook = session.config.hook
        self._reporter: Any = session.config.pluginmanager.getplugin("terminalreporter")
        self._reporter.showfspath = False  # the tests of several files mingle
        self._workers: list[_Worker] = []
        self._number = 0
        self._waiting = selectors.DefaultSelector()

    def fork(self, first: list[pytest.Item]) -> None:
        reading, writing = os.pipe()
        self._reporter.flush()  # or both would write what is not written yet
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads, which libraries have and nobody uses yet
            process = os.fork()
        if process == 0:
            for other in (reading, *(worker.pipe for worker in self._workers)):
                os.close(other)
            _be_worker(self._session, writing, self._number, self._units, first)
        os.close(writing)
        worker = _Worker(self._number, process, reading, list(first))
        self._number += 1
        self._workers.append(worker)
        self._waiting.register(reading, selectors.EVENT_READ, worker)

    def run(self) -> None:
        """Wait until everything has run, or the session is to end."""
        while self._workers:
            for key, _ in self._waiting.select():
                worker: _Worker = key.data
                more = os.read(worker.pipe, _AT_ONCE)
                for name, given in worker.said(more):
                    self._heard(worker, name, given)
                if worker.ended or not more:
                    self._gone(worker)
                if self._session.shouldfail:
                    raise self._session.Failed(self._session.shouldfail)
                if self._session.shouldstop:
                    raise self._session.Interrupted(self._session.shouldstop)

    def _heard(self, worker: _Worker, name: str, given: Any) -> None:
        if name == "report":
            config = self._session.config
            report = self._hook.pytest_report_from_serializable(config=config, data=given)
            self._hook.pytest_runtest_logreport(report=report)
        elif name == "warning":
            self._hook.pytest_warning_recorded.call_historic(kwargs=given)
        elif name == "ran":
            worker.left.pop(0)
        elif name == "took":
            worker.left += self._units.units[given]
        elif name == "stop":
            self._session.shouldstop = given
        elif name == "error":
            raise RuntimeError(f"a worker failed:\n{given}")
        elif name == "end":
            worker.ended = True
        else:
            getattr(self._hook, name)(**given)

    def _gone(self, worker: _Worker) -> None:
        self._waiting.unregister(worker.pipe)
        os.close(worker.pipe)
        self._workers.remove(worker)
        status = os.waitstatus_to_exitcode(os.waitpid(worker.process, 0)[1])
        if worker.ended:
            return
        if worker.left:
            crashed, *rest = worker.left
            how = f"signal {-status}" if status < 0 else f"status {status}"
            longrepr = f"worker {worker.number} ended with {how} while it ran {crashed.nodeid}"
            report = pytest.TestReport(crashed.nodeid, crashed.location, {}, "failed", longrepr, "call")
            self._hook.pytest_runtest_logreport(report=report)
            self.fork(rest)

    def end(self) -> None:
        """End those who still run: after an interrupt they may do so for some seconds, to clean up."""
        for worker in self._workers:
            with suppress(ProcessLookupError):
                os.kill(worker.process, signal.SIGINT)
        until = time.monotonic() + 10
        while self._workers and time.monotonic() < until:
            for worker in [*self._workers]:
                with suppress(BlockingIOError):
                    os.set_blocking(worker.pipe, False)
                    while os.read(worker.pipe, _AT_ONCE):
                        pass
                if os.waitpid(worker.process, os.WNOHANG)[0]:
                    self._workers.remove(worker)
            time.sleep(0.02)
        for worker in self._workers:
            os.kill(worker.process, signal.SIGKILL)
            os.waitpid(worker.process, 0)


def run_in_workers(session: pytest.Session, units: list[list[pytest.Item]], count: int) -> None:
    """Run these tests in so many forks, in their order; each unit in one of them.

    Raises:
        session.Failed: So many have failed as `--maxfail` says.
        session.Interrupted: A test has asked for the end, or a user.
    """
    getattr(session.config, "_tmp_path_factory").getbasetemp()  # noqa: B009  # the workers' are inside it
    gc.collect()
    gc.freeze()  # or each worker would copy all of it as it collects
    pool = _Pool(session, shared := _Units(units))
    try:
        for _ in range(min(count, len(units))):
            pool.fork([])
        pool.run()
    finally:
        pool.end()
        shared.close()
