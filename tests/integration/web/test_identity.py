"""Who a peer is: by cookie, header or token; until when; and all tabs of one user."""

from __future__ import annotations

import datetime
from contextlib import AsyncExitStack
from contextvars import ContextVar
from typing import Any

import anyio
import anyio.lowlevel
import pytest
import websockets
from fastapi import FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send

from polybus import Bus, Context, Identity, Limits, Unauthorized, connect
from polybus.fastapi import attach
from polybus.plugins import Handshake
from tests.integration.web.support import running
from tests.support import bounded, eventually

pytestmark = pytest.mark.anyio

USERS = {"t-ann": "ann", "t-ben": "ben"}


def authenticate(handshake: Handshake) -> Identity | None:
    """A session cookie, or a token in the header that a sub-protocol is shown as too."""
    token = handshake.cookies.get("session") or handshake.headers.get("authorization", "").removeprefix("Bearer ")
    user = USERS.get(token)
    return None if user is None else Identity({"name": user}, key=user)


def with_users(**options: Any) -> tuple[FastAPI, Bus]:
    app, bus = FastAPI(), Bus(**{"authenticate": authenticate, **options})

    @bus.handle("whoami")
    async def whoami(ctx: Context) -> str:
        name: str = ctx.identity["name"]
        return name

    attach(app, bus)
    return app, bus


@pytest.mark.parametrize(
    ("headers", "name"),
    [
        ({"Cookie": "theme=dark; session=t-ann"}, "ann"),
        ({"Authorization": "Bearer t-ben"}, "ben"),
    ],
)
@bounded
async def test_a_user_is_known_by_cookie_or_header(headers: dict[str, str], name: str) -> None:
    app, _ = with_users()
    async with running(app) as server:
        async with connect(f"ubre+ws://127.0.0.1:{server.port}/bus", headers=headers) as client:
            assert await client.request("whoami") == name


@pytest.mark.parametrize("headers", [{}, {"Cookie": "session=t-eve"}, {"Authorization": "Bearer nonsense"}])
@bounded
async def test_whoever_is_not_known_is_unauthorized(headers: dict[str, str]) -> None:
    app, bus = with_users()
    async with running(app) as server:
        with pytest.raises(Unauthorized):
            async with connect(f"ubre+ws://127.0.0.1:{server.port}/bus", headers=headers):
                pass
        assert bus.peers == []


@pytest.mark.parametrize("offers", [["ubre", "polybus.token.t-ann"], ["polybus.token.t-ann", "ubre"], ["polybus.token.t-ann"]])
@bounded
async def test_a_browser_brings_its_token_as_sub_protocol(offers: list[Any]) -> None:
    app, _ = with_users()
    async with running(app) as server:
        async with websockets.connect(f"ws://127.0.0.1:{server.port}/bus", subprotocols=offers, proxy=None) as socket:
            assert socket.subprotocol == ("ubre" if "ubre" in offers else "polybus.token.t-ann")
            await socket.send('{"request": "whoami", "id": 1}')
            assert await socket.recv() == '{"success":1,"body":"ann"}'


@bounded
async def test_a_publication_to_the_tabs_of_one_user_reaches_these_alone() -> None:
    app, bus = with_users()
    async with running(app) as server, AsyncExitStack() as stack:
        news = []
        for token in ("t-ann", "t-ann", "t-ann", "t-ben"):
            url = f"ubre+ws://127.0.0.1:{server.port}/bus"
            client = await stack.enter_async_context(connect(url, headers={"Cookie": f"session={token}"}))
            news.append(await stack.enter_async_context(client.subscribe("news")))
        await eventually(lambda: len(bus.peers_of("ann")) == 3)
        await bus.publish("news", "for ann", to=bus.peers_of("ann"))
        await bus.publish("news", "for all")
        assert [(await anext(one)).body for one in news] == ["for ann", "for ann", "for ann", "for all"]
        assert bus.peers_of("eve") == []


@bounded
async def test_a_tab_that_is_on_its_way_out_is_no_longer_one_of_her_tabs() -> None:
    app, bus = with_users(limits=Limits(close_timeout=0.2))
    async with running(app) as server:
        headers = {"Cookie": "session=t-ann"}
        url = f"ws://127.0.0.1:{server.port}/bus"
        async with websockets.connect(url, additional_headers=headers, proxy=None) as silent:
            await eventually(lambda: bus.peers_of("ann"))
            silent.transport.pause_reading()  # it does not answer to the goodbye
            async with anyio.create_task_group() as group:
                group.start_soon(bus.peers_of("ann")[0].aclose)
                while bus.stats().links:
                    await bus.publish("news", "for ann", to=bus.peers_of("ann"))
                    await anyio.lowlevel.checkpoint()
            silent.transport.abort()


class Middleware:
    """As Starlette's own for sessions and users: it knows who somebody is before we do."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        visitor.set("whoever came first")
        await self._app({**scope, "session": {"user": "ann"}}, receive, send)


visitor: ContextVar[str] = ContextVar("visitor", default="nobody")


@bounded
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


@bounded
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


@bounded
async def test_an_identity_that_expires_ends_its_link_with_4401() -> None:
    def soon(handshake: Handshake) -> Identity:
        until = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=0.1)
        return Identity({"name": "ann"}, key="ann", expires_at=until)

    app, bus = with_users(authenticate=soon)
    async with running(app) as server:
        async with websockets.connect(f"ws://127.0.0.1:{server.port}/bus", proxy=None) as socket:
            with pytest.raises(websockets.ConnectionClosed) as caught:
                await socket.recv()
            assert caught.value.rcvd is not None
            assert (caught.value.rcvd.code, "authenticate again" in caught.value.rcvd.reason) == (4401, True)
        await eventually(lambda: not bus.peers)
