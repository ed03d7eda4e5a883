"""Transports with the framing of a protocol: here lines."""

import ssl
from collections.abc import Callable
from typing import Any

import anyio
import pytest
import trustme
from anyio.streams.tls import TLSStream

from polybus.errors import ConnectFailed, RemoteProtocolError, TooLarge, Unsupported
from polybus.limits import Limits
from polybus.plugins import FrameCutter
from tests.loops import every_loop  # noqa: F401  # a fixture
from tests.refusal import refused
from tests.support import BOUND

from .support import Raw, client_tls, dial, raw_peer, raw_server, running, serving

TRANSPORTS = ["tcp://127.0.0.1:0", "ws://127.0.0.1:0/lines"]


class LineCutter:
    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.head = b""
        self.broken: RemoteProtocolError | None = None

    @property
    def partial(self) -> str:
        return f"{len(self.head)} bytes of a line" if self.head else ""

    @property
    def arrived(self) -> int:
        return len(self.head)

    def feed(self, data: bytes) -> list[bytes]:
        *lines, self.head = (self.head + data).split(b"\n")
        if len(self.head) > self.limit:
            self.broken = RemoteProtocolError(f"a line of more than {self.limit} bytes", close_code=1009)
        return lines


class Lines:
    """A server says ``hello`` before TLS."""

    def cutter(self, limits: Limits, transport: str) -> FrameCutter:
        return LineCutter(limits.message)

    def pack(self, frame: bytes) -> bytes:
        return frame + b"\n"

    def plain_preface(self, data: bytes) -> int | None:
        if data[:1] not in (b"", b"h"):
            raise RemoteProtocolError(f"it begins with {data[:10]!r}")
        return data.find(b"\n") + 1


class LinesAfterTls(Lines):
    def plain_preface(self, data: bytes) -> int | None:
        return None


LINES: dict[str, Any] = {"framing": Lines(), "reads": frozenset({"binary"}), "writes": "binary"}


@pytest.mark.parametrize("url", TRANSPORTS)
async def test_frames_are_those_of_the_protocol_in_both_directions(anyio_backend: Any, url: str) -> None:
    async with running(anyio_backend) as host, serving(host, url, echo=True, **LINES) as server:
        client = await dial(host, server.url, **LINES)
        for frame in (b"one", b"two words", b"x" * 100_000, b""):
            client.transport.send(frame)
        assert await client.received(4) == [b"one", b"two words", b"x" * 100_000, b""]


async def test_on_tcp_there_is_nothing_but_the_bytes_of_the_protocol(anyio_backend: Any) -> None:
    async with running(anyio_backend) as host, serving(host, TRANSPORTS[0], **LINES) as server, raw_peer(server) as raw:
        there = await server.gate.peer()
        await raw.send(b"on")
        await raw.send(b"e\ntwo\n")
        assert await there.received(2) == [b"one", b"two"]
        for seconds in (15, 30, 300):
            there.transport.tick(host.time() + seconds)  # no keep-alive
        there.transport.send(b"answer")
        there.transport.close(1001, "no word for this on the wire")
        assert await raw.rest() == b"answer\n"


async def test_a_message_of_a_websocket_is_any_chunk_of_the_stream(anyio_backend: Any) -> None:
    plain = {**LINES, "framing": None}
    async with running(anyio_backend) as host, serving(host, TRANSPORTS[1], **LINES) as server:
        client = await dial(host, server.url, **plain)
        for chunk in (b"on", b"", b"e\ntwo\nth", b"ree\n"):
            client.transport.send(chunk)
        there = await server.gate.peer()
        assert await there.received(3) == [b"one", b"two", b"three"]


async def test_a_chunk_of_a_websocket_may_be_larger_than_a_frame(anyio_backend: Any) -> None:
    limits = Limits(message=1000, payload=5000)
    async with running(anyio_backend, limits) as host, serving(host, TRANSPORTS[1], **LINES) as server:
        client: Any = await dial(host, server.url, **{**LINES, "framing": None})
        client.transport.max_frame = 10_000
        client.transport.send(b"".join(b"%03d" % number + b"x" * 96 + b"\n" for number in range(50)))
        there = await server.gate.peer()
        assert len(await there.received(50)) == 50
        client.transport.send(b"x" * 5001)
        assert (await client.end()).code == 1009


