"""The logger `polybus.security`: who was turned away, and why; in a few lines, however many come, and never with a token."""

import logging
from collections.abc import Callable
from typing import Any

import pytest

from polybus import Bus, Forbidden, Limits, Peer, Unauthorized, connect
from polybus.errors import ConnectFailed
from polybus.plugins import Handshake
from polybus.testing import pair
from tests.refusal import refused

pytestmark = pytest.mark.native
TOKEN = "s3cr3t-t0k3n"
MANY = 100


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "polybus.security"]


def known(handshake: Handshake) -> str | None:
    return "ann" if handshake.headers.get("authorization") == "Bearer good" else None


def tells_the_token(handshake: Handshake) -> str | None:
    raise Unauthorized(f"{handshake.headers.get('authorization')} has expired")


async def test_a_refused_token_is_one_line_with_address_and_reason(caplog: pytest.LogCaptureFixture) -> None:
    bus = Bus(authenticate=known)
    async with bus.serve("ubre+ws://127.0.0.1:0/bus") as server:
        await refused(connect(server.url, headers={"authorization": f"Bearer {TOKEN}"}), Unauthorized)
        await refused(connect(server.url), Unauthorized)
    first, second = said(caplog)
    assert first.startswith("refused 127.0.0.1:") and first.endswith("not authenticated; credentials sent: authorization")
    assert "credentials sent: none" in second
    assert {record.levelno for record in caplog.records if record.name == "polybus.security"} == {logging.WARNING}


@pytest.mark.parametrize("authenticate", [known, tells_the_token])
async def test_of_many_refused_tokens_there_are_four_lines_one_of_them_a_count(
    authenticate: Callable[[Handshake], str | None], caplog: pytest.LogCaptureFixture
) -> None:
    bus = Bus(authenticate=authenticate)
    with caplog.at_level(logging.DEBUG):
        async with bus.serve("ubre+memory://refused-tokens") as server:
            for _ in range(MANY):
                await refused(connect(server.url, headers={"authorization": f"Bearer {TOKEN}"}), Unauthorized)
    lines = said(caplog)
    assert len(lines) == 4
    assert lines[-1].startswith(f"{MANY - 3} more within ") and "UNAUTHENTICATED" in lines[-1]
    assert TOKEN not in caplog.text


@pytest.mark.parametrize(
    ("headers", "error", "seen", "option"),
    [
        ({"origin": "https://evil.example"}, Forbidden, "Origin 'https://evil.example'", "origins=['https://evil.example']"),
        ({"host": "evil.example"}, ConnectFailed, "Host 'evil.example'", "hosts=['evil.example']"),
    ],
    ids=["origin", "host"],
)
async def test_a_refused_origin_or_host_is_told_to_the_log_with_what_would_let_it_in_and_to_the_stranger_without(
    headers: dict[str, str], error: type[Exception], seen: str, option: str, caplog: pytest.LogCaptureFixture
) -> None:
    bus = Bus()
    async with bus.serve("ubre+ws://127.0.0.1:0/bus") as server:
        with pytest.raises(error) as told:
            async with connect(server.url, headers=headers):
                pass
    (line,) = said(caplog)
    assert line.startswith("refused 127.0.0.1:") and seen in line and option in line and "serve() or attach()" in line
    assert seen in str(told.value) and option.partition("=")[0] in str(told.value)
    assert option not in str(told.value)


async def test_who_comes_while_too_many_are_there_is_told_of_too(caplog: pytest.LogCaptureFixture) -> None:
    bus = Bus(limits=Limits(peers=1))
    async with bus.serve("ubre+ws://127.0.0.1:0/bus") as server, connect(server.url):
        await refused(connect(server.url), ConnectFailed)
    (line,) = said(caplog)
    assert line.startswith("refused 127.0.0.1:") and "Limits.peers" in line


def only_whoami(peer: Peer, verb: str, subject: str | int) -> bool:
    return subject == "whoami"


async def only_whoami_later(peer: Peer, verb: str, subject: str | int) -> bool:
    return subject == "whoami"


@pytest.mark.parametrize("authorize", [only_whoami, only_whoami_later])
async def test_refusals_of_authorize_are_lines_with_verb_subject_and_peer_and_of_many_a_count(
    authorize: Any, caplog: pytest.LogCaptureFixture
) -> None:
    bus = Bus(authorize=authorize)
    bus.handle("whoami")(lambda: "ann")
    bus.handle("safe.open")(lambda: "gold")
    with caplog.at_level(logging.INFO):
        async with pair(bus) as client:
            await client.publish("safe.opened", 1)
            await refused(client.subscribe("safe.>"), Forbidden)
            for _ in range(MANY):
                with pytest.raises(Forbidden):
                    await client.request("safe.open")
            await client.request("whoami")
            peer = bus.peers[0]
    lines = said(caplog)
    assert lines[:3] == [
        f"refused {verb} of {subject!r} to {peer}: authorize does not allow it"
        for verb, subject in (("publish", "safe.opened"), ("subscribe", "safe.>"), ("request", "safe.open"))
    ]
    assert len(lines) == 6 and lines[-1].startswith(f"{MANY - 3} more within ")
    assert {record.levelno for record in caplog.records if record.name == "polybus.security"} == {logging.INFO}
