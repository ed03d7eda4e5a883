"""Servers that say nothing, or a byte now and then: neither `connect` nor the end of a link waits for them."""

from collections.abc import Awaitable, Callable

import anyio
import pytest
from attrs import evolve

from polybus import BusError, ConnectFailed, Limits, connect
from tests.loops import both_backends  # noqa: F401
from tests.refusal import refused
from tests.support import BOUND

from .support import Raw, accepted, raw_server

pytestmark = pytest.mark.native

SOON = Limits(connect_timeout=0.3, handshake_timeout=0.3, write_timeout=0.3, frame_timeout=0.3, close_timeout=0.3)
STANDS = evolve(SOON, connect_timeout=BOUND, handshake_timeout=BOUND)
"""For links that have to come up, on a busy machine too."""
HTTP = "HTTP/1.1 200 OK\r\n"
BODY = HTTP + "Content-Type: application/json\r\nContent-Length: 100000\r\n\r\n["
OPENINGS = {
    "ubre+ws": ("", "HTTP/1.1 101 Switching Protocols\r\nX-A: ", "HTTP/1.1 403 Forbidden\r\nContent-Length: 900\r\n\r\n"),
    "ubre+tls": ("", "\x16\x03\x03\x10"),
    "nats+tcp": ("", 'INFO {"version":"'),
    "nats+tls": ("", 'INFO {"version":"'),
    "nats+ws": ("", "HTTP/1.1 101 Switching Protocols\r\nX-A: "),
    "jrep+http": (HTTP + "X-A: ", BODY),
    "jrep+ws": ("", "HTTP/1.1 101 Switching Protocols\r\nX-A: "),
    "uprotocol+http": (HTTP + "X-A: ", BODY, "HTTP/1.1 503 No\r\nContent-Length: 900\r\n\r\n"),
}


async def dripping(raw: Raw, opening: str, byte: bytes = b" ") -> None:
    await raw.send(opening.encode("latin-1"))
    while True:
        await raw.send(byte)
        await anyio.sleep(0.02)


@pytest.mark.parametrize(("wire", "opening"), [(wire, opening) for wire, some in OPENINGS.items() for opening in (None, *some)])
async def test_connect_ends_in_time(wire: str, opening: str | None) -> None:
    async def serve(raw: Raw) -> None:
        if opening is not None:
            await dripping(raw, opening)
        await anyio.sleep_forever()

    async with raw_server(serve) as port:
        with anyio.fail_after(BOUND):
            await refused(connect(f"{wire}://127.0.0.1:{port}", limits=SOON), ConnectFailed)


async def upgraded(raw: Raw) -> None:
    await raw.send(accepted(await raw.until(b"\r\n\r\n")) + b"Sec-WebSocket-Protocol: ubre\r\n\r\n")


async def in_turn(raw: Raw) -> None:
    while True:  # OPTIONS is answered, and each post by a byte now and then
        head = await raw.until(b"\r\n\r\n")
        if head.startswith(b"OPTIONS"):
            await raw.send(b"HTTP/1.1 204 No Content\r\n\r\n")
        else:
            await dripping(raw, BODY)


async def at_once(raw: Raw) -> None:
    return None


STANDING: dict[str, tuple[Callable[[Raw], Awaitable[None]], str, bytes]] = {
    "ubre+tcp": (at_once, "\0\0\x10\0{", b" "),
    "ubre+ws": (upgraded, "", b"\x89\x00"),
    "uprotocol+http": (in_turn, "", b" "),
}


@pytest.mark.parametrize("how", ["left", "asked"])
@pytest.mark.parametrize("wire", STANDING)
async def test_a_link_ends_in_time(wire: str, how: str) -> None:
    begin, opening, byte = STANDING[wire]

    async def serve(raw: Raw) -> None:
        await begin(raw)
        await dripping(raw, opening, byte)

    entity = "?entity=%2F%2Fv%2Fa%2F1&peer=%2F%2Fv%2Fb%2F1" if wire.startswith("uprotocol") else ""
    async with raw_server(serve) as port:
        with anyio.fail_after(BOUND):
            async with connect(f"{wire}://127.0.0.1:{port}/{entity}".replace("/?", "?"), limits=STANDS) as client:
                if how == "asked":
                    with pytest.raises(BusError):
                        await client.request("rpc.any", timeout=0.3)
                else:
                    await client.publish("//v/a/1/door#Door" if entity else "news", {"n": 1})
