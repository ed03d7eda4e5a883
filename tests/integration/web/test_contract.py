"""The contract of transports and protocols over the web: in an application under uvicorn, and by a bus alone behind HTTP.

The whole is where the wire is another one; elsewhere the core shows that it is the same.
"""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import anyio
from fastapi import FastAPI

from polybus import Backoff, Bus, connect
from polybus.fastapi import attach
from polybus.plugins import Connector, Listening, ListenOptions
from polybus.protocols import Csb, Jrep, Ubre, UProtocol
from polybus.testing import protocol_suite, transport_suite
from polybus.transports import WebSocket
from polybus.transports.asgi import AsgiWebSocket
from tests.contract.core import core_of
from tests.loops import ASYNCIO, UVLOOP, on

from .support import OverAsgi, running


class UnderUvicorn:
    """One endpoint with a server around it, which ends with the bus of the test."""

    def __init__(self, endpoint: AsgiWebSocket, ws: Any) -> None:
        self.url = ""
        self.endpoint = endpoint
        self._ws = ws
        self.started = anyio.Event()
        self.server: Any = None

    async def own(self) -> None:
        async with running(self.endpoint, ws=self._ws) as self.server:
            self.url = f"ws://127.0.0.1:{self.server.port}/bus"
            self.started.set()
            await anyio.sleep_forever()

    async def aclose(self) -> None:
        await self.endpoint.aclose()
        for server in self.server.servers:
            server.close()


class Uvicorn:
    """A transport whose listeners are ASGI applications."""

    name = "ws"
    ws: Any = "auto"

    def connector(self, url: str) -> Connector:
        return WebSocket().connector(url)

    def is_private(self, url: str) -> bool:
        return True

    async def listen(self, url: str, options: ListenOptions) -> Listening:
        endpoint = AsgiWebSocket("/bus")
        await endpoint.listen(options)
        under = UnderUvicorn(endpoint, self.ws)
        options.host.spawn(under.own)
        await under.started.wait()
        return under


class UvicornOverAsgi(Uvicorn):
    ws = OverAsgi


_SKIP = {"test_listening_on_an_address_in_use_raises_os_error": "the address is bound by the server, not by the application"}
TestUnderUvicorn: Any = on(UVLOOP, transport_suite(Uvicorn, "ws://127.0.0.1:0/bus", skip=_SKIP))
TestUnderUvicornOverAsgi: Any = on(ASYNCIO, transport_suite(UvicornOverAsgi, "ws://127.0.0.1:0/bus", skip=_SKIP))


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

    class UnderUvicorn(suite):  # type: ignore[misc, valid-type]  # made at run time
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

    class Alone(suite):  # type: ignore[misc, valid-type]  # made at run time
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


TestUbre = on(UVLOOP, attached(Ubre))
TestUbreBinaryOverAsgi = core_of(attached(lambda: Ubre(format="binary"), ws=OverAsgi))
TestCsb = core_of(attached(Csb))
TestUProtocol = core_of(attached(lambda: UProtocol(format="protobuf")))
TestErraiByWebSocketInAnApplication = core_of(attached(Jrep, path="/", transport="http"))
TestErraiByEventsAlone = core_of(alone(Jrep, "?channel=events"))
TestErraiByPollsAlone = alone(Jrep, "?channel=poll")
