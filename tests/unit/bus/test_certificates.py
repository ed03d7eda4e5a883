"""A certificate that clients refuse, or soon will, is told of by the server that shows it."""

import logging
import ssl
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import trustme

from polybus import Broker, Bus

TODAY = datetime.now(UTC)
AUTHORITY = trustme.CA()
STATES = {"has expired": (-30, -1), "is not valid before": (1, 90), "expires on": (-80, 13), "": (-80, 15)}
"""What is said of a certificate that is valid from one day to another one; 0 is today."""


def context(says: str, **options: Any) -> ssl.SSLContext:
    begin, end = (TODAY + timedelta(days=days) for days in STATES[says])
    made = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    AUTHORITY.issue_cert("127.0.0.1", not_before=begin, not_after=end, **options).configure_cert(made)
    return made


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("says", STATES)
@pytest.mark.parametrize("url", ["ubre+tls://127.0.0.1:0", "ubre+wss://127.0.0.1:0/bus", "jrep+https://127.0.0.1:0"])
async def test_a_server_says_once_what_its_certificate_lacks(url: str, says: str, caplog: pytest.LogCaptureFixture) -> None:
    async with Bus().serve(url, tls=context(says)) as listener:
        assert [f"{listener.url} {says}" in line for line in told(caplog)] == ([True] if says else [])
        assert all(getattr(record, "address", "") == listener.url for record in caplog.records)


async def test_so_does_a_broker(caplog: pytest.LogCaptureFixture) -> None:
    async with Broker("csb+tls://127.0.0.1:0", "csb+tcp://127.0.0.1:0", tls=context("has expired")) as broker:
        assert [f"{broker.client_urls[0]} has expired" in line for line in told(caplog)] == [True]


async def test_who_binds_for_several_workers_says_it_for_all(caplog: pytest.LogCaptureFixture) -> None:
    tls = context("expires on")
    binds: Any
    serves: Any
    binds, serves = (Bus().serve("ubre+tls://127.0.0.1:0", tls=tls) for _ in range(2))
    serves.serve_at(await binds.bind())
    async with serves:
        assert len(told(caplog)) == 1


async def test_a_certificate_that_is_shown_to_clients_with_their_own_is_checked_too(caplog: pytest.LogCaptureFixture) -> None:
    tls = context("has expired", key_type=trustme.KeyType.RSA)
    tls.verify_mode = ssl.CERT_REQUIRED
    async with Bus().serve("ubre+tls://127.0.0.1:0", tls=tls):
        assert len(told(caplog)) == 1


async def test_a_server_without_a_certificate_serves_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    async with Bus().serve("ubre+tls://127.0.0.1:0", tls=ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)):
        assert told(caplog) == []
