"""Services of nats-py's `nats.micro` (ADR-32), and their errors by numbers."""

from typing import Any

import pytest

from polybus import (
    Code,
    Conflict,
    DeadlineExceeded,
    NotFound,
    RemoteError,
    RequestError,
    TooManyRequests,
    Unauthorized,
    Unavailable,
    connect,
)

from .nats_py_peer import NatsPy, ServiceError
from .nats_servers import NatsServer

NUMBERS: list[tuple[int, type[Exception], Code]] = [
    (401, Unauthorized, Code.UNAUTHENTICATED),
    (404, NotFound, Code.NOT_FOUND),
    (408, DeadlineExceeded, Code.DEADLINE_EXCEEDED),
    (412, Conflict, Code.FAILED_PRECONDITION),
    (418, RemoteError, Code.UNKNOWN),
    (429, TooManyRequests, Code.RESOURCE_EXHAUSTED),
    (503, Unavailable, Code.UNAVAILABLE),
]


async def test_a_number_of_a_service_is_an_error_of_ours(server: NatsServer, theirs: NatsPy) -> None:
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
