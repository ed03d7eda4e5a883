"""Several workers of one program, the process that watches over them, and the NATS server that it starts for them."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import httpx
import psutil
import pytest

import polybus
import polybus.sync
from polybus import Backoff, Bus, BusError, Disconnected, LocalProtocolError, Reply, Unavailable, connect
from polybus.cluster.engine import find_server
from tests.integration.interop.nats_servers import nats_server
from tests.support import free_port, missing

from .processes import BOUND, Process, eventually, running, stopped

ANY_PORT = "ubre+ws://127.0.0.1:0/bus"
SOON = Backoff(initial=0.02, maximum=0.2)
NEVER = Backoff(attempts=0)
WORKER = re.compile(r"^worker (\d+), pid (\d+): (.+)$", re.M)
DOWN = re.compile(r"the link to the engine of the cluster is down since .* s: .")
ENGINE = re.compile(r"^engine, pid (\d+): (.+)$", re.M)


@pytest.fixture(scope="module", autouse=True)
def server_is_there() -> None:
    try:
        find_server()
    except LocalProtocolError as error:
        missing(str(error))


class Crew:
    """The workers and the engine of a process, as its health pages have them."""

    def __init__(self, process: Process, port: int) -> None:
        self.process = process
        self._port = port
        self.page = ""

    async def ask(self, path: str = "/readyz") -> int:
        async with httpx.AsyncClient(verify=False) as http:  # it would read all certificates first
            answer = await http.get(f"http://127.0.0.1:{self._port}{path}", timeout=BOUND)
        self.page = answer.text
        return answer.status_code

    @property
    def workers(self) -> dict[int, int]:
        return {int(number): int(pid) for number, pid, _ in WORKER.findall(self.page)}

    @property
    def engine(self) -> int:
        found = ENGINE.search(self.page)
        assert found is not None, self.page
        return int(found[1])

    async def ready_without(self, *gone: int) -> None:
        async def ready() -> bool:
            return await self.ask() == 200 and not {*self.workers.values()} & {*gone}

        await eventually(ready, BOUND)

    async def processes(self) -> list[psutil.Process]:
        await self.ready_without()
        return [psutil.Process(pid) for pid in (self.process.pid, self.engine, *self.workers.values())]


@asynccontextmanager
async def crew(*urls: str, workers: int = 2, **run: Any) -> AsyncIterator[Crew]:
    port = free_port()
    options = {"urls": urls or [ANY_PORT], "run": {"workers": workers, "health": f"http://127.0.0.1:{port}", **run}}
    async with running("crew", **options) as process:
        found = Crew(process, port)
        await found.ready_without()
        yield found


async def all_gone(processes: list[psutil.Process]) -> None:
    _, alive = await anyio.to_thread.run_sync(lambda: psutil.wait_procs(processes, timeout=BOUND))
    assert alive == []


async def hung(found: Crew, bus: Bus) -> list[Reply[Any]]:
    """Have the event loop of a worker hang; gives the reply that does not come, in a list, as it is not awaited here."""
    replies = [bus.request("stuck", timeout=600)]

    async def silent() -> bool:
        return await found.ask("/livez") == 503 and "silent" in found.page

    await eventually(silent, BOUND)
    return replies


async def is_true(answer: Any, expected: object) -> bool:
    return bool(await answer == expected)


async def pid_at(url: str) -> int:
    async with connect(url, backoff=SOON, wait=BOUND) as bus:
        return int(await bus.request("pid", timeout=BOUND))


async def test_four_workers_answer_at_the_same_ports() -> None:
    async with crew(ANY_PORT, "ubre+tcp://127.0.0.1:0", workers=4, backend="trio") as found:
        urls = [found.process.url, found.process.read_line().split()[1].decode()]
        assert not any(url.endswith(":0") for url in urls)
        everyone = set(found.workers.values())
        assert len(everyone) == 4
        for url in urls:
            for pid in everyone:
                async with stopped(everyone - {pid}):
                    assert await pid_at(url) == pid
        await eventually(lambda: is_true(found.ask("/livez"), 200))  # those that were stopped answer again
        processes = await found.processes()
        found.process.signal(signal.SIGTERM)
        assert await found.process.ended() == 0
        await all_gone(processes)
        assert "Traceback" not in found.process.log()


async def test_a_worker_that_is_killed_has_a_successor_and_the_others_notice_nothing() -> None:
    page = Bus()
    page.handle("confirm")(lambda: "yes")

    async def reaches_page(bus: Bus) -> None:
        await eventually(lambda: is_true(bus.request("online", "ann", timeout=BOUND), True))
        assert await bus.request("ask.user", "ann", timeout=BOUND) == "yes"

    async with crew() as found, AsyncExitStack() as stack:
        buses = [await stack.enter_async_context(connect(found.process.url, backoff=NEVER)) for _ in range(20)]
        at = {bus: int(await bus.request("pid", timeout=BOUND)) for bus in buses}
        await stack.enter_async_context(connect(found.process.url, bus=page, headers={"x-user": "ann"}, backoff=SOON))
        for bus in buses:  # at either worker
            await reaches_page(bus)
        killed = int(await page.peers[0].request("pid", timeout=BOUND))
        number = next(number for number, pid in found.workers.items() if pid == killed)
        os.kill(killed, signal.SIGKILL)
        await found.ready_without(killed)
        assert found.workers[number] != killed
        assert f"worker {number}, pid {killed}, has ended (SIGKILL)" in found.process.log()
        assert f"worker {number}, pid {found.workers[number]}, serves in its place" in found.process.log()
        assert found.process.log().count("serves in its place") == 1
        for bus, pid in at.items():
            if pid != killed:
                assert await bus.request("pid", timeout=BOUND) == pid
                await reaches_page(bus)
        assert await pid_at(found.process.url) in found.workers.values()


async def test_an_engine_has_a_token_that_nobody_sees_and_when_it_is_killed_comes_back_at_the_same_url() -> None:
    async with crew() as found:
        async with connect(found.process.url) as bus:
            url = str(await bus.request("cluster", timeout=BOUND))
        native, _, name = url.rpartition("/")
        assert name == "shop"
        token, _, address = native.partition("//")[2].partition("@")
        assert len(token) == 32
        for process in await found.processes():
            assert token not in " ".join(process.cmdline())
        assert token not in found.process.log()
        (configuration,) = [word for word in psutil.Process(found.engine).cmdline() if word.endswith(".conf")]
        assert not Path(configuration).parent.exists()
        with pytest.raises(BusError):
            async with connect(f"nats+tcp://{address}"):
                pass
        async with connect(native):
            pass
        killed = found.engine
        before = found.workers
        os.kill(killed, signal.SIGKILL)
        await eventually(lambda: "nats-server has ended" in found.process.log())
        async with connect(native, backoff=SOON, wait=BOUND):
            pass
        await found.ready_without()
        assert found.engine != killed
        assert found.workers == before


@pytest.mark.parametrize(("backend", "to"), [("asyncio", "supervisor"), ("trio", "all")])
async def test_at_sigterm_running_requests_are_answered_while_the_engine_is_there(backend: str, to: str) -> None:
    async with crew(backend=backend) as found, AsyncExitStack() as stack:
        buses = [await stack.enter_async_context(connect(found.process.url)) for _ in range(8)]
        native = str(await buses[0].request("cluster", timeout=BOUND)).rpartition("/")[0]
        replies = [bus.request("until.drain", native, timeout=BOUND) for bus in buses]
        for bus in buses:
            await bus.request("pid", timeout=BOUND)
        processes = await found.processes()
        workers = [*found.workers.values()]
        found.process.signal(signal.SIGTERM)
        for pid in (*workers, found.engine) if to == "all" else ():  # as systemd does that was told nothing else
            os.kill(pid, signal.SIGTERM)
        assert [await reply for reply in replies] == [True] * 8
        assert await found.process.ended() == 0
        await all_gone(processes)


async def test_who_comes_while_a_worker_drains_comes_to_another() -> None:
    async with crew(ANY_PORT, drain=BOUND) as found, connect(found.process.url, backoff=NEVER) as client:
        draining = await client.request("pid", timeout=BOUND)
        held = client.request("never", timeout=600)
        await client.request("pid", timeout=BOUND)  # so that it runs
        os.kill(draining, signal.SIGTERM)

        async def refused() -> bool:
            try:
                await client.request("pid", timeout=BOUND)
            except Unavailable:
                return True
            return False

        await eventually(refused, BOUND)
        for _ in range(20):
            async with connect(found.process.url) as newcomer:
                assert await newcomer.request("pid", timeout=BOUND) != draining
        assert not held.done()
        held.cancel()


async def test_a_worker_whose_event_loop_is_stuck_is_told_and_killed_at_the_second_signal() -> None:
    async with crew(drain=600) as found, connect(found.process.url, backoff=NEVER) as bus:
        await bus.request("pid", timeout=BOUND)
        processes = await found.processes()
        (reply,) = await hung(found, bus)
        found.process.signal(signal.SIGTERM)
        await eventually(lambda: "the workers drain" in found.process.log())
        found.process.signal(signal.SIGINT)
        assert await found.process.ended() == 128 + signal.SIGINT
        with anyio.fail_after(BOUND), pytest.raises(Disconnected):
            await reply
        await all_gone(processes)


async def test_a_worker_that_does_not_end_within_its_time_is_killed() -> None:
    async with crew(drain=0.1) as found, connect(found.process.url, backoff=NEVER) as bus:
        await bus.request("pid", timeout=BOUND)
        processes = await found.processes()
        _ = await hung(found, bus)
        found.process.signal(signal.SIGTERM)
        assert await found.process.ended() == 128 + signal.SIGKILL
        assert "workers have not ended after" in found.process.log()
        await all_gone(processes)


@pytest.mark.parametrize("stuck", [False, True], ids=["idle", "stuck"])
async def test_nothing_outlives_a_process_that_is_killed(stuck: bool) -> None:
    async with crew(drain=0.1) as found, connect(found.process.url, backoff=NEVER) as bus:
        await bus.request("pid", timeout=BOUND)
        processes = await found.processes()
        if stuck:
            _ = await hung(found, bus)
        found.process.kill()
        assert await found.process.ended() == -signal.SIGKILL
        await all_gone(processes)


async def test_the_file_of_a_unix_socket_stays_while_workers_come_and_go(tmp_path: Path) -> None:
    path = tmp_path / "bus.sock"
    async with crew(f"ubre+unix://{path}") as found:
        first = found.workers[1]
        os.kill(first, signal.SIGTERM)
        await found.ready_without(first)
        assert path.is_socket()
        assert await pid_at(found.process.url) in found.workers.values()
        found.process.signal(signal.SIGINT)
        assert await found.process.ended() == 0
        assert not path.exists()


async def test_with_an_engine_that_runs_already_none_is_started_and_its_outage_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with nats_server() as engine:
        monkeypatch.setenv("POLYBUS_CLUSTER", f"{engine.url}/shop")
        async with crew() as found:
            async with connect(found.process.url) as bus:
                assert await bus.request("cluster", timeout=BOUND) == f"{engine.url}/shop"
            assert len(found.workers) == 2
            assert ENGINE.search(found.page) is None
            engine.kill()

            async def outage_told() -> bool:
                status = await found.ask()
                why = re.findall(r"^worker \d, pid \d+: not ready \((.*)\)$", found.page, re.M)
                return status == 503 and len([*filter(DOWN.match, why)]) == 2

            await eventually(outage_told, BOUND)


def test_a_worker_that_fails_before_it_serves_ends_everything_and_its_log_says_which_it_is(tmp_path: Path) -> None:
    program = tmp_path / "app.py"
    program.write_text(
        "import logging, polybus\n"
        "from contextlib import asynccontextmanager\n"
        "logging.basicConfig(level=logging.INFO, format='[%(processName)s] %(message)s')\n"
        "@asynccontextmanager\n"
        "async def lifespan(bus):\n"
        "    logging.info('begins')\n"
        "    raise LookupError('no database')\n"
        "    yield\n"
        "bus = polybus.Bus(lifespan=lifespan, cluster='auto')\n"
        "polybus.run(bus, 'ubre+tcp://127.0.0.1:0', workers=2)\n"
    )
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=BOUND)
    assert done.returncode == 1
    assert "LookupError: no database" in done.stderr and "before it served" in done.stderr
    # Not by lines: what one worker writes can stand within a line of the other's traceback.
    begun = set(re.findall(r"\[([^]]*)\] begins", done.stderr))
    assert begun and begun <= {"worker 1", "worker 2"}


def test_several_workers_of_a_bus_without_a_cluster_are_refused_with_what_to_write(tmp_path: Path) -> None:
    with pytest.raises(LocalProtocolError, match=r"workers=4.*Bus\(cluster='auto'\)"):
        polybus.run(Bus(), ANY_PORT, workers=4)
    (tmp_path / "app.py").write_text("from polybus import Bus\nbus = Bus()\n")
    command = [sys.executable, "-m", "polybus", "serve", "app:bus", ANY_PORT, "--workers", "4"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=BOUND)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "Bus(cluster='auto')" in done.stderr


def test_an_address_that_cannot_be_shared_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYBUS_CLUSTER", "nats+tcp://127.0.0.1:1/shop")
    with pytest.raises(polybus.Unsupported, match="memory://x cannot be shared"):
        polybus.run(Bus(cluster="auto"), "ubre+memory://x", workers=2)


@pytest.mark.parametrize(("workers", "kind"), [(0, ValueError), (-1, ValueError), (1.5, TypeError), (True, TypeError)])
def test_a_number_of_workers_that_cannot_be_is_told(workers: Any, kind: type[Exception]) -> None:
    with pytest.raises(kind, match=f"workers={workers}"):
        polybus.run(Bus(), ANY_PORT, workers=workers)


# -- the programs of the page about workers, as they stand there, until the signal ----------------------------------


PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "workers.md"
PROGRAM = re.compile(r"^```python[^\n]*\n# ([\w.]+)\n(.*?)^```$", re.M | re.S)


def test_the_service_of_the_page_is_one_bus_in_four_workers(tmp_path: Path) -> None:
    for name, text in PROGRAM.findall(PAGE.read_text()):
        (tmp_path / name).write_text(text.replace(":8000", ":0").replace(":8081", f":{free_port()}"))
    environment = {name: value for name, value in os.environ.items() if name != "POLYBUS_CLUSTER"}
    command = [sys.executable, "main.py"]
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().removeprefix("serving ").strip()
            with polybus.sync.connect(url) as one, polybus.sync.connect(url) as two:
                with one.subscribe("news.*") as first, two.subscribe("news.*") as second:
                    one.request("say", "hello")
                    assert [first.receive(BOUND).body, second.receive(BOUND).body] == ["hello", "hello"]
                assert two.request("user.get", {"id": 7}) == {"name": "Ann"}
            process.send_signal(signal.SIGTERM)
            assert process.wait(BOUND) == 0
        finally:
            process.kill()
