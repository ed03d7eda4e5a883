"""`polybus.fastapi.run`: what it says, what it takes, and what it sets up in uvicorn."""

import asyncio
import json
import logging
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from typing import Any

import anyio
import httpx
import pytest
import websockets
from fastapi import FastAPI

from polybus import Bus, ConnectFailed, Disconnected, Handshake, Limits, LocalProtocolError, connect
from polybus.fastapi import BusDep, attach, readiness_endpoint, run
from polybus.fastapi._attachment import Attachment
from polybus.fastapi._server import DrainingServer
from tests.integration.processes.processes import running
from tests.integration.web.support import Slow, served
from tests.support import BOUND, eventually


def test_a_port_that_is_taken_ends_it_with_status_3() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(SystemExit) as ended:
        run(FastAPI(), port=taken.getsockname()[1])
    assert ended.value.code == 3


NO_APP = r"an application, or its import path .* polybus\.run\(bus, url\) serves a bus without"


@pytest.mark.parametrize(
    ("app", "options", "error", "says"),
    [
        (FastAPI(), {"reload": True}, ValueError, "uvicorn --reload"),
        (FastAPI(), {"workers": 2}, TypeError, r"run\('module:app', workers=2\)"),
        ("app:app", {"workers": 0}, ValueError, "workers=0"),
        ("app:app", {"workers": 1.5}, TypeError, "workers=1.5"),
        ("app:app", {"port": "80"}, TypeError, "port='80' must be an integer"),
        ("app:app", {"port": 65536}, SystemExit, "port=65536 must be at most 65535"),
        ("app:app", {"host": 7}, TypeError, "host=7 must be str, not int"),
        ("app:app", {"host": "http://x"}, SystemExit, "host='http://x' must be a host name or IP address without scheme"),
        ("app:app", {"host": "::g"}, SystemExit, "host='::g' must be a host name or IP address"),
        ("app:app", {"host": "a b"}, SystemExit, r"cannot contain U\+0020, which is at position 1"),
        ("app:app", {"host": "\ud800"}, SystemExit, r"cannot contain U\+D800"),
        ("app:app", {"host": "nowhere.invalid"}, SystemExit, "cannot listen on nowhere.invalid port 8000: "),
        *((wrong, {}, TypeError, NO_APP) for wrong in (Bus(), None, 7)),
        (FastAPI(), {"drain": float("inf")}, ValueError, "drain=inf must be a finite number of seconds"),
        (FastAPI(), {"no_such_option": 1}, TypeError, "no_such_option"),
    ],
)
def test_what_cannot_be_served_is_told_at_once(
    app: Any, options: dict[str, Any], error: type[BaseException], says: str
) -> None:
    with pytest.raises(error, match=says):
        run(app, **options)


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_an_open_address_of_a_bus_that_admits_everybody_is_refused_at_the_start(host: str) -> None:
    ended = []

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        ended.append(app)

    app = FastAPI(lifespan=lifespan)
    attach(app, Bus())
    with pytest.raises(LocalProtocolError, match=r"^ubre\+ws://.*:0 can be reached from other machines and the bus"):
        run(app, host=host, port=0)
    assert ended == [app]


@pytest.mark.parametrize(("authenticate", "insecure"), [(None, True), (lambda handshake: "ann", False)])
def test_an_open_address_is_served_if_the_bus_says_who_may(authenticate: Any, insecure: bool) -> None:
    serving: Any = nullcontext  # never entered
    attachment = Attachment(Bus(authenticate=authenticate), serving, insecure)
    attachment.check_host("0.0.0.0", 8000)


def test_without_uvicorn_it_says_what_to_install() -> None:
    script = """
import sys
sys.modules["uvicorn"] = None
from polybus.fastapi import run
try:
    run("app:app")
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert "pip install 'polybus[fastapi]'" in done.stdout


# -- the server behind `polybus.fastapi.run`, in this process -------------------------------------------------------------


@asynccontextmanager
async def serving(app: Any, drain: float = 5.0, **options: Any) -> AsyncIterator[tuple[DrainingServer, asyncio.Task[None]]]:
    """A server that listens, and the task that ends with it; signals are as before afterwards."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    server = DrainingServer(drain, {"app": app, "host": "127.0.0.1", "port": 0, "log_level": "warning", **options})
    task = asyncio.ensure_future(server.serve())
    try:
        await eventually(lambda: server.started)
        yield server, task
    finally:
        server.should_exit = True
        await task
    assert {number: signal.getsignal(number) for number in before} == before


