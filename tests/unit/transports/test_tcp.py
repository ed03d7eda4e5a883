"""What only tcp, tls and unix have."""

import errno
import os
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
import trustme

from polybus.errors import ConnectFailed, LocalProtocolError, Unauthorized
from polybus.limits import Limits
from polybus.plugins import Closed
from polybus.transports import SecureWebSocket, Tcp, Tls, Unix, WebSocket
from tests.loops import every_loop  # noqa: F401  # a fixture
from tests.refusal import refused
from tests.support import HAS_IPV6, free_port

from .support import Host, Raw, adapter_of, bare, client_tls, dial, raw_peer, raw_server, running, serving


async def test_a_silent_peer_gets_a_keep_alive_and_is_not_cut(anyio_backend: Any) -> None:
    async with bare(anyio_backend, "tcp://127.0.0.1:0") as (host, raw, there):
        now = host.time()
        for seconds in (0, 14.9, 15, 29.9, 30, 300):
            there.transport.tick(now + seconds)
            await anyio.wait_all_tasks_blocked()
        assert await raw.exactly(12) == b"\0" * 12
        assert there.why is None


async def test_a_peer_that_breaks_the_framing_and_goes_on_is_told_once(anyio_backend: Any) -> None:
    async with bare(anyio_backend, "tcp://127.0.0.1:0") as (_, raw, there):
        transport: Any = there.transport
        for _ in range(3):
            transport.data_received(b"\x7f\0\0\0")
        assert (await raw.rest()).count(b"the limit is") == 1


