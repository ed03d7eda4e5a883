"""Who is let in: Host, Origin, sub-protocol, proxies, open addresses; what those are told who are not."""

import logging
from contextvars import ContextVar
from typing import Any

import anyio
import anyio.lowlevel
import httpx
import pytest
import websockets
from fastapi import FastAPI
from starlette.testclient import TestClient
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocketDisconnect

from polybus import Bus, Context, Identity, Limits, Unauthorized, connect
from polybus.bindings.http.uvicorn import PatientWebSockets
from polybus.fastapi import attach
from polybus.plugins import Handshake
from tests.integration.web.support import read_all, running, served
from tests.refusal import refused
from tests.support import eventually

UPGRADE = {
    "connection": "Upgrade",
    "upgrade": "websocket",
    "sec-websocket-key": "AAAAAAAAAAAAAAAAAAAAAA==",
    "sec-websocket-version": "13",
}


async def knock(port: int, **headers: str) -> httpx.Response:
    """The answer to an upgrade; 101 has no body."""
    fields = {**UPGRADE, **{name.replace("_", "-"): value for name, value in headers.items()}}
    async with httpx.AsyncClient() as client, client.stream("GET", f"http://127.0.0.1:{port}/bus", headers=fields) as answer:
        if answer.status_code != 101:
            await answer.aread()
        return answer


@pytest.mark.parametrize(
    ("headers", "options", "status", "says"),
    [
        ({}, {}, 101, ""),
        ({"host": "evil.example"}, {}, 421, "Host 'evil.example'"),
        ({"host": "app.example"}, {"hosts": "app.example"}, 101, ""),
        ({"origin": "https://evil.example"}, {}, 403, "Origin 'https://evil.example'"),
        ({"origin": "https://app.example"}, {"origins": ["https://app.example"]}, 101, ""),
        ({"sec_websocket_protocol": "graphql, wamp"}, {}, 400, "the client offers 'graphql', 'wamp', the server accepts ubre"),
        ({"sec_websocket_protocol": "graphql, ubre"}, {}, 101, ""),
    ],
)
async def test_an_upgrade_is_answered_as_by_our_own_server(
    headers: dict[str, str], options: dict[str, Any], status: int, says: str
) -> None:
    app = FastAPI()
    attach(app, Bus(), **options)
    async with running(app) as server:
        answer = await knock(server.port, **headers)
        assert answer.status_code == status
        if says:
            assert says in answer.text
            assert answer.headers["content-type"] == "text/plain; charset=utf-8"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"cookie": "a" * 9000}, 431),
        ({f"x-{number}": "1" for number in range(200)}, 431),
        ({"x-large": "a" * 40_000}, 431),
        ({"host": "127.0.0.1", "x-odd": "\x01"}, 400),
    ],
    ids=["cookie", "many", "large", "no header at all"],
)
async def test_an_upgrade_that_is_too_large_is_answered_under_run(headers: dict[str, str], status: int) -> None:
    app, _ = served()
    async with running(app, ws=PatientWebSockets) as server:
        async with await anyio.connect_tcp("127.0.0.1", server.port) as stream:
            fields = {"host": f"127.0.0.1:{server.port}", **UPGRADE, **headers}
            lines = [f"{name}: {value}" for name, value in fields.items()]
            await stream.send("\r\n".join(["GET /bus HTTP/1.1", *lines, "", ""]).encode())
            answer = await read_all(stream)
        assert answer.startswith(b"HTTP/1.1 %d " % status)


async def test_more_connections_than_the_limit_are_answered_503() -> None:
    app, _ = served(limits=Limits(peers=1))
    async with running(app) as server, connect(f"ubre+ws://127.0.0.1:{server.port}/bus"):
        answer = await knock(server.port)
        assert answer.status_code == 503
        assert "Limits.peers" in answer.text


async def test_who_cannot_be_told_apart_in_time_is_answered_503() -> None:
    async def slow(handshake: Handshake) -> None:
        await anyio.sleep_forever()

    app, _ = served(authenticate=slow, limits=Limits(handshake_timeout=0.05, handshakes=1))
    async with running(app) as server:
        for _ in range(3):  # each gives its place back
            answer = await knock(server.port)
            assert (answer.status_code, answer.text) == (503, "authentication took too long\n")