def url_of(server: DrainingServer) -> str:
    return f"ubre+ws://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/bus"


def application() -> tuple[FastAPI, Bus, Slow]:
    app, bus = served(limits=Limits(message=3_000_000, ping_interval=5, ping_timeout=4))
    return app, bus, Slow(bus)


async def test_it_says_where_it_serves_and_takes_the_limits_of_the_buses(capsys: pytest.CaptureFixture[str]) -> None:
    app, *_ = application()
    async with serving(app, ws_ping_timeout=9.0) as (server, _):
        assert (server.config.ws_max_size, server.config.ws_ping_interval) == (3_000_000, 5)
        assert server.config.ws_ping_timeout == 9.0  # uvicorn's own option wins
        assert capsys.readouterr().out.startswith("serving http://127.0.0.1:")
        async with connect(url_of(server), limits=Limits(message=3_000_000)) as client:
            assert await client.request("echo", "x" * 2_500_000) == "x" * 2_500_000
    async with serving(FastAPI()) as (server, _):
        assert server.config.ws_max_size == 1024 * 1024


async def test_a_client_that_is_not_authenticated_yet_is_refused_at_once_when_the_server_stops() -> None:
    asked = anyio.Event()

    async def authenticate(handshake: Handshake) -> bool:
        asked.set()
        await anyio.sleep_forever()
        return True

    app, bus = FastAPI(), Bus(authenticate=authenticate, limits=Limits(handshake_timeout=3600))
    attach(app, bus)
    with anyio.fail_after(BOUND):
        async with anyio.create_task_group() as clients, serving(app, drain=3600) as (server, _):

            async def client() -> None:
                with pytest.raises(ConnectFailed, match="503 Service Unavailable: this server accepts no clients"):
                    async with connect(url_of(server)):
                        pass

            clients.start_soon(client)
            await asked.wait()


