"""Why a TLS handshake failed, as the client is told, and what to do about it."""

import datetime
import ssl
from collections.abc import Callable
from ssl import TLSVersion
from typing import Any

import pytest
import trustme

from polybus.transports.tls import client_fault

AUTHORITY = trustme.CA()
NOW = datetime.datetime.now(datetime.UTC)
DAY = datetime.timedelta(days=1)


def _failure(server: ssl.SSLContext, client: ssl.SSLContext, answer: bytes = b"") -> ssl.SSLError:
    """The client's error in a handshake between two contexts, or with a server that sends these bytes."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(to_client, to_server, server_hostname="shop.example")
    theirs = server.wrap_bio(to_server, to_client, server_side=True)
    to_client.write(answer)
    for _ in range(4):
        try:
            ours.do_handshake()
            ours.read(1)  # TLS 1.3 refuses a client after its handshake
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            return error
        try:
            theirs.do_handshake()
        except ssl.SSLError:  # the client is told
            pass
    raise AssertionError


def _server(
    name: str = "shop.example", since: datetime.timedelta = -DAY, until: datetime.timedelta = DAY, **settings: Any
) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    AUTHORITY.issue_cert(name, not_before=NOW + since, not_after=NOW + until).configure_cert(context)
    return _set(context, settings)


def _client(trusts: bool = True, **settings: Any) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if trusts:
        AUTHORITY.configure_trust(context)
    return _set(context, settings)


def _set(context: ssl.SSLContext, settings: dict[str, Any]) -> ssl.SSLContext:
    for name, value in settings.items():
        setattr(context, name, value)
    return context


@pytest.mark.parametrize(
    ("fails", "reason", "advice"),
    [
        (lambda: _failure(_server(since=-2 * DAY, until=-DAY), _client()), "certificate has expired", "renew it, or set the"),
        (lambda: _failure(_server(since=DAY, until=2 * DAY), _client()), "certificate is not valid yet", "wait, or set the"),
        (lambda: _failure(_server("b.example"), _client()), "certificate is not for shop.example", "connect to a name in it"),
        (lambda: _failure(_server(), _client(trusts=False)), "certificate is not trusted (", "with --ca"),
        (lambda: _failure(_server(), _client(), b"HTTP/1.1 400 Bad Request\r\n"), "does not use TLS on", "instead of tls://"),
        (
            lambda: _failure(_server(verify_mode=ssl.CERT_REQUIRED), _client()),
            "requires a client certificate",
            "load one into tls=",
        ),
        (
            lambda: _failure(_server(minimum_version=TLSVersion.TLSv1_3), _client(maximum_version=TLSVersion.TLSv1_2)),
            "the TLS handshake failed (",
            "compare the TLS versions and ciphers",
        ),
    ],
)
def test_a_failed_handshake_has_a_reason_and_advice(fails: Callable[[], ssl.SSLError], reason: str, advice: str) -> None:
    said, then = client_fault(fails())
    assert reason in said and advice in then
