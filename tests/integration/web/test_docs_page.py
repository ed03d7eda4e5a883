"""`attach(docs=)`: the page of a bus and its document, served beside it."""

import threading
from typing import Any

import anyio
import anyio.from_thread
import httpx
import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.routing import Mount, Route
from starlette.testclient import TestClient

from polybus import Bus, Subject, asyncapi
from polybus.asyncapi import document, page
from polybus.asyncapi.page import policy
from polybus.fastapi import attach
from polybus.protocols import Ubre
from tests.support import BOUND


def shop(**options: Any) -> Bus:
    bus = Bus(**options)

    @bus.handle("user.get")
    async def get_user(id: int) -> str:
        """Find a user."""
        return "Ann"

    return bus


def test_the_page_and_the_document_are_served() -> None:
    app, bus = FastAPI(title="Shop", version="2.1.0"), shop()
    attach(app, bus, docs="/bus/docs")
    client = TestClient(app)
    shown, given = client.get("/bus/docs"), client.get("/bus/docs.json")
    assert given.json() == document(bus, title="Shop", version="2.1.0", protocol="ubre")
    assert given.headers["content-type"] == "application/json"
    assert shown.text == page(given.json())
    assert shown.headers["content-type"] == "text/html; charset=utf-8"
    assert shown.headers["content-security-policy"] == f"{policy(shown.text)}; frame-ancestors 'none'"
    assert shown.headers["x-content-type-options"] == "nosniff"
    assert "/bus/docs" not in client.get("/openapi.json").text


def test_requests_can_be_sent_only_where_the_application_says_so() -> None:
    app = FastAPI()
    attach(app, shop(), path="/bus", docs="/bus/docs")
    attach(app, shop(), path="/live", docs="/live/docs", try_it=True)
    client = TestClient(app)
    assert "<form" not in client.get("/bus/docs").text
    assert "connect-src" not in client.get("/bus/docs").headers["content-security-policy"]
    text = client.get("/live/docs").text
    assert 'data-live="../live"' in text
    assert '<form class="try" data-style="request" data-subject="user.get">' in text


@pytest.mark.parametrize(
    ("path", "docs", "live"),
    [
        ("/bus", "/docs/bus", "../bus"),
        ("/bus", "/page", "./bus"),
        ("/a/b/bus", "/a/docs", "b/bus"),
        ("/bus", "/a/b/c", "../../bus"),
    ],
)
def test_the_page_finds_its_bus_whatever_stands_before_both(path: str, docs: str, live: str) -> None:
    app = Starlette()
    attach(app, shop(), path=path, docs=docs, try_it=True)
    client = TestClient(Starlette(routes=[Mount("/mounted", app)]))
    assert f'data-live="{live}"' in client.get(f"/mounted{docs}").text


def test_handlers_that_come_later_are_in_it() -> None:
    app, bus = FastAPI(), shop()
    attach(app, bus, docs="/bus/docs")
    client = TestClient(app)
    assert list(client.get("/bus/docs.json").json()["operations"]) == ["user.get"]
    bus.handle("user.put")(lambda body: None)
    bus.on("news.*")(lambda body: None)
    bus.publishes(Subject("order.placed", int), description="For each paid order.")
    assert list(client.get("/bus/docs.json").json()["operations"]) == ["news.1", "order.placed", "user.get", "user.put"]
    assert "user.put" in client.get("/bus/docs").text


async def test_the_event_loop_goes_on_while_a_document_is_made_once_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    app, begun, go_on = Starlette(), anyio.Event(), threading.Event()
    calls: list[None] = []
    here = threading.get_ident()

    def slow(bus: Bus, **info: Any) -> dict[str, Any]:
        assert threading.get_ident() != here, "the event loop stands still"
        calls.append(None)
        anyio.from_thread.run_sync(begun.set)
        assert go_on.wait(BOUND)
        return document(bus, **info)

    monkeypatch.setattr(asyncapi, "document", slow)
    attach(app, shop(), docs="/bus/docs")
    found: list[int] = []

    async def get(path: str) -> None:
        found.append((await client.get(path)).status_code)

    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client, anyio.create_task_group() as group:
        for path in ("/bus/docs", "/bus/docs.json", "/bus/docs"):
            group.start_soon(get, path)
        await begun.wait()
        go_on.set()
    assert (found, len(calls)) == ([200] * 3, 1)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"docs": 7}, "docs=7"),
        ({"docs": "/d", "try_it": 1}, "try_it=1"),
        ({"docs": "docs"}, "docs='docs' must be a path such as '/bus/docs'"),
        ({"docs": "/docs/{name}"}, " must be a path such as"),
        ({"docs": "/docs?x=1"}, " must be a path such as"),
        ({"docs": "/page"}, "docs='/page': /page is already in use, so choose another path for the page"),
        ({"docs": "/bus"}, "/bus is already in use"),
        ({"try_it": True}, "try_it=True is for the page at docs=, for example docs='/bus/docs'"),
        ({"docs": "/d", "try_it": True, "protocol": "csb"}, "try_it=True: the page needs UBRE in JSON, but /bus serves Csb"),
        ({"docs": "/d", "try_it": True, "protocol": Ubre(format="binary")}, "the page needs UBRE in JSON"),
        ({"docs": "/d", "try_it": True, "path": "/rooms/{room}"}, r"fill in the parameters of '/rooms/\{room\}'"),
    ],
)
def test_what_cannot_be_is_an_error_and_nothing_is_attached(options: dict[str, Any], says: str) -> None:
    app = Starlette(routes=[Route("/page", lambda request: None)])
    before = list(app.router.routes)
    with pytest.raises((TypeError, ValueError), match=says):
        attach(app, shop(), **options)
    assert app.router.routes == before
