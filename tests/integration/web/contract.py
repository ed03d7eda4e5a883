"""The contract of a protocol over the web: in an application under uvicorn, and alone behind HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from fastapi import FastAPI

from polybus import Backoff, Bus, connect
from polybus.fastapi import attach
from polybus.testing import protocol_suite

from .support import running

__all__ = ["alone", "attached"]


class Attached:
    """What stands in for a listener."""

    def __init__(self, bus: Bus, url: str) -> None:
        self._bus = bus
        self.url = url

    @property
    def peers(self) -> list[Any]:
        return self._bus.peers


def attached(make: Any, *, path: str = "/bus", transport: str = "ws", **how: Any) -> Any:
    """By a bus that is attached to a FastAPI application, under uvicorn with these options."""
    suite = protocol_suite(make)

    class UnderUvicorn(suite):  # type: ignore[misc, valid-type]
        @asynccontextmanager
        async def serving(self, bus: Bus, **options: Any) -> AsyncIterator[Any]:
            app = FastAPI()
            attach(app, bus, path, protocol=self.adapter, **options)
            async with running(app, **how) as server:
                url = f"{self.adapter.name}+{transport}://127.0.0.1:{server.port}{path}"
                yield Attached(bus, url), dialler(url, self.adapter)

    return UnderUvicorn


def alone(make: Any, query: str = "") -> Any:
    """By a bus that serves HTTP itself, for clients that connect with this query."""
    suite = protocol_suite(make)

    class Alone(suite):  # type: ignore[misc, valid-type]
        turns = 80  # each is a request of HTTP

        @asynccontextmanager
        async def serving(self, bus: Bus, **options: Any) -> AsyncIterator[Any]:
            adapter = self.adapter
            async with bus.serve(f"{adapter.name}+http://127.0.0.1:0", protocol=adapter, **options) as listener:
                yield listener, dialler(f"{listener.url.partition('?')[0]}{query}", adapter)

    return Alone


def dialler(url: str, adapter: Any) -> Any:
    def dial(client: Bus | None = None, **more: Any) -> AbstractAsyncContextManager[Bus]:
        return connect(url, protocol=adapter, bus=client, backoff=Backoff(initial=0.001, maximum=0.02), **more)

    return dial