async def test_uvicorns_log_shows_no_token_of_a_query(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    logs = [logging.getLogger(name) for name in ("uvicorn.access", "uvicorn.error")]
    for log in logs:
        monkeypatch.setattr(log, "callHandlers", lambda record: lines.append(record.getMessage()))

    app, *_ = application()
    async with serving(app, log_config=None, log_level="info") as (server, _):
        async with connect(url_of(server) + "?token=s3cr3t&room=7"):
            pass
        async with httpx.AsyncClient() as client:
            await client.get(url_of(server).replace("ubre+ws", "http") + "?a=1&access_token=s3cr3t")
    assert any("/bus?token=***&room=7" in line for line in lines)
    assert any("/bus?a=1&access_token=***" in line for line in lines)
    assert not any("s3cr3t" in line for line in lines)
    assert not any(log.filters for log in logs)


async def test_the_second_signal_ends_it_at_once_whatever_runs() -> None:
    app, bus, slow = application()
    async with serving(app, drain=1000.0) as (server, task), connect(url_of(server)) as client:
        reply = client.request("slow", timeout=1000)
        await slow.began.wait()
        server.handle_exit(signal.SIGINT, None)
        await eventually(lambda: not bus.ready)
        server.handle_exit(signal.SIGINT, None)
        await task
        with pytest.raises(Disconnected):
            await reply


def application_that_fails() -> tuple[FastAPI, Bus, anyio.Event]:
    """An application whose bus fails when told to, after it has started."""
    fail = anyio.Event()

    @asynccontextmanager
    async def lifespan(bus: Bus) -> AsyncIterator[None]:
        async def soon() -> None:
            await fail.wait()
            raise LookupError("the database has gone")

        async with anyio.create_task_group() as group:
            group.start_soon(soon)
            yield
            group.cancel_scope.cancel()

    app, bus = FastAPI(), Bus(lifespan=lifespan)
    attach(app, bus)
    app.add_route("/readyz", readiness_endpoint(bus))

    @app.get("/ask")
    async def ask(bus: BusDep) -> str:
        return await bus.request("x", returns=str)

    return app, bus, fail


async def test_a_bus_that_fails_ends_the_server_with_a_failure() -> None:
    app, _, fail = application_that_fails()
    async with serving(app, drain=60.0) as (server, task):
        fail.set()
        await task
        assert server.failed


async def test_a_bus_that_the_application_closes_ends_no_server() -> None:
    app, bus, _ = application_that_fails()
    async with serving(app) as (server, _):
        await bus.aclose()
        await anyio.wait_all_tasks_blocked()
        assert not server.should_exit
    assert not server.failed


def test_a_server_that_a_bus_has_ended_has_status_3(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DrainingServer, "run", lambda self, sockets: setattr(self, "failed", True))
    with pytest.raises(SystemExit) as ended:
        run(FastAPI())
    assert ended.value.code == 3


async def test_where_the_server_goes_on_whoever_comes_is_told_that_the_bus_has_failed() -> None:
    app, bus, fail = application_that_fails()
    transport = httpx.ASGITransport(app=app)
    with pytest.raises(ExceptionGroup, match="unhandled errors"):
        async with app.router.lifespan_context(app), httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
            assert (await client.get("/readyz")).status_code == 200
            fail.set()
            await bus.wait_closed()
            answer = await client.get("/ask")
            assert (answer.status_code, answer.json()["code"]) == (503, "UNAVAILABLE")
            assert "its lifespan has failed" in answer.json()["detail"]
            answer = await client.get("/readyz")
            assert (answer.status_code, answer.text) == (503, "it does not take requests: its lifespan has failed\n")


# -- new connections at the end ---------------------------------------------------------------------------------------------


REQUEST = b"GET /ready HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n"


async def answered(client: socket.socket) -> bytes:
    reader, writer = await asyncio.open_connection(sock=client)
    line = await reader.readline()
    writer.close()
    return line


async def test_a_connection_that_the_system_has_accepted_before_the_signal_is_answered() -> None:
    app, *_ = application()
    async with serving(app) as (server, _):
        client = socket.create_connection(server.servers[0].sockets[0].getsockname())
        client.sendall(REQUEST)  # the event loop has not seen either
        await server.shutdown()
        assert await answered(client) == b"HTTP/1.1 404 Not Found\r\n"


async def test_a_new_connection_has_a_moment_to_send_its_request_though_the_server_ends() -> None:
    app, *_ = application()
    async with serving(app) as (server, _):
        client = socket.create_connection(server.servers[0].sockets[0].getsockname())
        await eventually(lambda: server.server_state.connections)
        ending = asyncio.ensure_future(server.shutdown())
        await eventually(lambda: not server.servers[0].is_serving())
        client.sendall(REQUEST)
        assert await answered(client) == b"HTTP/1.1 404 Not Found\r\n"
        await ending


# -- SIGTERM --------------------------------------------------------------------------------------------------------------


HEADERS = {"Cookie": "user=ann"}


@pytest.mark.parametrize(("ws", "mounted"), [("auto", False), ("wsproto", True)], ids=["adopted", "asgi, mounted"])
async def test_a_hundred_running_handlers_answer_before_the_server_goes(ws: str, mounted: bool) -> None:
    async with running("tests.integration.web.server", mounted=mounted, run={"ws": ws}) as server, AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connect(server.url, headers=HEADERS, wait=30)) for _ in range(4)]
        replies = [clients[number % 4].request("until.drain", number, timeout=20) for number in range(100)]
        stats = f"http{server.url.removeprefix('ubre+ws').removesuffix('/bus')}/stats"
        http = await stack.enter_async_context(httpx.AsyncClient(timeout=BOUND))

        async def all_run() -> bool:
            return bool((await http.get(stats)).json()["running"] == 100)

        await eventually(all_run)
        server.signal(signal.SIGTERM)
        assert [await reply for reply in replies] == [*range(100)]
        assert await server.ended() == 0
        assert server.log() == ""


async def test_handlers_that_do_not_end_and_peers_that_do_not_read_hold_nobody_up_for_longer_than_the_drain() -> None:
    options = {"run": {"drain": 0.3}, "limits": {"close_timeout": 0.2}}
    async with running("tests.integration.web.server", **options) as server, AsyncExitStack() as stack:
        client = await stack.enter_async_context(connect(server.url, headers=HEADERS, wait=30))
        site = httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", timeout=BOUND)
        http = await stack.enter_async_context(site)
        for _ in range(3):
            url = server.url.removeprefix("ubre+")
            socket = await websockets.connect(url, additional_headers=HEADERS, proxy=None, compression=None)
            stack.callback(socket.transport.abort)
            await socket.send(json.dumps({"subscribe": "wide"}))
            socket.transport.pause_reading()
        assert (await http.post("/wide/300", json="x" * 20_000)).status_code == 200
        reply = client.request("never", timeout=20)
        assert await client.request("whoami") == "ann"
        server.signal(signal.SIGTERM)
        with pytest.raises(Disconnected):
            await reply
        assert await server.ended() == 0
