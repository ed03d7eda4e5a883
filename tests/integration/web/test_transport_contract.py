"""The contract of a transport, kept by the WebSockets of an ASGI application under uvicorn."""

from __future__ import annotations

from typing import Any

import anyio

from polybus.plugins import Connector, Listening, ListenOptions
from polybus.testing import transport_suite
from polybus.transports import WebSocket
from polybus.transports._ws.asgi_server import AsgiWebSocket
from tests.integration.web.support import OverAsgi, running


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
    """The same where uvicorn keeps its connections."""

    ws = OverAsgi


_SKIP = {"test_an_address_in_use_is_an_os_error": "the address is bound by the server, not by the application"}
TestUnderUvicorn: Any = transport_suite(Uvicorn, "ws://127.0.0.1:0/bus", skip=_SKIP)
TestUnderUvicornOverAsgi: Any = transport_suite(UvicornOverAsgi, "ws://127.0.0.1:0/bus", skip=_SKIP)
