"""What a stranger can make a bus write into its log."""

import logging
import math
from collections.abc import Callable
from contextlib import suppress
from urllib.parse import urlsplit

import anyio
import pytest

from polybus import Bus, ConnectFailed, Disconnected, Forbidden, Kind, Message, RequestError, Route, bridge, connect
from polybus._util.logs import Warnings
from tests.support import eventually

MANY = 50
UPGRADE = (
    b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\nupgrade: websocket\r\nconnection: upgrade\r\nsec-websocket-version: 13\r\n"
    b"sec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\nsec-websocket-protocol: ubre\r\n\r\n"
)


async def test_publications_that_cannot_be_relayed_are_one_line_and_all_counted(caplog: pytest.LogCaptureFixture) -> None:
    bus = Bus()
    bus.relay("chat.>")
    async with (
        bus.serve("jrep+tcp://127.0.0.1:0") as jrep,
        bus.serve("ubre+tcp://127.0.0.1:0") as ubre,
        connect(jrep.url) as hears,
        connect(ubre.url) as stranger,
        hears.subscribe("chat.>") as chat,
    ):
        for number in range(MANY):  # to J.REP that is the name of an answer
            await stranger.publish("chat.a:RespondTo:RPC", number)
        await stranger.publish("chat.b", "the last one")
        assert (await anext(chat)).body == "the last one"
    _, others = [text for record in caplog.records if "relayed" in (text := record.getMessage())]
    assert others.startswith(f"{MANY - 1} more within"), "told when the bus stops, at the latest"
    assert bus.stats().dropped == MANY


