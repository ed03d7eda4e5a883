"""The whole log of a bad day: misfits, refused tokens and reconnects are a page that people read."""

from __future__ import annotations

import logging
import re

import pytest

from polybus import Backoff, Bus, Unauthorized, connect
from polybus._bus.bus import parts_of
from polybus.plugins import Handshake
from tests.support import bounded, eventually

pytestmark = pytest.mark.anyio
MANY = 1000
RECONNECTS = 10


@bounded
async def test_a_thousand_misfits_a_thousand_refused_tokens_and_ten_reconnects_are_forty_lines_each_useful(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def authenticate(handshake: Handshake) -> str | None:
        return "ann" if handshake.headers.get("authorization") == "Bearer good-token" else None

    bus = Bus(authenticate=authenticate, authorize=lambda peer, verb, subject: True)

    @bus.on("count.>", queue=MANY)
    async def count(body: int) -> None:
        raise AssertionError("none of them fits")

    with caplog.at_level(logging.DEBUG, "polybus"):
        async with (
            bus.serve("ubre+memory://bad-day") as server,
            # However short a link is up, it is longer than that: none counts as one that had only just come back.
            connect(
                server.url, headers={"authorization": "Bearer good-token"}, backoff=Backoff(initial=1e-9, maximum=1e-9)
            ) as client,
        ):
            for each in (bus, client):  # what is logged of a machine that has other work to do is another test's
                parts_of(each).services.running.workers.stalls.clock = lambda: 0.0
            for number in range(MANY):
                await client.publish(f"count.{number}", "no")
            await eventually(lambda: bus.stats().dropped == MANY)
            for _ in range(MANY):
                with pytest.raises(Unauthorized):
                    async with connect(server.url, headers={"authorization": "Bearer bad-token"}):
                        pass
            for number in range(RECONNECTS):
                await bus.peers[0].aclose("maintenance")
                await eventually(lambda: client.stats().reconnects > number and bus.peers)  # noqa: B023

    lines = [(record.name, record.getMessage()) for record in caplog.records if record.levelno >= logging.INFO]
    assert 2 * RECONNECTS <= len(lines) <= 40, lines
    links, refused, misfits = (
        [text for name, text in lines if name == wanted] for wanted in ("polybus.link", "polybus.security", "polybus")
    )
    assert len(links) + len(refused) + len(misfits) == len(lines), lines
    assert [text for text in links if not ("ubre+memory://bad-day" in text and re.search("maintenance|is back", text))] == []
    assert [text for text in refused if "UNAUTHENTICATED: not authenticated; it brought authorization" not in text] == []
    assert [
        text for text in misfits if not re.search(r"does not fit.*\.count and is skipped.*expected `int`", text, re.I | re.S)
    ] == []
    assert f"{MANY - 3} more" in refused[-1] and f"{MANY - 1} more" in misfits[-1]
    assert not any(record.exc_info for record in caplog.records)
    assert "-token" not in caplog.text
