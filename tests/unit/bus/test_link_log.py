"""The logger `polybus.link`: a lost link, its attempts, and how that ends; an outage of an hour is a handful of lines."""

import logging
import re

import pytest

from polybus import Backoff, Bus, connect
from polybus._core.bus.dialer import LinkLog
from tests.support import eventually

AT_ONCE = Backoff(initial=0.001, maximum=0.002)


@pytest.fixture(autouse=True)
def _every_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "polybus.link")


def said(caplog: pytest.LogCaptureFixture) -> list[tuple[int, str]]:
    return [(record.levelno, record.getMessage()) for record in caplog.records if record.name == "polybus.link"]


def test_an_outage_of_an_hour_is_a_handful_of_lines_that_say_how_long_it_lasts(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    log = LinkLog("ubre+ws://user:secret@plant.example:9000/bus", lambda: now)
    log.lost("the server closed", 1, 0.1)
    for attempt in range(2, 122):
        now += 30.0
        log.retrying("connection refused", attempt, 30.0)
    log.back(121)
    lines = said(caplog)
    assert len(lines) <= 9
    assert all("ubre+ws://user:***@plant.example:9000/bus" in line for _, line in lines)
    assert lines[0][0] == logging.WARNING and "lost: the server closed; attempt 1 in 0.1 s" in lines[0][1]
    assert {level for level, _ in lines[1:]} == {logging.INFO}
    assert "attempt 64 in 30.0 s, it is down for 1890 s: connection refused" in lines[-2][1]
    assert lines[-1][1].endswith("is back after 3600 s (121 attempts)")


def test_a_server_that_is_waited_for_in_vain_is_a_warning_from_the_fourth_attempt_on(caplog: pytest.LogCaptureFixture) -> None:
    log = LinkLog("nats+tcp://127.0.0.1:9", lambda: 0.0)
    for attempt in range(1, 17):
        log.waiting("connection refused", attempt, 0.5)
    assert [level for level, _ in said(caplog)] == [logging.INFO] * 2 + [logging.WARNING] * 3
    assert said(caplog)[-1][1] == "no link to nats+tcp://127.0.0.1:9 yet, attempt 16 in 0.5 s: connection refused"


def test_a_link_that_is_lost_as_soon_as_it_is_back_is_told_of_ever_more_seldom(caplog: pytest.LogCaptureFixture) -> None:
    log = LinkLog("ubre+tcp://127.0.0.1:9", lambda: 0.0)
    for attempt in range(1, 1001):
        log.lost("bye", attempt, 30.0)
        log.back(attempt)
    lines = said(caplog)
    assert len(lines) == 20
    assert lines[-2][1].endswith("is lost again: bye; attempt 512 in 30.0 s")


def test_what_a_peer_gives_as_its_reason_has_escapes_for_control_characters(caplog: pytest.LogCaptureFixture) -> None:
    LinkLog("ubre+tcp://127.0.0.1:9", lambda: 0.0).lost("bye\x1b[2J\nERROR polybus: none", 1, 0.1)
    assert r"lost: bye\x1b[2J\nERROR polybus: none; attempt" in said(caplog)[0][1]


async def test_a_lost_link_and_its_return_are_told_with_address_reason_and_attempts(caplog: pytest.LogCaptureFixture) -> None:
    bus = Bus()
    async with bus.serve("ubre+memory://link-log") as server, connect(server.url, backoff=AT_ONCE) as client:
        await bus.peers[0].aclose("maintenance")
        await eventually(lambda: client.stats().reconnects == 1)
    (lost, first), (back, second) = said(caplog)
    assert (lost, back) == (logging.WARNING, logging.INFO)
    assert "ubre+memory://link-log is lost: maintenance; attempt 1 in 0.0" in first
    assert re.fullmatch(r"the link to ubre\+memory://link-log is back after (less than 0\.1|\d\.\d) s \(1 attempt\)", second)


@pytest.mark.parametrize(("seconds", "text"), [(0.0, "less than 0.1 s"), (0.1, "0.1 s"), (9.94, "9.9 s"), (10.4, "10 s")])
def test_how_long_a_link_was_down_is_told_in_tenths(seconds: float, text: str, caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    log = LinkLog("ubre+memory://link-log", lambda: now)
    log.lost("maintenance", 1, 0.1)
    now = seconds
    log.back(2)
    assert said(caplog)[-1][1] == f"the link to ubre+memory://link-log is back after {text} (2 attempts)"


async def test_a_link_that_is_given_up_is_a_warning_with_the_number_of_attempts(caplog: pytest.LogCaptureFixture) -> None:
    async with Bus() as bus, Bus() as client:
        server = bus.serve("ubre+memory://given-up")
        listener = await server.__aenter__()
        async with client.connect(listener.url, backoff=Backoff(initial=0.001, maximum=0.002, attempts=3)):
            await server.__aexit__(None, None, None)
            await eventually(lambda: not client.stats().links)
    level, last = said(caplog)[-1]
    assert level == logging.WARNING
    assert last.startswith("the link to ubre+memory://given-up is given up after 3 attempts: ")


async def test_a_link_that_is_refused_when_it_comes_back_is_given_up_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    user: str | None = "ann"
    bus = Bus(authenticate=lambda handshake: user)
    async with bus.serve("ubre+memory://refused-again") as server, Bus() as client, client.connect(server.url, backoff=AT_ONCE):
        user = None
        await bus.peers[0].aclose("again, please")
        await eventually(lambda: not client.stats().links)
    level, last = said(caplog)[-1]
    assert level == logging.WARNING and "is given up: UNAUTHENTICATED" in last


async def test_nothing_is_told_of_a_link_that_is_left(caplog: pytest.LogCaptureFixture) -> None:
    async with Bus().serve("ubre+memory://left") as server, connect(server.url) as client:
        assert client.stats().links == 1
    assert not said(caplog)