async def test_subjects_that_go_too_far_fill_neither_the_log_nor_the_table_of_warnings(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Bus() as bus:
        for number in range(2 * 300):
            bus._pubsub.relay.stop(Message(Kind.PUBLISH, f"x.{number // 2}"), 9)
        assert not bus._services.running.warnings._kinds
        assert bus.stats().dropped == 600
    assert caplog.text.count("Limits.hops") == 256


async def test_publications_that_cannot_cross_a_bridge_are_one_line_between_others(caplog: pytest.LogCaptureFixture) -> None:
    here, there, far, heard = Bus(), Bus(), Bus(), list[object]()

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
        for number in range(MANY):
            await stranger.publish("chat.a:RespondTo:RPC", number)
            await stranger.publish("chat.b", number)
        await eventually(lambda: len(heard) == MANY)
    assert len([record for record in caplog.records if "could not cross" in record.getMessage()]) == 1


COUNTED = " (others like it are summarised within a minute)"


def test_of_many_warnings_three_are_written_and_others_counted_for_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    clock = [100.0]
    warnings, logger = Warnings(lambda: clock[0]), logging.getLogger("polybus")
    for clock[0] in (100.0, 130.0, 161.0):
        for number in range(20):
            warnings.warn(logger, "one %d", number)
    warnings.warn(logger, "another")
    assert [record.getMessage() for record in caplog.records] == [
        *("one 0", "one 1", f"one 2{COUNTED}", "37 more within 61 s, the last of them: one 19", "one 0", "one 1"),
        *(f"one 2{COUNTED}", "another"),
    ]
    warnings.tell()
    warnings.tell()
    assert caplog.records[-1].getMessage() == "17 more within 0 s, the last of them: one 19"
    assert len(caplog.records) == 9


def test_a_count_is_told_when_the_minute_is_over_though_nothing_follows(caplog: pytest.LogCaptureFixture) -> None:
    watched = list[float]()
    warnings = Warnings(lambda: 100.0, lambda _, when: watched.append(when))
    for number in range(20):
        warnings.warn(logging.getLogger("polybus"), "one %d", number)
    assert watched == [160.0]
    assert warnings.expire(159.0) == 160.0
    assert warnings.expire(160.0) == math.inf
    assert caplog.records[-1].getMessage() == "17 more within 60 s, the last of them: one 19"


def test_warnings_about_more_things_than_are_told_apart_are_counted_together(caplog: pytest.LogCaptureFixture) -> None:
    warnings = Warnings(lambda: 100.0)
    for number in range(1_000):
        warnings.warn(logging.getLogger("polybus"), "one %d", number, about=number, lines=1)
    assert 256 <= len(caplog.records) <= 258
    assert len(warnings._kinds) <= 257
    warnings.tell()
    assert caplog.records[-1].getMessage().endswith("the last of them: one 999")


def test_texts_of_peers_among_the_arguments_have_escapes_for_control_characters(caplog: pytest.LogCaptureFixture) -> None:
    Warnings().warn(
        logging.getLogger("polybus"), "%s has ended: %.200s", "127.0.0.1:9", "bye\x1b[2J\nERROR polybus: all is lost"
    )
    assert caplog.records[0].getMessage() == r"127.0.0.1:9 has ended: bye\x1b[2J\nERROR polybus: all is lost"


@pytest.mark.parametrize(
    ("transport", "nonsense", "said"),
    [("tcp", b"\0\0\0\x02{]", "malformed message"), ("tcp", b"\xfe\0\0\0", "the limit is"), ("ws", UPGRADE + b"\xff\xff", "")],
)
async def test_who_connects_again_and_again_to_send_nonsense_does_not_fill_the_log(
    transport: str, nonsense: bytes, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    bus = Bus()
    async with bus.serve(f"ubre+{transport}://127.0.0.1:0") as server:
        port = urlsplit(server.url).port or 0
        for _ in range(30):
            async with await anyio.connect_tcp("127.0.0.1", port) as stream:
                await stream.send(nonsense)
                await stream.send_eof()
                with suppress(anyio.EndOfStream, anyio.BrokenResourceError):
                    while True:
                        await stream.receive()
        await eventually(lambda: not bus.stats().links)
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 4 and lines[2].endswith(COUNTED) and lines[3].startswith("27 more within ")
    assert all(said in line for line in lines)
    assert bus.stats().malformed == (30 if said == "malformed message" else 0)


async def test_hooks_that_fail_for_each_stranger_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def authenticate(_: object) -> object:
        raise RuntimeError("the database is away")

    def authorize(_peer: object, _verb: str, subject: str) -> bool:
        raise RuntimeError(f"no rule for {subject}")

    bus, other = Bus(authenticate=authenticate), Bus(authorize=authorize)
    async with bus.serve("ubre+tcp://127.0.0.1:0") as closed, other.serve("ubre+tcp://127.0.0.1:0") as server:
        for _ in range(30):
            with pytest.raises((ConnectFailed, Disconnected)):
                async with connect(closed.url) as stranger:
                    await stranger.request("anything")
        async with connect(server.url) as stranger:
            for number in range(30):
                with pytest.raises(Forbidden):
                    await stranger.request(f"no.{number}")
    for word in ("authenticate", "authorize"):
        records = [record for record in caplog.records if f"{word}" in record.getMessage() and record.exc_info]
        assert len(records) == 3, word


EVIL = "x\n2026-11-29 WARNING polybus.security: forged\r\x1b[2J\u202e" + "a" * 100_000


def _raise_from(text: str) -> None:
    try:
        raise KeyError(text)
    except KeyError as error:
        raise LookupError("no article") from error


def _raise_group(text: str) -> None:
    raise ExceptionGroup(text, [ValueError(text), ValueError(text)])


def _raise_with_a_note(text: str) -> None:
    error = ValueError("no article")
    error.add_note(text)
    raise error


def _raise(text: str) -> None:
    raise LookupError(f"no article {text}")


@pytest.mark.parametrize("fails", [_raise, _raise_from, _raise_group, _raise_with_a_note])
async def test_what_a_peer_has_sent_writes_no_lines_of_its_own_by_what_an_application_raises(
    caplog: pytest.LogCaptureFixture, fails: Callable[[str], None]
) -> None:
    def authorize(_peer: object, _verb: str, subject: str) -> bool:
        if subject == "refused":
            fails(EVIL)
        return True

    bus = Bus(authorize=authorize)
    bus.handle("order")(lambda text: fails(text))
    bus.on("news")(lambda text: fails(text))
    async with bus.serve("ubre+tcp://127.0.0.1:0") as server, connect(server.url) as stranger:
        for subject in ("order", "refused"):
            with pytest.raises(RequestError):
                await stranger.request(subject, EVIL)
        await stranger.publish("news", EVIL)
        await eventually(lambda: len([record for record in caplog.records if record.exc_info]) == 3)
    for record in caplog.records:
        written = logging.Formatter("%(levelname)s %(message)s").format(record)
        head, *others = written.split("\n")
        assert head.startswith(record.levelname)
        assert [line for line in others if line and not line.startswith("  ")] == []
        assert not {"\r", "\x1b", "\u202e"} & {*written}
        assert len(written) < 30_000
