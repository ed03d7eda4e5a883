"""What `polybus.run` says: where it serves, once, and why it cannot."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import os
import signal
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar

import anyio
import anyio.to_thread
import pytest

import polybus
from polybus import Bus, Cluster, Forbidden, LocalProtocolError, integrations, running
from polybus._core.bus.bus import parts_of
from polybus._util.process_end import exit_at_once
from polybus.running import announce
from tests.support import eventually, free_port
from tests.unit.cluster.in_a_thread import running_cluster

URL = "ubre+memory://run-messages"


async def test_run_in_a_running_event_loop_names_what_to_use_there() -> None:
    with pytest.raises(LocalProtocolError, match=r"is already running one: use `async with bus\.serve\(url\)"):
        polybus.run(Bus(), URL)


@pytest.mark.parametrize(
    ("missing", "options", "says"),
    [("uvloop", {"uvloop": True}, r"pip install 'polybus\[uvloop\]'"), ("trio", {"backend": "trio"}, "pip install trio")],
)
def test_an_event_loop_that_is_not_installed_is_told_with_what_installs_it(
    missing: str, options: dict[str, Any], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "find_spec", lambda name: None if name == missing else importlib.util.find_spec(name))
    with pytest.raises(ImportError, match=says):
        polybus.run(Bus(), URL, **options)


def test_a_context_for_tls_is_for_the_connections_where_a_bus_connects_by_its_url() -> None:
    with pytest.raises(LocalProtocolError, match="tls= given for tcp://"):
        polybus.run(Bus(), "nats+tcp://127.0.0.1:9", tls=ssl.create_default_context())


@pytest.mark.parametrize("level", [logging.INFO, logging.WARNING])
def test_where_it_serves_is_said_once(level: int, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(level, "polybus"):
        announce(URL)
    logged = [record.getMessage() for record in caplog.records]
    printed = capsys.readouterr().out
    assert (logged, printed) == (([f"serving {URL}"], "") if level == logging.INFO else ([], f"serving {URL}\n"))


class EndsAt(logging.Handler):
    """Ends the program with the line that has these words, as Ctrl-C would, and keeps what was logged."""

    def __init__(self, words: str) -> None:
        super().__init__()
        self.lines: list[str] = []
        self._words = words

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.levelname} {record.getMessage()}")
        if self._words in self.lines[-1]:
            os.kill(os.getpid(), signal.SIGINT)


@contextmanager
def ended_at(words: str, caplog: pytest.LogCaptureFixture) -> Iterator[EndsAt]:
    handler = EndsAt(words)
    logger = logging.getLogger("polybus")
    logger.addHandler(handler)
    try:
        with caplog.at_level(logging.INFO, "polybus"):
            yield handler
    finally:
        logger.removeHandler(handler)


def test_a_program_says_when_it_is_ready_if_it_has_neither_an_address_nor_a_broker_s(caplog: pytest.LogCaptureFixture) -> None:
    with running_cluster() as running:
        with ended_at("ready", caplog) as ends:
            polybus.run(Bus(cluster=running.url))
        with ended_at("serving", caplog) as at_a_broker:
            polybus.run(Bus(), running.url.removesuffix("/shop"))
    assert [line for line in (*ends.lines, *at_a_broker.lines) if "ready" in line] == [
        "INFO ready, at no address of its own: requests come over its cluster, or the links that it has opened"
    ]


def test_a_program_that_nobody_can_reach_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with ended_at("no client", caplog) as ends:
        polybus.run(Bus())
    assert ends.lines[0].startswith("WARNING no client can reach this program: run() has no URL")


def test_a_program_with_a_url_can_be_reached(caplog: pytest.LogCaptureFixture) -> None:
    with ended_at("serving", caplog) as ends:
        polybus.run(Bus(), URL)
    assert ends.lines == [f"INFO serving {URL}", "INFO SIGINT, draining"]


# -- pages, signals and workers ------------------------------------------------------------------------------------------


class Timer:
    made: ClassVar[list[Timer]] = []

    def __init__(self, *asked: Any) -> None:
        self.asked, self.daemon, self.states = asked, False, list[str]()
        self.made.append(self)

    def start(self) -> None:
        self.states.append("started")

    def cancel(self) -> None:
        self.states.append("cancelled")


@pytest.fixture
def drained(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """For how long each bus was drained; no timer of `run` ends the tests."""
    seconds: list[float] = []
    drain = Bus.drain

    async def draining(bus: Bus, timeout: float) -> None:
        seconds.append(timeout)
        await drain(bus, timeout)

    Timer.made.clear()
    monkeypatch.setattr(Bus, "drain", draining)
    monkeypatch.setattr(running, "threading", SimpleNamespace(**{**vars(threading), "Timer": Timer}))
    return seconds


async def page(port: int, path: str) -> tuple[int, str]:
    async with await anyio.connect_tcp("127.0.0.1", port) as stream:
        await stream.send(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        answer = b"".join([data async for data in stream])
    return int(answer.split()[1]), answer.partition(b"\r\n\r\n")[2].decode()


def bus_with(task: Callable[[], Coroutine[Any, Any, None]]) -> Bus:
    @asynccontextmanager
    async def lifespan(bus: Bus) -> AsyncIterator[None]:
        async with anyio.create_task_group() as group:
            group.start_soon(task)
            yield

    return Bus(lifespan=lifespan)


def test_the_pages_tell_of_the_first_signal_during_the_delay_which_a_second_one_ends(drained: list[float]) -> None:
    port, seen = free_port(), list[Any]()

    async def client() -> None:
        await eventually(serving)
        seen.append([(await page(port, path))[0] for path in ("/livez", "/readyz")])
        seen.append("polybus_links" in (await page(port, "/metrics"))[1])
        os.kill(os.getpid(), signal.SIGTERM)
        await eventually(leaving)
        seen.append([await page(port, path) for path in ("/livez", "/readyz")])
        os.kill(os.getpid(), signal.SIGINT)

    async def serving() -> bool:
        return (await page(port, "/readyz"))[0] == 200

    async def leaving() -> bool:
        return not await serving()

    polybus.run(bus_with(client), URL, health=f"http://127.0.0.1:{port}", metrics=True, delay=600, drain=600)
    assert seen == [[200, 200], True, [(200, "OK\n"), (503, "it does not take requests\n")]]
    (timer,) = Timer.made
    assert (*timer.asked, timer.daemon, timer.states) == (3.0, exit_at_once, (130,), True, ["started", "cancelled"])
    assert drained == []


class Worker:
    def __init__(self, taken: socket.socket | None) -> None:
        self.taken = taken
        self.said: list[Any] = []

    def sockets(self, name: str) -> list[Any]:
        self.said.append(name)
        return [self.taken]

    def follow(self, seconds: float) -> None:
        self.said.append(seconds)

    def tell_served(self, urls: list[str]) -> None:
        self.said.append(urls)
        for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGTERM):  # a closing terminal's, and the service's second
            os.kill(os.getpid(), number)

    async def answer(self, why_not_ready: Callable[[], str], metrics: Callable[[], Awaitable[str]]) -> None:
        self.said.append(why_not_ready())
        self.said.append("polybus_links" in await metrics())


def test_a_worker_serves_at_the_sockets_of_its_supervisor_which_it_tells_so(
    drained: list[float], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        taken.setblocking(False)
        url = f"ubre+tcp://127.0.0.1:{taken.getsockname()[1]}"
        worker = Worker(taken)
        monkeypatch.setattr(running, "worker_here", lambda: worker)
        with caplog.at_level(logging.INFO, "polybus"):
            polybus.run(Bus(), "ubre+tcp://127.0.0.1:0", workers=2, delay=0.001, drain=2)
    patience, *said = worker.said
    assert patience == pytest.approx(0.001 + 2 * 2 + 3.0)
    assert sorted(map(str, said)) == sorted(["0 ubre+tcp://127.0.0.1:0", f"['{url}']", "it does not take requests", "True"])
    assert drained == [2]
    assert not any("serving" in record.getMessage() for record in caplog.records)
    assert Timer.made == []


def test_several_workers_get_the_bound_addresses_and_time_for_delay_drain_and_lifespan(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def supervise(**options: Any) -> int:
        asked.update(options)
        return 7

    monkeypatch.setattr(running, "supervise", supervise)
    with pytest.raises(SystemExit, match="7"):
        polybus.run(Bus(), "ubre+tcp://127.0.0.1:0", "nats+tcp://127.0.0.1:9", workers=2, delay=1, drain=10)
    assert (asked["count"], asked["patience"]) == (2, 1 + 2 * 10 + 3)
    bound: dict[str, list[socket.socket]] = anyio.run(asked["bind"])
    assert list(bound) == ["0 ubre+tcp://127.0.0.1:0"]  # a broker's address is dialled
    for sock in bound["0 ubre+tcp://127.0.0.1:0"]:
        sock.close()


@pytest.mark.parametrize(
    ("options", "kind", "says"),
    [
        ({"drain": float("inf")}, ValueError, "drain=inf"),
        ({"delay": -1}, ValueError, "delay=-1"),
        ({"drain": None}, TypeError, "drain=None"),
        ({"metrics": True}, ValueError, "health='http://127.0.0.1:8081' too"),
        ({"health": "http://127.0.0.1:99999"}, SystemExit, "must have the form http"),
        ({"health": "http://[::g]:1"}, SystemExit, "must have the form http"),
        ({"health": "http://a\nb:1"}, SystemExit, r"cannot contain U\+000A"),
        ({"backend": "twisted"}, ValueError, "backend='twisted' must be one of asyncio, trio"),
    ],
)
def test_an_option_that_cannot_be_is_told_before_it_serves(
    options: dict[str, Any], kind: type[BaseException], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(kind, match=says):
        polybus.run(Bus(), URL, **options)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("where", "why", "told"),
    [("engine", Forbidden("not you"), True), ("engine", OSError("full"), False), ("lifespan", Forbidden("not you"), False)],
    ids=["its cluster", "the system", "the program"],
)
def test_a_supervisor_is_told_what_keeps_a_worker_from_its_cluster_and_anything_else_is_raised(
    where: str, why: Exception, told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Told(Worker):
        def tell_why_not(self, text: str) -> bool:
            self.said.append(text)
            return True

        async def answer(self, why_not_ready: Any, metrics: Any) -> None: ...

    def refuse(*of: Any) -> Any:
        raise why

    worker = Told(None)
    monkeypatch.setattr(running, "worker_here", lambda: worker)
    if where == "engine":
        monkeypatch.setattr(Cluster, "resolved", refuse)
    with pytest.raises(SystemExit if where == "engine" else type(why)):
        polybus.run(Bus(cluster="auto", lifespan=refuse), URL, delay=0, drain=0)
    assert worker.said == [3.0, *([str(why)] if told else [])]


@pytest.mark.parametrize(("waits", "status"), [(True, "the process waits for them"), (False, "they end with the process")])
def test_threads_that_outlive_their_bus_leave_the_process_to_sigterm(
    waits: bool, status: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ended, bus = list[None](), Bus()
    monkeypatch.setattr(type(parts_of(bus).services.executor), "threads_left", [("stuck", waits)])
    monkeypatch.setattr(integrations, "end_by_sigterm", lambda: ended.append(None))
    assert integrations.tell_of_threads_left([bus]) is waits
    assert (len(ended), status in caplog.text) == (1, True)


@pytest.mark.parametrize("how", ["closed", "failed"])
def test_run_ends_with_its_bus(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bus = Bus()

    def leave() -> None:
        raise GeneratorExit

    end = bus.aclose if how == "closed" else partial(anyio.to_thread.run_sync, leave)

    def serving(url: str) -> None:
        parts_of(bus).services.running.spawn(end)

    monkeypatch.setattr(running, "announce", serving)
    with nullcontext() if how == "closed" else pytest.raises(RuntimeError, match="a task of this bus failed"):
        polybus.run(bus, "ubre+tcp://127.0.0.1:0")


@pytest.mark.parametrize(
    ("uvloop", "backend", "module"), [(True, "asyncio", "uvloop"), (False, "asyncio", "asyncio"), (True, "trio", "")]
)
def test_a_program_runs_on_the_loop_it_wants(uvloop: bool, backend: Any, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    modules: list[str] = []

    def serving(url: str) -> None:
        modules.append(type(asyncio.get_running_loop()).__module__.partition(".")[0] if backend == "asyncio" else "")
        os.kill(os.getpid(), signal.SIGINT)

    if uvloop and backend == "asyncio":
        pytest.importorskip("uvloop", reason="uvloop does not exist for this platform")
    monkeypatch.setattr(running, "announce", serving)
    polybus.run(Bus(), URL, backend=backend, uvloop=uvloop)
    assert modules == [module]