@pytest.mark.parametrize(
    ("trusted", "headers", "status"),
    [
        # The page was loaded over https; only the proxy knows that, and says so.
        ("127.0.0.1", {"x_forwarded_proto": "https"}, 101),
        ("127.0.0.1", {}, 403),
        # Who is not trusted may say what it likes.
        ("192.0.2.1", {"x_forwarded_proto": "https"}, 403),
        # A forwarded host is never believed.
        ("127.0.0.1", {"x_forwarded_proto": "https", "host": "evil.example", "x_forwarded_host": "app.example"}, 421),
    ],
)
async def test_behind_a_proxy_the_scheme_is_what_a_trusted_proxy_says_and_the_host_what_it_is(
    trusted: str, headers: dict[str, str], status: int
) -> None:
    app = FastAPI()
    attach(app, Bus(), hosts=["app.example"])
    async with running(app, proxy_headers=True, forwarded_allow_ips=trusted) as server:
        answer = await knock(server.port, **{"host": "app.example", "origin": "https://app.example", **headers})
        assert answer.status_code == status


FROM_OUTSIDE = {"x-forwarded-for": "203.0.113.7"}
UPGRADES = ("GET", "", UPGRADE)
POLL = ("POST", "/in.1.erraiBus?clientId=1", {"content-type": "application/json"})
EVENT = ("POST", "", {"content-type": "application/cloudevents+json"})


@pytest.mark.parametrize("way", ["serve", "uvicorn", "uvicorn with proxy_headers=False"])
@pytest.mark.parametrize(
    ("protocol", "transport", "request_"),
    [
        ("ubre", "ws", UPGRADES),
        ("jrep", "http", UPGRADES),
        ("jrep", "http", POLL),
        ("uprotocol", "http", UPGRADES),
        ("uprotocol", "http", EVENT),
    ],
)
async def test_a_bus_without_authenticate_refuses_who_comes_through_a_proxy(
    way: str, protocol: str, transport: str, request_: tuple[str, str, dict[str, str]], caplog: pytest.LogCaptureFixture
) -> None:
    method, path, headers = request_

    async def ask(port: int, **more: str) -> httpx.Response:
        async with httpx.AsyncClient() as client:
            url = f"http://127.0.0.1:{port}/bus{path}"
            async with client.stream(method, url, headers={**headers, **more}, content=b"[]" * (method == "POST")) as answer:
                if answer.status_code != 101:
                    await answer.aread()
                return answer

    for insecure in (False, True):
        bus, app = Bus(), FastAPI()
        if way == "serve":
            async with bus.serve(f"{protocol}+{transport}://127.0.0.1:0/bus", insecure=insecure) as listener:
                port = int(listener.url.split(":")[2].split("/")[0])
                local, foreign = await ask(port), await ask(port, **FROM_OUTSIDE)
        else:
            attach(app, bus, protocol=protocol, insecure=insecure)
            async with running(app, proxy_headers=way == "uvicorn") as server:
                local, foreign = await ask(server.port), await ask(server.port, **FROM_OUTSIDE)
        if insecure:
            assert foreign.status_code == local.status_code != 403
        else:
            assert (foreign.status_code, local.status_code == 403) == (403, False)
            assert "203.0.113.7" in foreign.text and "authenticate=" in foreign.text and "insecure=True" in foreign.text
    told = [record.getMessage() for record in caplog.records if record.name == "polybus.security"]
    assert [("203.0.113.7" in line, "insecure=True" in line) for line in told] == [(True, True)]


async def test_a_handshake_shows_what_the_server_and_a_trusted_proxy_say() -> None:
    seen: list[Handshake] = []

    def authenticate(handshake: Handshake) -> str:
        seen.append(handshake)
        return "somebody"

    app = FastAPI()
    attach(app, Bus(authenticate=authenticate), "/v1/bus", hosts=["app.example"])
    async with running(app, proxy_headers=True, forwarded_allow_ips="127.0.0.1") as server:
        fields = {"x-forwarded-for": "203.0.113.9", "x-forwarded-proto": "https", "cookie": "a=1; b=2", "host": "app.example"}
        async with httpx.AsyncClient() as client:
            url = f"http://127.0.0.1:{server.port}/v1/bus?token=x&token=y"
            async with client.stream("GET", url, headers={**UPGRADE, **fields}) as answer:
                assert answer.status_code == 101
    handshake = seen[0]
    assert handshake.address.startswith("203.0.113.9:")
    assert handshake.transport == "wss"
    assert handshake.url == f"wss://127.0.0.1:{server.port}/v1/bus"
    assert (handshake.path, handshake.query, handshake.cookies) == ("/v1/bus", {"token": "y"}, {"a": "1", "b": "2"})
    assert handshake.headers["host"] == "app.example"


