"""What a stranger can make a bus write into its log."""

from __future__ import annotations

import logging
from contextlib import suppress
from urllib.parse import urlsplit

import anyio
import pytest

from polybus import Bus, Forbidden, Route, Unauthorized, bridge, connect
from polybus._util.violation_counter import Warnings
from tests.support import bounded, eventually

pytestmark = pytest.mark.anyio
MANY = 50
UPGRADE = (
    b"GET /bus HTTP/1.1\r\nhost: 127.0.0.1\r\nupgrade: websocket\r\nconnection: upgrade\r\nsec-websocket-version: 13\r\n"
    b"sec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\nsec-websocket-protocol: ubre\r\n\r\n"
)


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


@bounded
async def test_who_connects_again_and_again_to_send_nonsense_does_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    bus = Bus()
    async with bus.serve("ubre+tcp://127.0.0.1:0") as server:
        with caplog.at_level(logging.WARNING, "polybus"):
            for number in range(30):
                async with await anyio.connect_tcp("127.0.0.1", urlsplit(server.url).port or 0) as stream:
                    await stream.send(b"\0\0\0\x02{]")
                    await eventually(lambda: bus.stats().malformed == number + 1)  # noqa: B023
    lines = [record.getMessage() for record in caplog.records if "malformed message" in record.getMessage()]
    assert len(lines) == 10 and lines[-1].endswith("(others like this are not logged for up to a minute)")
    assert bus.stats().malformed == 30


def test_warnings_are_written_again_after_a_minute_and_those_of_another_kind_at_once(caplog: pytest.LogCaptureFixture) -> None:
    warnings, logger = Warnings(), logging.getLogger("polybus")
    for now in (100.0, 130.0, 161.0):
        for number in range(20):
            warnings.warn(logger, now, "one %d", number)
    warnings.warn(logger, 161.0, "another")
    said = [record.getMessage() for record in caplog.records]
    assert said == [
        *(f"one {number}" for number in range(9)),
        "one 9 (others like this are not logged for up to a minute)",
        *(f"one {number}" for number in range(9)),
        "one 9 (others like this are not logged for up to a minute)",
        "another",
    ]


@pytest.mark.parametrize(
    ("transport", "nonsense", "said"),
    [("tcp", b"\xfe\0\0\0", "the limit is"), ("ws", b"\xff\xff", "")],
)
@bounded
async def test_who_connects_again_and_again_to_break_the_rules_of_a_transport_does_not_fill_the_log(
    transport: str, nonsense: bytes, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    bus = Bus()
    async with bus.serve(f"ubre+{transport}://127.0.0.1:0/bus" if transport == "ws" else "ubre+tcp://127.0.0.1:0") as server:
        port = urlsplit(server.url).port or 0
        with caplog.at_level(logging.WARNING, "polybus"):
            for _ in range(30):
                async with await anyio.connect_tcp("127.0.0.1", port) as stream:
                    if transport == "ws":
                        await stream.send(UPGRADE)
                        await stream.receive()
                    await stream.send(nonsense)
                    with suppress(anyio.EndOfStream, anyio.BrokenResourceError):
                        while True:
                            await stream.receive()
            await eventually(lambda: not bus.stats().links)
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 10 and lines[-1].endswith("(others like this are not logged for up to a minute)")
    assert all(said in line for line in lines)


@bounded
async def test_hooks_that_fail_for_each_stranger_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def authenticate(_: object) -> object:
        raise RuntimeError("the database is away")

    def authorize(_peer: object, _verb: str, subject: str) -> bool:
        raise RuntimeError(f"no rule for {subject}")

    bus, other = Bus(authenticate=authenticate), Bus(authorize=authorize)
    async with (
        bus.serve("ubre+tcp://127.0.0.1:0") as closed,
        other.serve("ubre+tcp://127.0.0.1:0") as server,
    ):
        with caplog.at_level(logging.WARNING, "polybus"):
            for _ in range(30):
                with pytest.raises(Unauthorized):
                    async with connect(closed.url) as stranger:
                        await stranger.request("anything")
            async with connect(server.url) as stranger:
                for number in range(30):
                    with pytest.raises(Forbidden):
                        await stranger.request(f"no.{number}")
    for word in ("authenticate", "authorize"):
        records = [record for record in caplog.records if f"{word}" in record.getMessage() and record.exc_info]
        assert len(records) == 10, word
