"""What a stranger can make a bus write into its log."""

from __future__ import annotations

import logging

import pytest

from polybus import Bus, Route, bridge, connect
from tests.support import bounded, eventually

pytestmark = pytest.mark.anyio
MANY = 50


@bounded
async def test_publications_that_cannot_be_relayed_are_one_line_in_the_log_and_all_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bus = Bus()
    bus.relay("chat.>")
    async with (
        bus.serve("jrep+tcp://127.0.0.1:0") as jrep,
        bus.serve("ubre+tcp://127.0.0.1:0") as ubre,
        connect(jrep.url) as hears,
        connect(ubre.url) as stranger,
        hears.subscribe("chat.>") as chat,
    ):
        with caplog.at_level(logging.WARNING, "polybus"):
            for number in range(MANY):  # to J.REP that is the name of an answer
                await stranger.publish("chat.a:RespondTo:RPC", number)
            await stranger.publish("chat.b", "the last one")
            assert (await anext(chat)).body == "the last one"
    assert len([record for record in caplog.records if "relayed" in record.getMessage()]) == 1
    assert bus.stats().dropped == MANY


@bounded
async def test_publications_that_cannot_cross_a_bridge_are_one_line_in_the_log_also_between_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    here, there, far = Bus(), Bus(), Bus()
    heard = list[object]()

    @far.on("chat.>", queue=1000)
    async def on_chat(body: object) -> None:
        heard.append(body)

    async with (
        here.serve("ubre+tcp://127.0.0.1:0") as near,
        far.serve("jrep+tcp://127.0.0.1:0") as end,
        connect(end.url, bus=there),
        bridge(here, there, routes=[Route("chat.>", "chat.{rest}", kinds={"publish"})]),
        connect(near.url) as stranger,
    ):
        with caplog.at_level(logging.WARNING, "polybus"):
            for number in range(MANY):
                await stranger.publish("chat.a:RespondTo:RPC", number)
                await stranger.publish("chat.b", number)
            await eventually(lambda: len(heard) == MANY)
    assert len([record for record in caplog.records if "could not cross" in record.getMessage()]) == 1
