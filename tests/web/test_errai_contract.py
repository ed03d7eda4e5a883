"""The contract of J.REP over HTTP: our own bus polls our own server, under uvicorn."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from fastapi import FastAPI

from polybus import Backoff, Bus, connect
from polybus.fastapi import attach
from polybus.protocols import Jrep
from polybus.testing import protocol_suite

from .support import running


class Attached:
    """What stands in for a listener."""

    def __init__(self, bus: Bus, url: str) -> None:
        self._bus = bus
        self.url = url

    @property
    def peers(self) -> list[Any]:
        return self._bus.peers


def over_http(make: Any) -> Any:
    suite = protocol_suite(make)

    class OverHttp(suite):  # type: ignore[misc, valid-type]
        @asynccontextmanager
        async def serving(self, bus: Bus, **options: Any) -> AsyncIterator[Any]:
            app = FastAPI()
            attach(app, bus, "/", protocol=self.adapter, **options)
            async with running(app) as server:
                url = f"jrep+http://127.0.0.1:{server.port}"

                def dial(client: Bus | None = None, **more: Any) -> AbstractAsyncContextManager[Bus]:
                    backoff = Backoff(initial=0.001, maximum=0.02)
                    return connect(url, protocol=self.adapter, bus=client, backoff=backoff, **more)

                yield Attached(bus, url), dial

    return OverHttp


TestErrai = over_http(Jrep)
