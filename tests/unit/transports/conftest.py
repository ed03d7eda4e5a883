"""A resource that a test leaves open fails its module: an unclosed socket is a warning, and warnings are errors."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:  # Pyodide has neither of them
    import ssl

    import trustme


@pytest.fixture(scope="module", autouse=True)
def nothing_is_left_open() -> Iterator[None]:
    """One collection per module: one per test would take longer than the tests."""
    yield
    gc.collect()


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    import trustme

    return trustme.CA()


@pytest.fixture(scope="module")
def server_tls(authority: trustme.CA) -> ssl.SSLContext:
    import ssl

    return _for_a_server(authority, ssl.CERT_OPTIONAL)


@pytest.fixture
def strict_tls(authority: trustme.CA) -> ssl.SSLContext:
    import ssl

    return _for_a_server(authority, ssl.CERT_REQUIRED)


def _for_a_server(authority: trustme.CA, client_certificate: ssl.VerifyMode) -> ssl.SSLContext:
    import ssl

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("localhost", "127.0.0.1").configure_cert(context)
    authority.configure_trust(context)
    context.verify_mode = client_certificate
    return context
