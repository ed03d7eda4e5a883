"""The pages that a bus or a broker shows over HTTP on a port of its own."""

import os
import resource
import socket
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager

import anyio
import pytest

from polybus._util import http_status
from polybus._util.http_status import HttpStatus, Page
from tests.support import eventually

EXAMPLE = "http://127.0.0.1:8081"
LOCAL = b" HTTP/1.1\r\nHost: localhost\r\n\r\n"
pytestmark = pytest.mark.native


@asynccontextmanager
async def pages(**more: Page) -> AsyncIterator[HttpStatus]:
    async def ready() -> tuple[int, str]:
        await anyio.lowlevel.checkpoint()  # it asks others
        return 503, "no\n"

    shown: dict[str, Page] = {"/livez": lambda: (200, "OK\n"), "/readyz": ready}
    shown |= {f"/{name}": page for name, page in more.items()}
    server = HttpStatus("health", "http://127.0.0.1:0", shown, EXAMPLE)
    await server.listen()
    async with anyio.create_task_group() as group:
        group.start_soon(server.serve)
        yield server
        await server.aclose()


async def asked(server: HttpStatus, *pieces: bytes) -> bytes:
    answer = b""
    with anyio.fail_after(60):
        async with await anyio.connect_tcp("127.0.0.1", server.port) as stream:
            for piece in pieces:
                await stream.send(piece)
                await anyio.lowlevel.checkpoint()
            try:
                while True:
                    answer += await stream.receive()
            except (anyio.EndOfStream, anyio.BrokenResourceError):  # reset, where something was left unread
                return answer


@pytest.mark.parametrize(
    ("pieces", "status", "body"),
    [
        pytest.param((b"GET /livez" + LOCAL,), b"200 OK", b"OK\n", id="a page"),
        pytest.param((b"GET /li", b"vez HTTP/1.1\r\nHo", b"st: 127.0.0.1:80\r\n\r\n"), b"200 OK", b"OK\n", id="in pieces"),
        pytest.param((b"GET /livez?verbose HTTP/1.0\r\n\r\n",), b"200 OK", b"OK\n", id="with a query, of an old client"),
        pytest.param((b"GET /livez HTTP/1.1\r\nHost: evil.example\r\n\r\n",), b"421 Misdirected Request", None, id="foreign"),
        pytest.param((b"GET /livez HTTP/1.1\r\nHost: [::1\r\n\r\n",), b"421 Misdirected Request", None, id="no host"),
        pytest.param((b"HEAD /livez" + LOCAL,), b"200 OK", b"", id="its head"),
        pytest.param((b"GET /readyz" + LOCAL,), b"503 Service Unavailable", b"no\n", id="not now"),
        pytest.param((b"GET /x" + LOCAL,), b"404 Not Found", b"see /livez and /readyz\n", id="unknown"),
        pytest.param((b"PUT /livez" + LOCAL,), b"405 Method Not Allowed", b"ask with GET\n", id="a verb"),
        pytest.param((b"\x16\x03\x01\x00\r\n\r\n",), b"400 Bad Request", None, id="TLS"),
        pytest.param((b"GET /" + b"a" * 5000,), b"431 Request Header Fields Too Large", None, id="too long"),
    ],
)
async def test_each_request_gets_one_answer(pieces: tuple[bytes, ...], status: bytes, body: bytes | None) -> None:
    async with pages() as server:
        head, _, text = (await asked(server, *pieces)).partition(b"\r\n\r\n")
        assert head.splitlines()[0] == b"HTTP/1.1 " + status
        assert body is None or text == body


async def test_a_page_that_cannot_be_made_is_an_error_and_others_are_served(caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> tuple[int, str]:
        raise ZeroDivisionError("no number")

    async with pages(metrics=broken) as server:
        assert (await asked(server, b"GET /metrics" + LOCAL)).startswith(b"HTTP/1.1 500 Internal Server Error")
        assert (await asked(server, b"GET /livez" + LOCAL)).startswith(b"HTTP/1.1 200 OK")
    assert "a page could not be made" in caplog.text
    assert "no number" in caplog.text


async def test_who_only_knocks_holds_up_nobody() -> None:
    async with pages() as server, await anyio.connect_tcp("127.0.0.1", server.port):
        assert b"200 OK" in await asked(server, b"GET /livez" + LOCAL)


async def test_a_client_that_has_reset_its_connection_before_it_is_accepted_ends_nothing_else() -> None:
    server = HttpStatus("health", "http://127.0.0.1:0", {"/livez": lambda: (200, "OK\n")}, EXAMPLE)
    await server.listen()
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    async with anyio.create_task_group() as group:
        group.start_soon(server.serve)
        assert b"200 OK" in await asked(server, b"GET /livez" + LOCAL)
        await server.aclose()


async def test_who_does_not_read_its_page_holds_up_nobody() -> None:
    async with pages(metrics=lambda: (200, "x" * (1 << 25))) as server:
        async with await anyio.connect_tcp("127.0.0.1", server.port) as deaf:
            await deaf.send(b"GET /metrics HTTP/1.0\r\n\r\n")
            await deaf.receive(1)
            assert b"200 OK" in await asked(server, b"GET /livez HTTP/1.0\r\n\r\n")


@contextmanager
def no_more_files() -> Iterator[None]:
    """Let this process have as many file descriptors as it has, and no more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with open(os.devnull) as next_one:
        limit = next_one.fileno()
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("kept", [True, False], ids=["with the one that was kept", "as soon as there are some"])
async def test_it_answers_where_the_process_is_out_of_file_descriptors(
    kept: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(http_status, "_PAUSE", 0.001)
    with ExitStack() as stack:
        clients = [stack.enter_context(socket.socket()) for _ in range(3)]
        async with pages() as server:
            await asked(server, b"GET /livez HTTP/1.0\r\n\r\n")
            server._give_spare()
            server._keep_spare()  # it is the lowest number now
            with monkeypatch.context() as patch, no_more_files():
                failures = list[None]()
                if not kept:
                    patch.setattr(server, "_give_spare", lambda: failures.append(None))
                for client in clients:
                    client.connect(("127.0.0.1", server.port))
                    client.sendall(b"GET /livez HTTP/1.0\r\n\r\n")
                with anyio.fail_after(60):
                    if kept:
                        for client in clients:
                            assert b"200 OK" in await received(client)
                    else:
                        await eventually(lambda: "pauses: [Errno 24]" in caplog.text and len(failures) > 3)
            with anyio.fail_after(60):
                for client in [] if kept else clients:
                    assert b"200 OK" in await received(client)
    assert caplog.text.count("pauses") == (not kept)


async def received(client: socket.socket) -> bytes:
    await anyio.wait_readable(client)
    return client.recv(4096)


async def test_it_may_listen_again() -> None:
    server = HttpStatus("health", "http://127.0.0.1:0", {"/livez": lambda: (200, "OK\n")}, EXAMPLE)
    for _ in range(2):
        await server.listen()
        async with anyio.create_task_group() as group:
            group.start_soon(server.serve)
            assert b"200 OK" in await asked(server, b"GET /livez HTTP/1.0\r\n\r\n")
            await server.aclose()


@pytest.mark.parametrize("url", ["127.0.0.1:8081", "https://127.0.0.1:8081", "http://127.0.0.1", "http://127.0.0.1:99999"])
def test_an_address_of_another_form_is_an_error_that_names_the_option(url: str) -> None:
    with pytest.raises(ValueError, match=f"health='{url}' must have the form {EXAMPLE}"):
        HttpStatus("health", url, {}, EXAMPLE)
