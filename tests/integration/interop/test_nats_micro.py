"""Services of nats-py's `nats.micro` (ADR-32), and errors both ways: every number of theirs, every class of ours."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from polybus import (
    BadRequest,
    Bus,
    Code,
    Conflict,
    DeadlineExceeded,
    Forbidden,
    NoHandler,
    NotFound,
    RemoteError,
    RequestError,
    TooLarge,
    TooManyRequests,
    Unauthorized,
    Unavailable,
    connect,
)
from tests.support import bounded

from .nats_py_peer import NatsPy, ServiceError, nats_py
from .nats_servers import VERSIONS, NatsServer, nats_server

pytestmark = pytest.mark.anyio

NUMBERS: list[tuple[int, type[Exception], Code]] = [
    (400, BadRequest, Code.INVALID_ARGUMENT),
    (401, Unauthorized, Code.UNAUTHENTICATED),
    (403, Forbidden, Code.PERMISSION_DENIED),
    (404, NotFound, Code.NOT_FOUND),
    (405, RequestError, Code.UNIMPLEMENTED),
    (408, DeadlineExceeded, Code.DEADLINE_EXCEEDED),
    (409, Conflict, Code.ABORTED),
    (410, NotFound, Code.NOT_FOUND),
    (412, Conflict, Code.FAILED_PRECONDITION),
    (413, TooLarge, Code.RESOURCE_EXHAUSTED),
    (415, BadRequest, Code.INVALID_ARGUMENT),
    (418, RemoteError, Code.UNKNOWN),
    (422, BadRequest, Code.INVALID_ARGUMENT),
    (429, TooManyRequests, Code.RESOURCE_EXHAUSTED),
    (499, RequestError, Code.CANCELLED),
    (500, RemoteError, Code.INTERNAL),
    (501, RequestError, Code.UNIMPLEMENTED),
    (503, Unavailable, Code.UNAVAILABLE),
    (504, DeadlineExceeded, Code.DEADLINE_EXCEEDED),
]
OURS = [
    NotFound,
    Conflict,
    BadRequest,
    Unauthorized,
    Forbidden,
    TooLarge,
    TooManyRequests,
    Unavailable,
    RemoteError,
]


@pytest.fixture(params=VERSIONS)
def server(request: pytest.FixtureRequest) -> Iterator[NatsServer]:
    with nats_server(request.param) as one:
        yield one


@pytest.fixture
async def theirs(server: NatsServer, anyio_backend: Any) -> AsyncIterator[NatsPy]:
    async with nats_py(server.address) as client:
        yield client


@bounded
async def test_every_number_of_a_service_is_an_error_of_ours(server: NatsServer, theirs: NatsPy) -> None:
    async def fail(request: Any) -> None:
        raise ServiceError(request.data.decode(), "not today")

    async def broken(request: Any) -> None:
        raise KeyError("swordfish")

    async def echo(request: Any) -> None:
        await request.respond(request.data, headers=request.headers)

    await theirs.serve("shop", fail=fail, broken=broken, echo=echo)
    async with connect(server.url) as bus:
        assert await bus.request("shop.echo", {"a": [1, None]}) == {"a": [1, None]}
        for number, kind, code in NUMBERS:
            with pytest.raises(kind, match="not today") as caught:
                await bus.request("shop.fail", number)
            error: Any = caught.value
            if not isinstance(error, DeadlineExceeded):
                assert (error.code, error.detail) == (code, {"status": number})
        for one in Code:
            if one not in (Code.OK, Code.DEADLINE_EXCEEDED):
                with pytest.raises(RequestError, match="not today") as seen:
                    await bus.request("shop.fail", int(one))
                assert (seen.value.code, seen.value.detail) == (one, None)
        with pytest.raises(RemoteError, match="KeyError"):
            await bus.request("shop.broken")


@bounded
async def test_every_class_of_ours_is_a_service_error_for_them_and_comes_back_as_the_same_class(
    server: NatsServer, theirs: NatsPy
) -> None:
    bus = Bus()

    @bus.handle("shop.fail")
    async def fail(number: int) -> None:
        raise OURS[number](f"text {number}", detail={"number": number})

    @bus.handle("shop.code")
    async def with_code(code: int) -> None:
        raise RequestError(code, "by its number", reason="because")

    async def pass_on(request: Any) -> None:
        answer = await theirs.client.request("shop.fail", request.data, timeout=20)
        await request.respond(answer.data, headers=answer.headers)

    await theirs.serve("relay", fail=pass_on)
    async with connect(server.url, bus=bus), connect(server.url) as asker:
        for number, kind in enumerate(OURS):
            answer = await theirs.request("shop.fail", str(number).encode())
            assert answer.headers is not None
            assert answer.headers["Nats-Service-Error"] == f"text {number}"
            assert answer.headers["Nats-Service-Error-Code"] == str(int(kind.default_code))
            for subject in ("shop.fail", "relay.fail"):
                with pytest.raises(kind, match=f"text {number}") as caught:
                    await asker.request(subject, number)
                assert type(caught.value) is kind
                assert caught.value.detail == {"number": number}
        for code in Code:
            if code is not Code.OK:
                answer = await theirs.request("shop.code", str(int(code)).encode())
                assert answer.headers is not None
                assert answer.headers["Nats-Service-Error-Code"] == str(int(code))
                assert answer.headers["Polybus-Reason"] == "because"


@bounded
async def test_a_service_of_theirs_is_found_by_its_own_subjects_and_gone_when_it_stops(
    server: NatsServer, theirs: NatsPy
) -> None:
    async def echo(request: Any) -> None:
        await request.respond(request.data)

    async with connect(server.url) as bus:
        with pytest.raises(NoHandler):
            await bus.request("$SRV.INFO.shop")
        await theirs.serve("shop", echo=echo)
        info = await bus.request("$SRV.INFO.shop")
        assert info["name"] == "shop"
        assert [endpoint["subject"] for endpoint in info["endpoints"]] == ["shop.echo"]
        await theirs.run(theirs.client.drain())
        with pytest.raises(NoHandler):
            await bus.request("shop.echo")
