"""The server behind `polybus.fastapi.run`, in this process: its limits, its orderly end, and one at once."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx
import pytest
from fastapi import FastAPI

from polybus import Bus, Disconnected, Limits, Unavailable, connect
from polybus.fastapi import attach
from polybus.fastapi._server import DrainingServer
from tests.support import bounded, eventually


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


def in_asyncio(test: Callable[[], Any]) -> None:
    anyio.run(bounded(test), backend="asyncio")


def application() -> tuple[FastAPI, Bus, anyio.Event, anyio.Event]:
    """An application with a bus, whose handler `slow` says when it has begun, and waits to be let go."""
    app, begun, go = FastAPI(), anyio.Event(), anyio.Event()
    bus = Bus(limits=Limits(message=3_000_000, ping_interval=5, ping_timeout=4))
    attach(app, bus)

    @bus.handle("slow")
    async def slow() -> str:
        begun.set()
        await go.wait()
        return "finished"

    return app, bus, begun, go


def test_it_says_where_it_serves_and_takes_the_limits_of_the_buses(capsys: pytest.CaptureFixture[str]) -> None:
    async def scenario() -> None:
        app, *_ = application()
        async with serving(app, ws_ping_timeout=9.0) as (server, _):
            assert (server.config.ws_max_size, server.config.ws_ping_interval) == (3_000_000, 5)
            assert server.config.ws_ping_timeout == 9.0  # uvicorn's own option wins
            assert capsys.readouterr().out.startswith("serving http://127.0.0.1:")

    in_asyncio(scenario)


def test_uvicorns_log_shows_no_token_of_a_query(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    logs = [logging.getLogger(name) for name in ("uvicorn.access", "uvicorn.error")]
    for log in logs:
        monkeypatch.setattr(log, "callHandlers", lambda record: lines.append(record.getMessage()))

    async def scenario() -> None:
        app, *_ = application()
        async with serving(app, log_config=None, log_level="info") as (server, _):
            async with connect(url_of(server) + "?token=s3cr3t&room=7"):
                pass
            async with httpx.AsyncClient() as client:
                await client.get(url_of(server).replace("ubre+ws", "http") + "?a=1&access_token=s3cr3t")

    in_asyncio(scenario)
    assert any("/bus?token=***&room=7" in line for line in lines)
    assert any("/bus?a=1&access_token=***" in line for line in lines)
    assert not any("s3cr3t" in line for line in lines)
    assert not any(log.filters for log in logs)


def test_an_application_without_a_bus_is_served_with_the_usual_limits() -> None:
    async def scenario() -> None:
        async with serving(FastAPI()) as (server, _):
            assert server.config.ws_max_size == 1024 * 1024

    in_asyncio(scenario)


def test_the_first_signal_lets_handlers_finish_and_nobody_in() -> None:
    async def scenario() -> None:
        app, bus, begun, go = application()
        async with serving(app, drain=60.0) as (server, task), connect(url_of(server)) as client:
            reply = client.request("slow")
            await begun.wait()
            server.handle_exit(signal.SIGTERM, None)
            await eventually(lambda: not bus.ready)
            with pytest.raises(Unavailable):
                await client.request("slow")
            assert not task.done()
            go.set()
            assert await reply == "finished"
            await task

    in_asyncio(scenario)


def test_the_second_signal_ends_it_at_once_whatever_runs() -> None:
    async def scenario() -> None:
        app, bus, begun, _ = application()
        async with serving(app, drain=1000.0) as (server, task), connect(url_of(server)) as client:
            reply = client.request("slow", timeout=1000)
            await begun.wait()
            server.handle_exit(signal.SIGINT, None)
            await eventually(lambda: not bus.ready)
            server.handle_exit(signal.SIGINT, None)
            await task
            with pytest.raises(Disconnected):
                await reply

    in_asyncio(scenario)