@pytest.mark.parametrize("transport", ["tcp", "ws"])
async def test_a_connection_that_meets_itself_is_refused_and_keeps_no_port(
    anyio_backend: Any, transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes about where nobody listens, and the system chooses that very port for the end that dials."""

    async def meet(host: str, port: int) -> socket.socket:
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.connect((host, port))
        sock.setblocking(False)
        return sock

    monkeypatch.setattr("polybus.transports._stream.dial.connect_tcp", meet)
    port = free_port()
    async with running(anyio_backend) as host:
        with pytest.raises(ConnectFailed, match="no server listens there") as caught:
            await dial(host, f"{transport}://127.0.0.1:{port}")
        assert caught.value.errno == errno.ECONNREFUSED
    with socket.create_server(("127.0.0.1", port)):
        pass


TLS: dict[str, Any] = {"tls": ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)}
HEADERS = {"headers": {"authorization": "x"}}


@pytest.mark.parametrize(
    ("url", "options", "text"),
    [
        *[("tcp://127.0.0.1:9", HEADERS, "carries no headers"), ("unix:///s", HEADERS, "carries no headers")],
        *[("tcp://127.0.0.1:9", TLS, "tls://"), ("ws://127.0.0.1:9", TLS, "wss://"), ("unix:///s", TLS, "never")],
    ],
)
async def test_an_option_that_a_transport_does_not_have_is_refused(
    anyio_backend: Any, url: str, options: dict[str, Any], text: str
) -> None:
    async with running(anyio_backend) as host:
        with pytest.raises(LocalProtocolError, match=text):
            await dial(host, url, **options)


@pytest.mark.parametrize("scheme", ["tcp", "ws", "tls", "wss"])
async def test_a_server_has_tls_where_its_url_says_so(anyio_backend: Any, scheme: str) -> None:
    options, text = (TLS, "not encrypted|use") if scheme in ("tcp", "ws") else ({}, "needs tls=")
    async with running(anyio_backend) as host:
        await refused(serving(host, f"{scheme}://127.0.0.1:0", **options), LocalProtocolError, match=text)


@pytest.mark.parametrize(
    ("url", "text"),
    [
        *(
            ("tcp://127.0.0.1", "the port is missing"),
            ("tcp://:9000", "the host is missing"),
            ("ws:///bus", "the host is missing"),
        ),
        *((f"tcp://127.0.0.1:{port}", "must be a number from 0 to 65535") for port in ("70000", "http")),
        *((url, "three slashes") for url in ("unix://host/path", "unix://")),
    ],
)
def test_a_url_that_lacks_something_says_what(url: str, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        adapter_of(url).connector(url)


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.8.8.8", "localhost", "[::1]", "0.0.0.0", "[::]", "192.0.2.1", "plant.example"]
)
def test_a_loopback_address_is_private(host: str) -> None:
    private = host in ("127.0.0.1", "127.8.8.8", "localhost", "[::1]")
    for adapter in (Tcp(), Tls(), WebSocket()):
        assert adapter.is_private(f"{adapter.name}://{host}:1") is private
    assert SecureWebSocket().is_private(f"wss://{host}") is private
    assert Unix().is_private("unix:///s") is True


async def answered(host: Host, url: str) -> str:
    """The address of a server, which repeats what it is told."""
    here = await dial(host, url)
    here.transport.send(b"x")
    assert await here.received(1) == [b"x"]
    return here.transport.address


@pytest.mark.skipif(not HAS_IPV6, reason="this machine has no IPv6")
@pytest.mark.parametrize("url", ["tcp://[::1]:0", "ws://[::1]:0/bus"])
async def test_ipv6_literals(anyio_backend: Any, url: str) -> None:
    async with running(anyio_backend) as host, serving(host, url, echo=True) as server:
        assert server.url.startswith(url.partition("0")[0])
        assert await answered(host, server.url) == f"[::1]:{server.port}"


async def test_localhost_is_served_on_all_its_addresses_with_one_port(anyio_backend: Any) -> None:
    async with running(anyio_backend) as host, serving(host, "tcp://localhost:0", echo=True) as server:
        assert server.url == f"tcp://localhost:{server.port}"
        for name in ("localhost", "127.0.0.1"):
            await answered(host, f"tcp://{name}:{server.port}")


async def test_names_that_do_not_resolve(anyio_backend: Any) -> None:
    async with running(anyio_backend) as host:
        for url in ("tcp://nobody.invalid:9", "ws://nobody.invalid:9/", f"tcp://{'x' * 70}.example:9"):
            with pytest.raises(ConnectFailed, match="name does not resolve") as caught:
                await dial(host, url)
            assert caught.value.errno is None  # a resolver has numbers of its own


@contextmanager
def never_accepting() -> Iterator[Any]:
    """The address of a server that lets everybody wait."""
    with socket.socket() as full, ExitStack() as fillers:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(4):
            filler = fillers.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
        yield full.getsockname()


async def test_a_server_that_never_accepts_is_given_up(anyio_backend: Any) -> None:
    with never_accepting() as (name, port):
        async with running(anyio_backend, Limits(connect_timeout=0.1)) as host:
            with pytest.raises(ConnectFailed, match=r"timed out after 0\.1 s while connecting") as caught:
                await dial(host, f"tcp://{name}:{port}")
            assert caught.value.errno == errno.ETIMEDOUT


@pytest.fixture
def resolved(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets the addresses that every name has."""

    def to(*addresses: Any) -> None:
        async def found(*_: Any, **__: Any) -> Any:
            kinds = [socket.AF_INET6 if ":" in address[0] else socket.AF_INET for address in addresses]
            return [(kind, socket.SOCK_STREAM, 0, "", address) for kind, address in zip(kinds, addresses, strict=True)]

        monkeypatch.setattr("anyio.getaddrinfo", found)

    return to


async def test_of_a_name_with_several_addresses_the_first_that_answers_is_taken(
    anyio_backend: Any, resolved: Callable[..., None]
) -> None:
    refuses = ("127.0.0.1", free_port())
    with never_accepting() as silent, socket.create_server(("127.0.0.1", 0)) as spare:
        spare.setblocking(False)
        async with running(anyio_backend) as host, serving(host, "tcp://127.0.0.1:0", echo=True) as server:
            live = ("127.0.0.1", server.port)
            for addresses in ((live, spare.getsockname()), (refuses, live), (silent, live), (refuses, silent, live)):
                resolved(*addresses)
                await answered(host, "tcp://several.example:9")
            with pytest.raises(BlockingIOError):  # nobody came: the first had its head start
                spare.accept()
            resolved(refuses, ("255.255.255.255", 9))
            with pytest.raises(ConnectFailed, match="connection refused"):
                await dial(host, "tcp://several.example:9")


@pytest.mark.skipif(not HAS_IPV6, reason="this machine has no IPv6")
@pytest.mark.parametrize(("preferred", "other"), [("127.0.0.1", "::1"), ("::1", "127.0.0.1")])
async def test_addresses_of_both_kinds_are_tried_in_turn(
    anyio_backend: Any, preferred: str, other: str, resolved: Callable[..., None]
) -> None:
    with socket.create_server((preferred, 0), family=socket.AF_INET6 if ":" in preferred else socket.AF_INET) as third:
        name = f"[{other}]" if ":" in other else other
        async with running(anyio_backend) as host, serving(host, f"tcp://{name}:0") as server:
            resolved((preferred, free_port()), (preferred, third.getsockname()[1]), (other, server.port))
            here = await dial(host, "tcp://both.example:9")
            assert here.transport.address == f"{name}:{server.port}"


async def test_a_stale_socket_file_is_replaced_and_removed_in_the_end(anyio_backend: Any, tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    async with running(anyio_backend) as host:
        async with serving(host, f"unix://{path}", echo=True) as server:
            await answered(host, server.url)
        assert not path.exists()


async def test_a_file_that_is_no_socket_is_left_alone(anyio_backend: Any, tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.write_text("precious")
    async with running(anyio_backend) as host:
        await refused(serving(host, f"unix://{path}"), OSError, match="cannot listen on")
    assert path.read_text() == "precious"


async def test_another_server_on_the_same_path_keeps_its_file(anyio_backend: Any, tmp_path: Path) -> None:
    path = tmp_path / "s"
    async with running(anyio_backend) as host:
        async with serving(host, f"unix://{path}"):
            os.rename(path, tmp_path / "old")
            async with serving(host, f"unix://{path}", echo=True) as second:
                # The first one closes inside, as if it ended now.
                await dial(host, second.url)
        assert not path.exists()


# -- TLS


@pytest.fixture(params=["tls://127.0.0.1:0", "wss://127.0.0.1:0/bus"])
def secure_url(request: pytest.FixtureRequest) -> str:
    url: str = request.param
    return url


async def test_frames_and_reasons_pass_through_tls(
    anyio_backend: Any, secure_url: str, authority: trustme.CA, server_tls: ssl.SSLContext
) -> None:
    async with running(anyio_backend) as host, serving(host, secure_url, echo=True, tls=server_tls) as server:
        here = await dial(host, server.url, tls=client_tls(authority))
        there = await server.gate.peer()
        assert server.gate.handshakes[0].tls_peer is None
        assert server.gate.handshakes[0].transport == secure_url.partition(":")[0]
        frames = [b"x" * size for size in (1, 100, 65536, 1_000_000)]
        for frame in frames:
            here.transport.send(frame)
        assert await here.received(4) == frames
        there.transport.close(4401, "expired")
        assert type((await here.end()).error) is Unauthorized
        assert await there.end() == Closed(4401, "expired")
        here = await dial(host, server.url, tls=client_tls(authority))
        there = await server.gate.peer(1)
        here.transport.close(1001, "bye")
        assert await there.end() == Closed(1001, "bye")
        assert await here.end() == Closed(1001, "bye")


async def test_a_client_certificate_is_shown_to_authenticate(
    anyio_backend: Any, secure_url: str, authority: trustme.CA, server_tls: ssl.SSLContext
) -> None:
    async with running(anyio_backend) as host, serving(host, secure_url, tls=server_tls) as server:
        await dial(host, server.url, tls=client_tls(authority, "alice@plant.example"))
        await server.gate.peer()
        peer = server.gate.handshakes[0].tls_peer
        assert peer is not None
        assert ("email", "alice@plant.example") in peer["subjectAltName"]


async def test_a_stranger_who_knocks_in_vain_gets_no_tls(
    anyio_backend: Any, secure_url: str, authority: trustme.CA, server_tls: ssl.SSLContext
) -> None:
    async with running(anyio_backend) as host, serving(host, secure_url, tls=server_tls) as server:
        server.gate.refusal_at_the_door = Unauthorized("full")
        with pytest.raises(ConnectFailed):
            await dial(host, server.url, tls=client_tls(authority))
        assert server.gate.gone == 0


async def test_tls_handshakes_are_bounded_on_both_sides(
    anyio_backend: Any, secure_url: str, server_tls: ssl.SSLContext
) -> None:
    limits = Limits(handshake_timeout=0.1, connect_timeout=0.1)

    async def mute(raw: Raw) -> None:
        await raw.rest()

    async with running(anyio_backend, limits) as host, serving(host, secure_url, tls=server_tls) as server:
        async with raw_peer(server) as raw:
            assert await raw.rest() == b""
        await server.gate.until(lambda: server.gate.gone == 1)
        async with raw_server(mute) as port:
            scheme = secure_url.partition(":")[0]
            with pytest.raises(ConnectFailed):
                await dial(host, f"{scheme}://127.0.0.1:{port}")


async def test_cancelling_connect_anywhere_leaks_nothing(
    anyio_backend: Any, authority: trustme.CA, server_tls: ssl.SSLContext, tmp_path: Path
) -> None:
    urls = ["tcp://127.0.0.1:0", f"unix://{tmp_path}/s", "ws://127.0.0.1:0/", "memory://x", "tls://127.0.0.1:0"]
    for url in urls:
        ours, theirs = (server_tls, client_tls(authority)) if url.startswith("tls") else (None, None)
        async with running(anyio_backend) as host, serving(host, url, tls=ours) as server:
            for steps in range(25):
                await connect_and_cancel(host, server.url, steps, theirs)


async def connect_and_cancel(host: Any, url: str, steps: int, tls: ssl.SSLContext | None) -> None:
    done = False

    async def connect() -> None:
        nonlocal done
        await dial(host, url, tls=tls)
        done = True

    async with anyio.create_task_group() as group:
        group.start_soon(connect)
        for _ in range(steps):
            if not done:
                await anyio.lowlevel.checkpoint()
        group.cancel_scope.cancel()
