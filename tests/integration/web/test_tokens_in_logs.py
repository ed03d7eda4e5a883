"""No log has a bearer token in it: neither ours nor those of the libraries below, at any level."""

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest
from fastapi import FastAPI

from polybus import Bus, Unauthorized, connect
from polybus.bindings.http.uvicorn import PatientWebSockets
from polybus.fastapi import attach
from polybus.plugins import Handshake
from tests.integration.web.support import echoing, running

GOOD, BAD = "g00d-t0k3n", "b4d-t0k3n"


def known(handshake: Handshake) -> str | None:
    return "ann" if handshake.headers.get("authorization") == f"Bearer {GOOD}" else None


def make_bus() -> Bus:
    return echoing(authenticate=known)


@asynccontextmanager
async def own(url: str) -> AsyncIterator[str]:
    async with make_bus().serve(url) as server:
        yield server.url


@asynccontextmanager
async def attached(_: str) -> AsyncIterator[str]:
    app = FastAPI()
    attach(app, make_bus())
    async with running(app, log_level="debug", log_config=None, ws=PatientWebSockets) as server:
        yield f"ubre+ws://127.0.0.1:{server.port}/bus"


@pytest.mark.parametrize(
    ("serve", "url"),
    [
        (own, "ubre+ws://127.0.0.1:0/bus"),
        (own, "jrep+http://127.0.0.1:0/bus"),
        (own, "uprotocol+http://127.0.0.1:0/bus?entity=//VCU.VIN/body.access/1"),
        (attached, ""),
    ],
    ids=["ws", "jrep+http", "uprotocol+http", "attached"],
)
async def test_no_bearer_token_is_logged_at_any_level(
    serve: Callable[[str], AbstractAsyncContextManager[str]], url: str, caplog: pytest.LogCaptureFixture
) -> None:
    quiet = [logging.getLogger(name) for name in ("uvicorn", "uvicorn.error", "uvicorn.access", "uvicorn.asgi")]
    before = [logger.level for logger in quiet]
    try:
        with caplog.at_level(1):
            for logger in quiet:
                logger.setLevel(1)
            async with serve(url) as real:
                for token in (BAD, GOOD):
                    query = f"{'&' if '?' in real else '?'}token={token}" if "http" in real else ""
                    try:
                        async with connect(real + query, headers={"authorization": f"Bearer {token}"}) as bus:
                            if real.startswith("ubre"):
                                assert await bus.request("echo", 1) == 1
                    except Unauthorized:
                        assert token == BAD
    finally:
        for logger, level in zip(quiet, before, strict=True):
            logger.setLevel(level)
    assert GOOD not in caplog.text and BAD not in caplog.text