@pytest.mark.parametrize("url", TRANSPORTS)
async def test_what_cannot_be_cut_ends_the_connection_after_what_came_before(anyio_backend: Any, url: str) -> None:
    async with running(anyio_backend, Limits(message=1000)) as host, serving(host, url, **LINES) as server:
        client: Any = await dial(host, server.url, **{**LINES, "framing": None} if url.startswith("ws") else LINES)
        if url.startswith("tcp"):
            client.transport._wire.write(b"good\n" + b"x" * 1001)
        else:
            client.transport.send(b"good\n")
            client.transport.send(b"x" * 600)
            client.transport.send(b"x" * 600)
        there = await server.gate.peer()
        why = await there.end()
        assert (there.frames, why.code, why.reason) == ([b"good"], 1009, "a line of more than 1000 bytes")


@pytest.mark.parametrize("url", TRANSPORTS)
async def test_what_is_sent_keeps_to_the_limit(anyio_backend: Any, url: str) -> None:
    async with running(anyio_backend, Limits(message=1000)) as host, serving(host, url, **LINES) as server:
        client = await dial(host, server.url, **LINES)
        with pytest.raises(TooLarge, match="1000"):
            client.transport.send(b"x" * 1001)
        client.transport.send(b"small")
        assert await (await server.gate.peer()).received(1) == [b"small"]


# -- TLS after the first words -----------------------------------------------------------------------------------------------


def upgrading(first: bytes, tls: ssl.SSLContext) -> Callable[[Raw], Any]:
    """A server that says something in plain, then wants TLS, and repeats what it hears."""

    async def answer(raw: Raw) -> None:
        await raw.send(first)
        try:
            stream = await TLSStream.wrap(raw.stream, server_side=True, ssl_context=tls)
            while True:
                await stream.send(await stream.receive())
        except (anyio.EndOfStream, anyio.BrokenResourceError, ssl.SSLError):
            return

    return answer


async def test_tls_begins_after_the_first_words_of_the_server(
    anyio_backend: Any, authority: trustme.CA, server_tls: ssl.SSLContext
) -> None:
    async with running(anyio_backend) as host, raw_server(upgrading(b"hello\n", server_tls)) as port:
        client = await dial(host, f"tls://localhost:{port}", tls=client_tls(authority), **LINES)
        client.transport.send(b"secret")
        assert await client.received(2) == [b"hello", b"secret"]


@pytest.mark.parametrize(
    ("first", "why"),
    [
        (b"hello\nPUB x", "5 bytes of plain text where TLS should begin"),
        (b"goodbye\n", r"it begins with b'goodbye"),
        (b"h" * 65536, "does not end within 65536 bytes"),
    ],
)
async def test_other_words_before_tls_are_no_connection(
    anyio_backend: Any, server_tls: ssl.SSLContext, authority: trustme.CA, first: bytes, why: str
) -> None:
    async with running(anyio_backend) as host, raw_server(upgrading(first, server_tls)) as port:
        with pytest.raises(ConnectFailed, match=why):
            await dial(host, f"tls://localhost:{port}", tls=client_tls(authority), **LINES)


async def test_a_server_that_says_nothing_before_tls_is_given_up(anyio_backend: Any, authority: trustme.CA) -> None:
    async def silent(raw: Raw) -> None:
        await raw.rest()

    async def gone(raw: Raw) -> None:
        return

    async with running(anyio_backend, Limits(handshake_timeout=0.2)) as host, raw_server(silent) as port:
        with pytest.raises(ConnectFailed, match="timed out after 0.2 s waiting for the server's plain text"):
            await dial(host, f"tls://localhost:{port}", tls=client_tls(authority), **LINES)
    async with running(anyio_backend) as host, raw_server(gone) as port:
        with pytest.raises(ConnectFailed, match="closed the connection before TLS"), anyio.fail_after(BOUND):
            await dial(host, f"tls://localhost:{port}", tls=client_tls(authority), **LINES)


async def test_polybus_is_no_server_that_begins_in_plain(anyio_backend: Any, server_tls: ssl.SSLContext) -> None:
    async with running(anyio_backend) as host:
        await refused(serving(host, "tls://127.0.0.1:0", tls=server_tls, **LINES), Unsupported, match="starts in plain text")


async def test_a_client_certificate_is_shown_to_authenticate(
    anyio_backend: Any, authority: trustme.CA, server_tls: ssl.SSLContext
) -> None:
    lines = {**LINES, "framing": LinesAfterTls()}
    async with running(anyio_backend) as host, serving(host, "tls://127.0.0.1:0", tls=server_tls, **lines) as server:
        await dial(host, server.url, tls=client_tls(authority, "alice@plant.example"), **lines)
        await server.gate.peer()
        peer = server.gate.handshakes[0].tls_peer
        assert peer is not None
        assert ("email", "alice@plant.example") in peer["subjectAltName"]
