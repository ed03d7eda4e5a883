"""The contract through tunnels: each protocol inside each other, over the transports and the event loops (`anyio_backend`)."""

import itertools
import secrets
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from polybus import Bus, Limits, connect
from polybus.protocols import Csb, Jrep, Ubre, UProtocol
from polybus.testing import protocol_suite
from tests.loops import ASYNCIO, LOOPS, TRIO, on

from .core import BACKOFF, Seen, core_of

WIDE = Limits(message=2**22)
Make = Callable[[], Any]
PROTOCOLS: dict[str, Make] = {"Ubre": Ubre, "Csb": Csb, "Jrep": Jrep, "UProtocol": UProtocol}
OVER = {"Tcp": "tcp://127.0.0.1:0", "WebSocket": "ws://127.0.0.1:0/bus"}


def tunnelled(inner: Make, outer: Make, address: str = "memory://NAME", skip: Mapping[str, str] | None = None) -> type[Any]:
    """The contract of `inner`, where every client has a connection of the outer protocol, and the protocol in a tunnel."""

    @asynccontextmanager
    async def serving(self: Any, bus: Bus, *, when_full: str = "drop_oldest", **options: Any) -> AsyncIterator[tuple[Any, Any]]:
        adapter, around = self.adapter, outer()
        front = Bus(limits=WIDE)
        front.handle_tunnels("site.{id}", bus, protocol=adapter, when_full=when_full)
        url = f"{around.name}+{address}".replace("NAME", secrets.token_hex(4))
        async with front.serve(url, protocol=around) as listener:

            @asynccontextmanager
            async def dial(client: Bus | None = None, **more: Any) -> AsyncIterator[Bus]:
                target = listener.url.partition("?")[0]
                async with (
                    connect(target, protocol=around, limits=WIDE, backoff=BACKOFF) as out,
                    connect(out.tunnel("site.7"), protocol=adapter, bus=client, backoff=BACKOFF, **more) as joined,
                ):
                    yield joined

            async with bus:
                yield Seen(f"{adapter.name}+tunnel://site.7", bus), dial

    members = {"serving": serving, "over": address.partition(":")[0], "outside": outer}
    return type("ThroughATunnel", (protocol_suite(inner, skip=skip or {}),), members)


OUTSIDE = {
    "test_connecting_without_a_server_fails_immediately_with_the_address": "the outer server is gone, and the error names it"
}

TestCsbInUbreJson = on(ASYNCIO, tunnelled(Csb, Ubre, skip=OUTSIDE))
TestUbreInJrep = on(TRIO, tunnelled(Ubre, Jrep, skip=OUTSIDE))


def cores() -> Iterator[tuple[str, type[Any]]]:
    """Each pair once: by the places of the two in the table, added up, each of them and each transport meets each loop."""
    for (place, inside), (more, outside) in itertools.product(enumerate(PROTOCOLS), repeat=2):
        where = [*OVER][(place + more) % len(OVER)]
        suite = core_of(tunnelled(PROTOCOLS[inside], PROTOCOLS[outside], OVER[where]))
        yield f"Test{inside}In{outside}Over{where}", on(LOOPS[(place + more) % len(LOOPS)], suite)


globals().update(cores())
