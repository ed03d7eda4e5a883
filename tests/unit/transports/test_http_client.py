"""Requests over HTTP as the client makes them, against a server of bytes."""

import gzip
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import anyio.abc
import pytest

from polybus import Bus, Handshake, connect
from polybus.bindings.http.client import ExchangeFailed, HttpClient
from polybus.bindings.jrep_http.client import offer_in
from polybus.bindings.jrep_http.requests import ErraiRequests
from polybus.limits import Limits
from polybus.plugins import DialOptions
from tests.loops import both_backends  # noqa: F401
from tests.support import BOUND

from .support import BOTH, Host, Raw, raw_server, running

TWICE = gzip.compress(gzip.compress(bytes(1 << 20)))
COOKIES = b"".join(b"Set-Cookie: c%d=1\r\n" % number for number in range(257))
TOO_MUCH = {
    "packed": (b"Content-Encoding: gzip\r\n", gzip.compress(b"[]"), r"compresses its answers \(Content-Encoding: gzip\)"),
    "packed twice": (b"Content-Encoding: gzip\r\nContent-Encoding: gzip\r\n", TWICE, "Content-Encoding: gzip, gzip"),
    "in a coding that nobody knows": (b"Content-Encoding: x\r\n", b"[]", "Content-Encoding: x"),
    "with more cookies than anybody needs": (COOKIES, b"[]", "more than 256 cookies"),
    "with a cookie that is far too large": (b"Set-Cookie: c=%b\r\n" % (b"x" * 65536), b"[]", "or 65536 bytes of them"),
}


def options_of(host: Host, **headers: str) -> DialOptions:
    return DialOptions(host=host, reads=BOTH, writes="text", subprotocol="", headers=headers)


async def asks(client: HttpClient, url: str, host: Host) -> None:
    await client.ask("OPTIONS", url)


async def listens(client: HttpClient, url: str, host: Host) -> None:
    http = client._http
    await ErraiRequests(client, http, url, None, options_of(host)).listen(lambda _: None, lambda: None)


@pytest.mark.parametrize("does", [asks, listens])
@pytest.mark.parametrize(("head", "body", "said"), TOO_MUCH.values(), ids=TOO_MUCH)
async def test_an_answer_is_not_unpacked(
    anyio_backend: Any, does: Callable[..., Awaitable[None]], head: bytes, body: bytes, said: str
) -> None:
    """A few hundred bytes may unpack to gigabytes, before the size of anything can be looked at."""
    heads: list[bytes] = []

    async def answer(raw: Raw) -> None:
        heads.append(await raw.until(b"\r\n\r\n"))
        start = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n" % len(body)
        await raw.send(start + head + b"\r\n" + body)

    async with running(anyio_backend) as host, raw_server(answer) as port:
        url = f"http://127.0.0.1:{port}"
        client = HttpClient(url, None, options_of(host, **{"Accept-Encoding": "gzip"}), {}, [])
        with pytest.raises(ExchangeFailed, match=said):
            await does(client, url, host)
        await client.drop()
    assert heads[0].lower().count(b"accept-encoding: identity\r\n") == heads[0].lower().count(b"accept-encoding") == 1


async def test_a_large_body_passes_a_slow_line(anyio_backend: Any) -> None:
    """It spends longer than `write_timeout` in the buffers of the system and of the line, which here is one that reads late."""
    heads: list[bytes] = []
    body = bytes(320_000)

    async def answer(raw: Raw) -> None:
        heads.append(await raw.until(b"\r\n\r\n"))
        assert await raw.exactly(len(body)) == body
        await anyio.sleep(1.5)
        await raw.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    async with running(anyio_backend, Limits(write_timeout=1.0)) as host, raw_server(answer) as port:
        url = f"http://127.0.0.1:{port}"
        client = HttpClient(url, None, options_of(host), {}, [])
        status, _, text = await client.ask("POST", url, content=body, headers={"x-mine": "1"})
        assert (status, text) == (200, b"ok")
        await client.drop()
    assert b"content-length: 320000\r\n" in heads[0].lower()
    assert b"x-mine: 1\r\n" in heads[0]
    assert b"transfer-encoding" not in heads[0].lower()


@pytest.mark.parametrize(
    ("said", "pause"),
    [
        *[(b"250", 0.25), (b'"250"', 0.25), (b'{"^NumVal":"250"}', 0.25), (b"-1", 0.1), (b"1e300", 30.0), (b"NaN", 0.5)],
        *((said, 0.5) for said in (b'"NaN"', b'{"^NumVal":"nan"}', b'"inf"', b"null", b"[[]]", b'"%s"' % (b"9" * 5000))),
    ],
)
def test_whatever_a_server_says_there_is_a_pause_between_two_polls(said: bytes, pause: float) -> None:
    offer = offer_in(b'[{"ToSubject":"ClientBus","CommandType":"FinishAssociation","PollFrequency":%b}]' % said)
    assert offer.frequency == pause


async def test_a_cancelled_tls_handshake_closes_its_connection(anyio_backend: Any) -> None:
    begun, closed = anyio.Event(), anyio.Event()

    async def answer(raw: Raw) -> None:
        await raw.exactly(1)
        begun.set()
        await raw.rest()
        closed.set()

    async with running(anyio_backend) as host, raw_server(answer) as port:
        client = HttpClient(f"https://127.0.0.1:{port}", None, options_of(host), {}, [])
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as group:
                group.start_soon(asks, client, f"https://127.0.0.1:{port}", host)
                await begun.wait()
                scope.cancel()
        with anyio.fail_after(BOUND):
            await closed.wait()
        await client.drop()


@pytest.mark.parametrize("channel", ["websocket", "poll"])
async def test_a_cookie_of_the_application_goes_with_those_of_the_server(channel: str) -> None:
    seen: list[str | None] = []

    def authenticate(handshake: Handshake) -> str:
        seen.append(handshake.cookies.get("sid"))
        return "ann"

    bus = Bus(authenticate=authenticate)

    @bus.handle("answer")
    async def answer() -> int:
        return 42

    async with bus.serve("jrep+http://127.0.0.1:0/bus") as server:
        async with connect(f"{server.url}?channel={channel}", headers={"Cookie": "sid=1; theme=dark"}) as client:
            assert await client.request("answer") == 42
    assert seen and set(seen) == {"1"}
