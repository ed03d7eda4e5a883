"""What only WebSockets have: the upgrade, pings, and what a browser may do."""

import re
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import anyio
import pytest

from polybus.errors import BusError, ConnectFailed, Forbidden, LocalProtocolError, Unauthorized
from polybus.limits import Limits
from polybus.plugins import Closed
from tests.loops import every_loop  # noqa: F401  # a fixture

from .support import Raw, accepted, bare, dial, fill, joined, raw_peer, raw_server, running, serving

URL = "ws://127.0.0.1:0/bus"
_WEBSOCKETS = int(version("websockets").partition(".")[0])


def request(path: str = "/bus", method: str = "GET", http: str = "HTTP/1.1", **changes: str | None) -> bytes:
    headers: dict[str, str | None] = {
        "Host": "127.0.0.1",
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
        "Sec-WebSocket-Version": "13",
        **{name.replace("_", "-"): value for name, value in changes.items()},
    }
    lines = [f"{name}: {value}" for name, value in headers.items() if value is not None]
    return "\r\n".join([f"{method} {path} {http}", *lines, "", ""]).encode()


async def test_the_handshake_shows_what_the_request_said(anyio_backend: Any) -> None:
    async with running(anyio_backend) as host, serving(host, URL) as server:
        url = server.url + "?room=7&empty="
        headers = {"X-Tenant": "a", "Cookie": "session=abc; theme=dark", "Origin": f"http://127.0.0.1:{server.port}"}
        here = await dial(host, url, headers=headers)
        await server.gate.peer()
        shown = server.gate.handshakes[0]
        assert (shown.transport, shown.protocol, shown.url, shown.path) == ("ws", "test", server.url, "/bus")
        assert shown.query == {"room": "7", "empty": ""}
        assert shown.headers["x-tenant"] == "a"
        assert shown.headers["host"] == f"127.0.0.1:{server.port}"
        assert shown.cookies == {"session": "abc", "theme": "dark"}
        assert shown.origin == f"http://127.0.0.1:{server.port}"
        assert shown.tls_peer is None
        assert here.transport.address == f"127.0.0.1:{server.port}"


@pytest.mark.parametrize(
    ("data", "status", "text"),
    [
        (request(Origin="http://evil.example"), 403, "Origin 'http://evil.example'"),
        *((request(Host="evil.example"), 421, "Host 'evil.example'"), (request(Host=None), 400, "Host header is missing")),
        (request("/other"), 404, "only at /bus"),
        *(
            (request(Sec_WebSocket_Protocol=name), 400, text)
            for name, text in (("other", "the server accepts test.v1"), ("@", ""))
        ),
        (request(Upgrade=None, Connection=None), 426, "Sec-WebSocket-Version: 13\r\n"),
        *((request(method="POST"), 405, ""), (request(http="HTTP/1.0"), 505, ""), (b"x" * 30_000, 414, "")),
        *((request(Sec_WebSocket_Version=number), 400, "Sec-WebSocket-Version: 13\r\n") for number in ("12", None)),
        (request(Sec_WebSocket_Key="short"), 400, "Sec-WebSocket-Key"),
        (request("/" + "x" * 9000), 414, ""),
        (request(**{f"A{number}": "x" * 400 for number in range(100)}), 431, "too long"),
        (request(method="POST", Content_Length="2") + b"{}", 400, "a GET without a body"),
        (b"\r\n\r\n", 400, "not an HTTP/1.1 request for a WebSocket"),
        (b"\x16\x03\x01\x02\0\r\n\r\n", 400, "the client sent a TLS hello"),
        (request(Host="127.0.0.1\r\nHost: evil.example"), 400, "more than one Host"),
    ],
)
async def test_a_request_is_turned_away_with_a_text_that_says_why(
    anyio_backend: Any, data: bytes, status: int, text: str
) -> None:
    async with running(anyio_backend) as host, serving(host, URL) as server:
        async with raw_peer(server) as raw:
            await raw.send(data)
            answer = await raw.rest()
        by_library = status in (405, 414, 505) and _WEBSOCKETS < 17
        assert answer.startswith(tuple(f"HTTP/1.1 {one} ".encode() for one in ((400, 431) if by_library else (status,))))
        assert text in answer.decode()
        await server.gate.until(lambda: server.gate.gone == 1)
        assert server.gate.handshakes == []


