"""Errors of the bus that an endpoint does not catch, and the bus's handlers asked for the user of an endpoint."""

from collections.abc import AsyncIterator
from typing import Any

import attrs
import httpx
import pytest
from fastapi import FastAPI
from fastapi.responses import JSONResponse

from polybus import (
    Bus,
    BusError,
    Code,
    Context,
    DeadlineExceeded,
    Disconnected,
    LocalProtocolError,
    NoHandler,
    RequestError,
)
from polybus.fastapi import attach

pytestmark = pytest.mark.anyio


@attrs.frozen
class Ticket:
    title: str


def make_bus() -> Bus:
    bus = Bus(authenticate=lambda handshake: None)

    @bus.handle("ticket.create")
    async def create(ticket: Ticket, ctx: Context) -> str:
        if ctx.identity is None:
            raise RequestError(Code.UNAUTHENTICATED, "who are you?")
        if ctx.identity != "ann":
            raise RequestError(Code.PERMISSION_DENIED, "only Ann may", reason="not_ann")
        return f"{ticket.title} by {ctx.identity}, who has no link: {ctx.peer}"

    @bus.handle("fails")
    async def fails(number: int) -> None:
        raise RequestError(Code(number), "as it was asked")

    @bus.handle("lines")
    async def lines(n: int, ctx: Context) -> AsyncIterator[str]:
        for i in range(n):
            yield f"{i} for {ctx.identity}"

    return bus


def make_app(bus: Bus, error: Exception | None = None) -> FastAPI:
    app = FastAPI()
    attach(app, bus)

    @app.post("/tickets/{user}")
    async def create(user: str, ticket: dict[str, Any]) -> Any:
        return await bus.as_(None if user == "nobody" else user).request("ticket.create", ticket)

    @app.get("/fails/{number}")
    async def fails(number: int) -> Any:
        return await bus.request("fails", number)

    @app.get("/missing")
    async def missing() -> Any:
        return await bus.as_("ann").request("nobody.handles.this")

    @app.get("/raises")
    async def raises() -> None:
        assert error is not None
        raise error

    return app


async def get(app: FastAPI, path: str, body: Any = None) -> httpx.Response:
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client, app.router.lifespan_context(app):
        return await (client.get(path) if body is None else client.post(path, json=body))


async def test_a_handler_is_asked_for_the_user_of_an_endpoint() -> None:
    answer = await get(make_app(make_bus()), "/tickets/ann", {"title": "broken"})
    assert (answer.status_code, answer.json()) == (200, "broken by ann, who has no link: None")


@pytest.mark.parametrize(
    ("path", "body", "status", "said"),
    [
        ("/tickets/nobody", {"title": "x"}, 401, {"detail": "who are you?", "code": "UNAUTHENTICATED"}),
        ("/tickets/ben", {"title": "x"}, 403, {"detail": "only Ann may", "code": "PERMISSION_DENIED", "reason": "not_ann"}),
        (
            "/tickets/ann",
            {},
            422,
            {
                "detail": "the body does not fit: Field required (at $.title)",
                "code": "INVALID_ARGUMENT",
                "faults": [{"path": "$.title", "text": "Field required", "type": "missing"}],
            },
        ),
        (
            "/missing",
            None,
            501,
            {
                "detail": "this bus has no handler for 'nobody.handles.this', and as_() asks its own alone",
                "code": "UNIMPLEMENTED",
            },
        ),
    ],
)
async def test_an_error_has_its_status_and_says_what_was_wrong(path: str, body: Any, status: int, said: dict[str, Any]) -> None:
    answer = await get(make_app(make_bus()), path, body)
    assert answer.status_code == status
    assert {name: value for name, value in answer.json().items() if value is not None} == said


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (Code.NOT_FOUND, 404),
        (Code.ALREADY_EXISTS, 409),
        (Code.FAILED_PRECONDITION, 400),
        (Code.RESOURCE_EXHAUSTED, 429),
        (Code.UNAVAILABLE, 503),
        (Code.INTERNAL, 500),
        (Code.DATA_LOSS, 500),
    ],
)
async def test_each_code_has_the_status_of_google_rpc(code: Code, status: int) -> None:
    answer = await get(make_app(make_bus()), f"/fails/{int(code)}")
    assert (answer.status_code, answer.json()["code"]) == (status, code.name)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (DeadlineExceeded("x", 1.0, "local"), 504),
        (Disconnected("the link is down", "tcp://there", False), 503),
        (LocalProtocolError("a mistake in the program"), 500),
        (NoHandler("x"), 501),
    ],
)
async def test_what_is_no_answer_stays_a_failure_of_the_application(error: Exception, status: int) -> None:
    answer = await get(make_app(make_bus(), error), "/raises")
    assert answer.status_code == status
    assert ("code" in answer.text) is (status != 500)


async def test_an_application_with_an_answer_of_its_own_keeps_it() -> None:
    app = FastAPI()

    @app.exception_handler(BusError)
    async def own(request: object, error: BusError) -> JSONResponse:
        return JSONResponse({"own": str(error)}, status_code=418)

    attach(app, make_bus())

    @app.get("/raises")
    async def raises() -> None:
        raise Disconnected("gone", "there", True)

    assert (await get(app, "/raises")).status_code == 418


async def test_streams_and_notifications_are_asked_in_a_name_too() -> None:
    bus = make_bus()
    heard: list[Any] = []

    @bus.handle("tell")
    async def tell(n: int, ctx: Context) -> None:
        heard.append((n, ctx.identity))

    async with bus:
        async with bus.as_("ann").stream("lines", 2, returns=str) as lines:
            assert [line async for line in lines] == ["0 for ann", "1 for ann"]
        await bus.as_("ben").notify("tell", 1)
        await bus.as_("ben").request("tell", 2)
        assert heard == [(1, "ben"), (2, "ben")]
        with pytest.raises(NoHandler, match="asks its own alone"):
            await bus.as_("ann").notify("nobody.handles.this")
        await bus.request("tell", 3)
        assert heard[-1] == (3, None)