@pytest.mark.parametrize(
    ("server", "options", "inside"),
    [
        (("192.0.2.7", 8000), {}, False),
        (("192.0.2.7", 8000), {"insecure": True}, True),
        (("127.0.0.1", 8000), {}, True),
        (("testserver", 80), {}, True),
    ],
)
def test_at_an_open_address_a_bus_without_authenticate_lets_nobody_in(
    server: tuple[str, int], options: dict[str, Any], inside: bool, caplog: pytest.LogCaptureFixture
) -> None:
    app = FastAPI()
    attach(app, Bus(), **options)

    async def at(scope: Any, receive: Any, send: Any) -> None:
        await app({**scope, "server": server}, receive, send)

    with TestClient(at) as client:
        if inside:
            with client.websocket_connect("ws://127.0.0.1:8000/bus"):
                return
        for _ in range(2):
            with pytest.raises(WebSocketDisconnect), client.websocket_connect("/bus"):
                pass
    told = [record.getMessage() for record in caplog.records if record.name == "polybus.security"]
    assert len(told) == 1
    assert "Bus(authenticate=...)" in told[0]


def test_a_server_that_cannot_answer_an_upgrade_in_words_answers_403() -> None:
    app, _ = served()

    async def old(scope: Any, receive: Any, send: Any) -> None:
        await app({**scope, "extensions": {}}, receive, send)

    with TestClient(old) as client, pytest.raises(WebSocketDisconnect) as caught:
        with client.websocket_connect("/bus", headers={"origin": "https://evil.example"}):
            pass
    assert caught.value.code == 1008
    assert "origins=" in caught.value.reason


async def test_whoever_is_turned_away_is_no_error_in_the_log_of_the_server(caplog: pytest.LogCaptureFixture) -> None:
    app, _ = served(authenticate=lambda handshake: None)
    logger = logging.getLogger("uvicorn.error")
    async with running(app, log_level="info", log_config=None) as server:
        logger.addHandler(caplog.handler)
        try:
            for _ in range(3):
                assert (await knock(server.port)).status_code == 401
            await refused(connect(f"ubre+ws://127.0.0.1:{server.port}/bus"), Unauthorized)
            await eventually(lambda: not server.server_state.tasks)
        finally:
            logger.removeHandler(caplog.handler)
    assert "rejected" in caplog.text
    warned = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert warned and {record.name for record in warned} == {"polybus.security"}


# -- who a peer is --------------------------------------------------------------------------------------------------------


async def test_a_tab_that_is_on_its_way_out_is_no_longer_one_of_her_tabs() -> None:
    app, bus = served(authenticate=lambda handshake: Identity("ann", key="ann"), limits=Limits(close_timeout=0.2))
    async with running(app) as server:
        async with websockets.connect(f"ws://127.0.0.1:{server.port}/bus", proxy=None) as silent:
            await eventually(lambda: bus.peers_of("ann"))
            silent.transport.pause_reading()  # it does not answer to the goodbye
            async with anyio.create_task_group() as group:
                group.start_soon(bus.peers_of("ann")[0].aclose)
                while bus.stats().links:
                    await bus.publish("news", "for ann", to=bus.peers_of("ann"))
                    await anyio.lowlevel.checkpoint()
            silent.transport.abort()


class Middleware:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        visitor.set("whoever came first")
        await self._app({**scope, "session": {"user": "ann"}}, receive, send)


visitor: ContextVar[str] = ContextVar("visitor", default="nobody")


async def test_what_middleware_knows_is_in_the_scope_and_what_is_in_the_path_too() -> None:
    def by_session(handshake: Handshake) -> Identity:
        assert handshake.scope is not None
        assert "session" not in repr(handshake)
        return Identity({"name": f"{handshake.scope['session']['user']} in {handshake.scope['path_params']['room']}"})

    app, bus = FastAPI(), Bus(authenticate=by_session)
    app.add_middleware(Middleware)

    @bus.handle("whoami")
    async def whoami(ctx: Context) -> Any:
        return ctx.identity["name"]

    attach(app, bus, "/rooms/{room}/bus")
    async with running(app) as server, connect(f"ubre+ws://127.0.0.1:{server.port}/rooms/blue/bus") as client:
        assert await client.request("whoami") == "ann in blue"


async def test_the_first_visitor_leaves_no_context_behind_in_a_bus_that_it_starts() -> None:
    outer, inner, bus = FastAPI(), FastAPI(), Bus()
    outer.add_middleware(Middleware)

    @bus.handle("visitor")
    async def who() -> str:
        return visitor.get()

    attach(inner, bus)
    outer.mount("/sub", inner)
    async with running(outer) as server, connect(f"ubre+ws://127.0.0.1:{server.port}/sub/bus") as client:
        assert await client.request("visitor") == "nobody"