@pytest.mark.parametrize(
    ("fields", "chosen", "authorization"),
    [
        ({}, None, None),
        ({"Sec_WebSocket_Protocol": "test.v1, polybus.token.abc"}, "test.v1", "Bearer abc"),
        ({"Sec_WebSocket_Protocol": "polybus.token.abc", "Authorization": "Bearer real"}, "polybus.token.abc", "Bearer real"),
    ],
)
async def test_a_token_may_come_as_a_sub_protocol_and_counts_less_than_the_header(
    anyio_backend: Any, fields: dict[str, str], chosen: str | None, authorization: str | None
) -> None:
    async with running(anyio_backend) as host, serving(host, URL) as server, raw_peer(server) as raw:
        await raw.send(request(**fields))
        answer = (await raw.until(b"\r\n\r\n")).decode()
        assert answer.startswith("HTTP/1.1 101 ")
        assert re.findall(r"Sec-WebSocket-Protocol: (.*)\r\n", answer) == ([] if chosen is None else [chosen])
        await server.gate.peer()
        assert server.gate.handshakes[0].headers.get("authorization") == authorization


async def test_a_request_in_slices_of_one_byte_with_frames_behind_it(anyio_backend: Any) -> None:
    async with running(anyio_backend) as host, serving(host, URL) as server, raw_peer(server) as raw:
        data = request()
        for i in range(0, len(data) - 1):
            await raw.send(data[i : i + 1])
        await raw.send(data[-1:] + bytes.fromhex("8283000000006f6e65 89800000 0000 828300000000 74776f".replace(" ", "")))
        there = await server.gate.peer()
        assert await there.received(2) == [b"one", b"two"]
        await raw.until(b"\r\n\r\n")
        assert await raw.exactly(2) == b"\x8a\0"


@pytest.mark.parametrize(("writes", "first"), [("text", 0x81), ("binary", 0x82)])
async def test_frames_are_written_in_the_kind_of_the_protocol(anyio_backend: Any, writes: str, first: int) -> None:
    async with bare(anyio_backend, URL, writes=writes) as (_, raw, there):
        there.transport.send(b"hi")
        there.transport.send(b"x" * 200)
        assert await raw.exactly(208) == bytes([first, 2]) + b"hi" + bytes([first, 126, 0, 200]) + b"x" * 200


async def test_a_silent_peer_is_asked_and_then_cut_unless_it_gives_a_sign_of_life(anyio_backend: Any) -> None:
    async with bare(anyio_backend, URL) as (host, raw, there):
        await anyio.wait_all_tasks_blocked()
        now = host.time()
        for seconds in (0, 14.9, 15):
            there.transport.tick(now + seconds)
        assert await raw.exactly(2) == b"\x89\0"
        await raw.send(bytes.fromhex("82830000000078797a"))
        await there.received(1)
        for seconds in (23, 37):
            there.transport.tick(now + seconds)
        assert (there.why, raw.seen) == (None, b"")
        there.transport.tick(now + 38)
        assert await raw.exactly(2) == b"\x89\0"
        there.transport.tick(now + 45.9)
        assert there.why is None
        there.transport.tick(now + 46)
        assert await there.end() == Closed(1006, "no answer to ping within 8 s")


async def test_a_peer_that_reads_nothing_is_cut_although_the_ping_cannot_leave(anyio_backend: Any) -> None:
    async with bare(anyio_backend, URL, Limits(write_timeout=1000)) as (host, _, there):
        await fill(there)
        now = host.time()
        for seconds in (0, 15, 23):
            there.transport.tick(now + seconds)
        assert (await there.end()).reason == "no answer to ping within 8 s"


async def test_pongs_are_not_piled_up_for_a_peer_that_reads_nothing(anyio_backend: Any) -> None:
    async with bare(anyio_backend, URL, Limits(empty_frames=10**9)) as (_, raw, there):
        await fill(there)
        backlog = there.transport.write_backlog()
        await raw.send(bytes.fromhex("898000000000") * 10_000 + bytes.fromhex("828100000000") + b"!")
        await there.received(1)
        assert there.transport.write_backlog() <= backlog


async def test_a_peer_that_does_not_answer_our_goodbye_is_cut(anyio_backend: Any) -> None:
    async with bare(anyio_backend, URL, Limits(close_timeout=0.05)) as (_, raw, there):
        there.transport.send(b"x")
        there.transport.close(1001, "bye")
        assert await there.end() == Closed(1001, "bye")
        assert await raw.rest() == b"\x82\1x\x88\5\x03\xe9bye"


