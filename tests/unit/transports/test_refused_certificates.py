"""Servers with TLS that refuse a client for its certificate or the lack of one, and what both sides are told."""

import contextlib
import logging
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

from polybus import Bus, ConnectFailed, Handshake, LocalProtocolError, connect
from tests.loops import both_backends  # noqa: F401
from tests.refusal import refused
from tests.support import eventually

from .support import client_tls

pytestmark = pytest.mark.native

ASKED = "does it require a client certificate"
SCHEMES = ["ubre+tls", "ubre+wss", "jrep+https"]
TLS12 = ssl.TLSVersion.TLSv1_2


@contextlib.contextmanager
def openssl_server(context: ssl.SSLContext) -> Iterator[str]:
    """A server whose handshake runs on the socket, so that it sends the alerts that asyncio and trio leave out."""

    def refuse_all() -> None:
        with contextlib.suppress(OSError):
            while True:
                accepted, _ = listener.accept()
                accepted.settimeout(10)
                with context.wrap_socket(accepted, server_side=True, do_handshake_on_connect=False) as connection:
                    with contextlib.suppress(OSError):
                        connection.do_handshake()
                    with contextlib.suppress(OSError):  # a reset would overtake the alert
                        while socket.socket.recv(connection, 4096):
                            pass

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=refuse_all, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_an_alert_about_a_missing_certificate_says_what_to_load(
    scheme: str, strict_tls: ssl.SSLContext, authority: trustme.CA, caplog: pytest.LogCaptureFixture
) -> None:
    with openssl_server(strict_tls) as address:
        for _ in range(3):
            wanted = r"requires a client certificate \(.*load one into tls="
            await refused(connect(f"{scheme}://{address}", tls=client_tls(authority)), ConnectFailed, match=wanted)
    assert "a background task failed" not in caplog.text


@pytest.mark.parametrize("version", [TLS12, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("scheme", SCHEMES)
async def test_an_alert_about_an_unknown_authority_says_whose_certificate_it_is_about(
    scheme: str, version: ssl.TLSVersion, strict_tls: ssl.SSLContext, authority: trustme.CA
) -> None:
    strict_tls.maximum_version = version
    tls = client_tls(authority)
    trustme.CA().issue_cert("stranger@example").configure_cert(tls)
    with openssl_server(strict_tls) as address:
        wanted = r"refuses the client's certificate.*an authority that the server trusts"
        await refused(connect(f"{scheme}://{address}", tls=tls), ConnectFailed, match=wanted)


# On trio, httpx leaves the generator of a body to the collector if it cannot be written.
@pytest.mark.filterwarnings("ignore:Async generator 'httpx:ResourceWarning")
@pytest.mark.parametrize("version", [TLS12, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("scheme", SCHEMES)
async def test_a_server_of_polybus_says_no_reason_so_the_client_asks_for_its_certificate(
    scheme: str, version: ssl.TLSVersion, strict_tls: ssl.SSLContext, authority: trustme.CA
) -> None:
    strict_tls.maximum_version = version
    async with Bus().serve(f"{scheme}://127.0.0.1:0", tls=strict_tls) as server:
        await refused(connect(server.url, tls=client_tls(authority)), ConnectFailed, match=ASKED)


async def test_a_server_without_client_certificates_that_breaks_off_the_handshake_may_be_full(authority: trustme.CA) -> None:
    async with Bus().serve("ubre+tls://127.0.0.1:0", tls=ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)) as server:
        wanted = f"closed the connection during the TLS handshake: it may be full; {ASKED}"
        await refused(connect(server.url, tls=client_tls(authority)), ConnectFailed, match=wanted)


async def test_the_log_of_a_server_says_what_it_does_not_accept(
    strict_tls: ssl.SSLContext, authority: trustme.CA, caplog: pytest.LogCaptureFixture
) -> None:
    tls = client_tls(authority)
    trustme.CA().issue_cert("stranger@example").configure_cert(tls)
    with caplog.at_level(logging.INFO, "polybus.transports"):
        async with Bus().serve("ubre+tls://127.0.0.1:0", tls=strict_tls) as server:
            await refused(connect(server.url, tls=tls), ConnectFailed, match=ASKED)
            await eventually(lambda: "the client's certificate is not accepted (unable to get" in caplog.text)
        empty = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        async with Bus().serve("ubre+tls://127.0.0.1:0", tls=empty) as server:
            await refused(connect(server.url, tls=tls), ConnectFailed)
            await eventually(lambda: "does tls= have a certificate, by load_cert_chain(cert, key)?" in caplog.text)


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_the_system_and_ssl_cert_file_say_whom_every_transport_trusts(
    scheme: str, server_tls: ssl.SSLContext, authority: trustme.CA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus, path = Bus(), tmp_path / "authority.pem"

    @bus.handle("answer")
    def answer() -> int:
        return 42

    authority.cert_pem.write_to_path(path)
    async with bus.serve(f"{scheme}://127.0.0.1:0", tls=server_tls) as server:
        await refused(connect(server.url), ConnectFailed, match="is not trusted")
        monkeypatch.setenv("SSL_CERT_FILE", str(path))
        async with connect(server.url) as client:
            assert await client.request("answer") == 42


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_authenticate_is_shown_the_certificate_on_every_transport(
    scheme: str, strict_tls: ssl.SSLContext, authority: trustme.CA
) -> None:
    shown: list[Any] = []

    def authenticate(handshake: Handshake) -> str:
        shown.append(handshake.tls_peer)
        return "ann"

    async with Bus(authenticate=authenticate).serve(f"{scheme}://127.0.0.1:0", tls=strict_tls) as server:
        async with connect(server.url, tls=client_tls(authority, "ann@plant.example")):
            pass
    assert shown and all(("email", "ann@plant.example") in peer["subjectAltName"] for peer in shown)


async def test_a_socket_file_serves_no_tls(server_tls: ssl.SSLContext, tmp_path: Path) -> None:
    await refused(Bus().serve(f"ubre+unix://{tmp_path}/bus", tls=server_tls), LocalProtocolError, match="cannot use tls=")


def test_a_server_is_told_of_the_context_for_servers() -> None:
    wrong: Any = True
    with pytest.raises(TypeError, match=r"for example ssl\.create_default_context\(ssl\.Purpose\.CLIENT_AUTH\)"):
        Bus().serve("ubre+wss://127.0.0.1:0", tls=wrong)
