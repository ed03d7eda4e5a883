"""The contract of CSB, over the transports and the event loops (`anyio_backend`), and through a broker."""

import secrets
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from polybus import Broker, Bus, connect
from polybus.protocols import Csb
from polybus.testing import protocol_suite
from tests.loops import ASYNCIO, TRIO, UVLOOP, on

from .core import BACKOFF, Seen, core_of

TestCsbOverMemory = on(ASYNCIO, protocol_suite(Csb))
TestCsbOverTcp = on(UVLOOP, protocol_suite(Csb, transport="tcp"))
TestCsbOverWebSocket = on(TRIO, protocol_suite(Csb, transport="ws://127.0.0.1:0/bus"))


def through_a_broker(clients: str, servers: str, query: str) -> type[Any]:
    """The same, with the server behind a broker: for the bus the clients are its peers, for the clients nothing differs."""

    @asynccontextmanager
    async def serving(self: Any, bus: Bus, **options: Any) -> AsyncIterator[tuple[Any, Any]]:
        name = secrets.token_hex(4)
        async with Broker(f"csb+{clients}".replace("NAME", f"c{name}"), f"csb+{servers}".replace("NAME", f"s{name}")) as broker:
            (for_clients,) = broker.client_urls

            def dial(client: Bus | None = None, **more: Any) -> AbstractAsyncContextManager[Bus]:
                return connect(for_clients, bus=client, backoff=BACKOFF, **more)

            async with connect(broker.server_urls[0] + query, bus=bus, backoff=BACKOFF):
                yield Seen(for_clients, bus), dial

    return type("ThroughABroker", (protocol_suite(Csb),), {"serving": serving, "over": clients.partition(":")[0]})


TestCsbThroughABroker = on(UVLOOP, through_a_broker("memory://NAME", "memory://NAME", "&server=A"))
TestCsbThroughABrokerOverSockets = on(
    TRIO, core_of(through_a_broker("ws://127.0.0.1:0/game", "ws://127.0.0.1:0/servers", "&server=A&pool=2"))
)