@pytest.mark.parametrize(("code", "sent"), [(1006, 1000), (1005, 1000), (1015, 1000), (999, 1000), (5000, 1000), (3000, 3000)])
async def test_codes_that_must_not_be_sent_are_not(anyio_backend: Any, code: int, sent: int) -> None:
    async with joined(anyio_backend, URL) as (_, here, there):
        here.transport.close(code, "x")
        assert (await there.end()).code == sent


INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\nLink: </x>; rel=preload\r\n\r\n"
ANSWERS: list[tuple[bytes, type[BusError], str]] = [
    (b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 4\r\n\r\nwho?", Unauthorized, "who?"),
    (b"HTTP/1.1 403 Forbidden\r\nContent-Length: 3\r\n\r\nno!", Forbidden, "no!"),
    (b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n", Forbidden, "is '/bus' the path of the bus?"),
    (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", ConnectFailed, "the server answered 404 Not Found"),
    (b"HTTP/1.1 502 Bad Gateway\r\n\r\n<html>\n<h1>Bad</h1></html>", ConnectFailed, "the server answered 502 Bad Gateway"),
    (b"HTTP/1.1 503 Busy\r\n\r\nlater", ConnectFailed, "the server answered 503 Busy: later"),
    (b"HTTP/1.1 502 Bad\r\nContent-Length: 4000\r\n\r\n" + b"x" * 4000, ConnectFailed, "x" * 300 + "..."),
    (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n", ConnectFailed, "200 OK: hi"),
    (b"HTTP/1.1 101 Switching Protocols\r\n\r\n", ConnectFailed, "the server's answer to the upgrade is wrong"),
    (b"HTTP/1.0 404 Not Found\r\n\r\n", ConnectFailed, "the server answered 404 Not Found in HTTP/1.0"),
    (b"SSH-2.0-OpenSSH\r\n\r\n", ConnectFailed, "does not answer in HTTP"),
    (b"\xff\xff\xff\xff" * 20_000, ConnectFailed, "does not answer in HTTP"),
    (b"", ConnectFailed, "closed the connection during the handshake"),
    (b"HTTP/1.1 101 Swit", ConnectFailed, "closed the connection during the handshake"),
    (INTERIM[0] * 1000, ConnectFailed, ""),
]


@pytest.mark.parametrize(("answer", "error", "text"), ANSWERS)
async def test_an_answer_that_is_no_upgrade_says_what_it_was(
    anyio_backend: Any, answer: bytes, error: type[BusError], text: str
) -> None:
    async def serve(raw: Raw) -> None:
        await raw.until(b"\r\n\r\n")
        await raw.send(answer)

    async with running(anyio_backend) as host, raw_server(serve) as port:
        with pytest.raises(error) as caught:
            await dial(host, f"ws://127.0.0.1:{port}/bus")
        assert text in str(caught.value)
        if text.startswith("the server answered") and answer.startswith(b"HTTP/1.1 "):
            assert isinstance(caught.value, ConnectFailed) and caught.value.status == int(answer[9:12])
        assert "<h1>" not in str(caught.value)


@pytest.mark.parametrize("before", [INTERIM[:1], INTERIM[1:], INTERIM * 4], ids=["100", "103", "several"])
async def test_answers_that_precede_the_one_to_the_upgrade_are_passed_over(anyio_backend: Any, before: Sequence[bytes]) -> None:
    async def serve(raw: Raw) -> None:
        await raw.send(b"".join(before) + accepted(await raw.until(b"\r\n\r\n")) + b"\r\n\x81\x02hi")

    async with running(anyio_backend) as host, raw_server(serve) as port:
        here = await dial(host, f"ws://127.0.0.1:{port}/bus")
        assert await here.received(1) == [b"hi"]


@pytest.mark.parametrize("name", ["Upgrade", "connection", "Sec-WebSocket-Key", "Content-Length", "bad name", "bad\nname"])
async def test_headers_of_the_handshake_itself_are_refused(anyio_backend: Any, name: str) -> None:
    async with running(anyio_backend) as host:
        with pytest.raises(LocalProtocolError, match="header"):
            await dial(host, "ws://127.0.0.1:9/", headers={name: "x"})


async def test_the_host_header_may_be_overridden(anyio_backend: Any) -> None:
    async with running(anyio_backend) as host, serving(host, URL, hosts=("app.example",)) as server:
        await dial(host, server.url, headers={"Host": "app.example"})
        await server.gate.peer()
        assert server.gate.handshakes[0].headers["host"] == "app.example"
