"""Clients that come by another transport than the server's, or do not trust it: both sides say what it is, and at once."""

import logging
import ssl

import pytest
import trustme

from polybus import Bus, BusError, ConnectFailed, Limits, connect
from tests.loops import both_backends  # noqa: F401
from tests.refusal import refused
from tests.support import eventually

from .support import client_tls

pytestmark = pytest.mark.native
PATIENT = Limits(handshake_timeout=600.0, connect_timeout=600.0)
"""So that only what happens at once ends within a test."""


def said(caplog: pytest.LogCaptureFixture) -> str:
    return "\n".join(record.getMessage() for record in caplog.records if record.name == "polybus.transports")


@pytest.mark.parametrize(("served", "dialled"), [("ws", "wss"), ("tcp", "tls")])
async def test_tls_to_a_plain_port_is_told_at_once(served: str, dialled: str) -> None:
    bus, client = Bus(limits=PATIENT), Bus(limits=PATIENT)
    async with bus.serve(f"ubre+{served}://127.0.0.1:0") as server:
        entering = client.connect(server.url.replace(f"{served}:", f"{dialled}:"))
        await refused(entering, ConnectFailed, match=f"does not use TLS on this port.* instead of {dialled}://")


async def test_frames_of_tcp_to_a_websocket_server_are_told_at_once() -> None:
    bus, client = Bus(limits=PATIENT), Bus(limits=PATIENT)
    async with bus.serve("ubre+ws://127.0.0.1:0") as server:
        with pytest.raises(BusError, match=r"\(received HTTP instead of length-prefixed frames: use ws://"):
            async with client.connect(server.url.replace("ws:", "tcp:")) as peer:
                await peer.request("anything")


@pytest.mark.parametrize("transport", ["wss", "tls"])
async def test_the_log_of_a_server_says_that_a_client_may_not_trust_it(
    transport: str, server_tls: ssl.SSLContext, caplog: pytest.LogCaptureFixture
) -> None:
    bus = Bus()
    with caplog.at_level(logging.INFO, "polybus.transports"):
        async with bus.serve(f"ubre+{transport}://127.0.0.1:0", tls=server_tls) as server:
            await refused(connect(server.url), ConnectFailed, match="is not trusted")
            await eventually(lambda: said(caplog))
    assert "no connection: the client " in said(caplog) and "trust this server's certificate" in said(caplog)


async def test_clients_without_tls_are_asked_about_it_and_do_not_fill_the_log_of_a_server_with_it(
    server_tls: ssl.SSLContext, caplog: pytest.LogCaptureFixture
) -> None:
    bus = Bus()
    with caplog.at_level(logging.INFO, "polybus.transports"):
        async with bus.serve("ubre+wss://127.0.0.1:0", tls=server_tls) as server:
            for _ in range(20):
                await refused(connect(server.url.replace("wss:", "ws:")), ConnectFailed, match=r"try wss:// \(TLS\)")
    lines = said(caplog).splitlines()
    assert len(lines) == 4 and lines[-1].startswith("17 more within ")
    assert "does not use TLS" in lines[0]


def test_the_context_of_the_wrong_side_is_refused_at_the_call(authority: trustme.CA, server_tls: ssl.SSLContext) -> None:
    with pytest.raises(ValueError, match=r"ssl\.create_default_context\(ssl\.Purpose\.CLIENT_AUTH\).*load_cert_chain"):
        Bus().serve("ubre+wss://127.0.0.1:0", tls=client_tls(authority))
    with pytest.raises(ValueError, match=r"ssl\.create_default_context\(cafile=\.\.\.\)"):
        connect("ubre+wss://127.0.0.1:9", tls=server_tls)
