"""Replaying: the clients of a recording say again what they said, and the same comes of it."""

import contextlib
import logging
import math
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from polybus import Bus, ConnectFailed, Context, Forbidden, Handshake, Message, NotFound, Unauthorized, connect
from polybus.capture import Capture, CaptureError, Replayed, Selection, info, make_recorder, replay
from polybus.capture.record.proxy import RecordingProxy
from polybus.capture.replaying import client_messages
from polybus.capture.schema import FLAG_GAP_BEFORE, FLAG_TRUNCATED
from polybus.message import Kind
from polybus.plugins.extensions import core_of
from polybus.protocols import Csb, UProtocol
from tests.refusal import refused
from tests.support import eventually

from . import rows as frames
from .folders import damage_batches, events_in, rows_in, write_segment

WS, NOBODY = "ubre+ws://127.0.0.1:0/bus", "ubre+tcp://127.0.0.1:1"
PROTOCOLS = ("ubre", "ubre?format=binary", "csb", "jrep", "uprotocol", "uprotocol?format=protobuf")


def _names(protocol: str) -> tuple[str, str, str]:
    if protocol.startswith("uprotocol"):
        return "//v/body/1/rpc.Get", "//v/body/1/rpc.Fail", "//v/body/1/door.front#Door"
    return "user.get", "user.fail", "news.today"


@asynccontextmanager
async def _served(protocol: str = "ubre") -> AsyncIterator[tuple[str, list[Any], Bus]]:
    """A server that answers, fails and listens: its URL, what it has heard, and its bus."""
    get, fail, topic = _names(protocol)
    bus, heard = Bus(), list[Any]()

    @bus.handle(get)
    async def on_get(body: Any) -> Any:
        return {"got": body}

    @bus.handle(fail)
    async def on_fail(body: Any) -> None:
        raise NotFound("no such user")

    @bus.on(topic)
    async def on_topic(body: Any) -> None:
        heard.append(body)

    name, question, query = protocol.partition("?")
    async with bus.serve(f"{name}+tcp://127.0.0.1:0{question}{query}") as listener:
        yield listener.url, heard, bus


async def _replayed(capture: Path, url: str, *, speed: float = math.inf, **options: Any) -> Replayed:
    return await replay(Capture(capture), url, speed=speed, **options)


def _echoing(subject: str | int = "user.get", **options: Any) -> Bus:
    bus = Bus(**options)

    @bus.handle(subject)
    async def get(body: Any) -> Any:
        return body

    return bus


async def _talk(bus: Bus, protocol: str) -> None:
    get, fail, topic = _names(protocol)
    for number in range(3):
        await bus.request(get, {"n": number}, timeout=5)
    with pytest.raises(NotFound):
        await bus.request(fail, {"n": 9}, timeout=5)
    await bus.publish(topic, {"title": "hello"})


def _exchanges(folder: Path) -> list[tuple[Any, ...]]:
    """Requests of users with their answers, then publications: without ids and times."""
    answers = {event["correlation_id"]: event for event in events_in(folder, "response")}
    asked = [event for event in events_in(folder, "request") if not event["subject"].startswith("_polybus")]
    asked = [event for event in asked if event["correlation_id"] is not None]
    found = [(event["subject"], event["data"], answers[event["correlation_id"]]) for event in asked]
    said = [(event["subject"], event["data"]) for event in events_in(folder, "publish")]
    return [*((subject, data, answer["code"], answer["data"]) for subject, data, answer in found), *said]


@pytest.mark.parametrize(
    ("protocol", "side"), [*((protocol, "client") for protocol in PROTOCOLS), ("ubre", "server"), ("csb", "server")]
)
async def test_a_replay_gives_the_same_exchanges(protocol: str, side: str, tmp_path: Path) -> None:
    original = tmp_path / "original"
    async with _served(protocol) as (url, heard, server):
        if side == "client":
            async with connect(url, record=original) as bus:
                await _talk(bus, protocol)
        else:
            async with server.record(original), connect(url) as bus:
                await _talk(bus, protocol)
                await eventually(lambda: heard)  # and so it is recorded
    async with _served(protocol) as (url, heard_again, _):
        report = await _replayed(original, url, record=str(tmp_path / "again"))
        await eventually(lambda: heard_again == heard)
    assert (report.answered, report.failed, heard_again, heard) == (3, 1, *[[{"title": "hello"}]] * 2)
    assert _exchanges(original) == _exchanges(tmp_path / "again")
    assert len(_exchanges(original)) == 5
    assert info(Capture(tmp_path / "again")).sources == [str(original)]


_DAY = 1_700_000_000_000_000_000
_OVER = '{"link":{"state":"close","code":1000,"reason":""}}'


def _asks(seq: int, n: int, wall_s: float, own_s: float, **given: Any) -> dict[str, Any]:
    """A request, recorded at these seconds of the wall clock and of the recording's own."""
    frame = b'{"request":"user.get","id":"%d","body":{"n":%d}}' % (seq, n)
    return frames.row(seq, frame=frame, ts_ns=_DAY + round(wall_s * 1e9), mono_ns=round(own_s * 1e9)) | given


def _write(folder: Path, number: int, *rows: dict[str, Any], recording: str = "c") -> None:
    write_segment(folder, frames.batch(*rows), number=number, recording=recording)


def _write_requests(folder: Path, apart: float) -> None:
    _write(folder, 0, _asks(0, 1, 0, 0), _asks(1, 2, apart, apart))


def _five_publications() -> list[dict[str, Any]]:
    """On a connection each, which then ends."""
    rows = []
    for number in range(5):
        says = _asks(2 * number, 0, 0, 0, conn_id=f"c-{number}", frame=b'{"publish":"news.today","body":%d}' % number)
        rows += [says, says | {"seq": 2 * number + 1, "frame": None, "options": _OVER}]
    return rows


def _said(folder: Path, selection: Selection | None = None) -> list[tuple[float, str, Any]]:
    """When what is said of which kind, with the number in it; seconds after the first."""

    def about(said: Any) -> tuple[str, Any]:
        if said.message is None:
            return "end", said.conn[0]
        kind = said.message.kind
        return kind.value, said.message.body["n"] if kind is Kind.REQUEST else said.conn[0]

    found = list(client_messages(Capture(folder), selection or Selection(), Counter()))
    return [(round((said.at - found[0].at) / 1e9, 3), *about(said)) for said in found]


@pytest.mark.parametrize(("given", "why"), [({"flags": FLAG_TRUNCATED}, "cut"), ({"tunnel": ["plant.7"]}, "tunnel")])
def test_what_was_cut_or_said_through_a_tunnel_is_not_said_to_the_server(
    given: dict[str, Any], why: str, tmp_path: Path
) -> None:
    """Also where half of it can be read."""
    _write(tmp_path, 0, _asks(0, 1, 0, 0), _asks(1, 2, 1, 1, **given), _asks(2, 3, 2, 2))
    skipped = Counter[str]()
    said = list(client_messages(Capture(tmp_path), Selection(), skipped))
    assert [(one.message.body["n"], one.conn) for one in said if one.message] == [(1, ("c-1", "")), (3, ("c-1", ""))]
    assert skipped == {why: 1}


def test_a_replay_begins_where_it_is_to_begin(tmp_path: Path) -> None:
    listens = _asks(0, 0, 0, 7000, frame=b'{"subscribe":"orders"}')
    _write(tmp_path / "one", 0, listens, _asks(1, 1, 10, 7010), _asks(2, 2, 100, 7100), _asks(3, 3, 101, 7101))
    selection = Selection(start=99.5)
    assert _said(tmp_path / "one", selection) == [(0, "subscribe", "c-1"), (0.5, "request", 2), (1.5, "request", 3)]


def test_nothing_is_subscribed_to_for_who_had_left_before_the_begin(tmp_path: Path) -> None:
    rows = []
    for number in range(4):
        rows.append(_asks(2 * number, 0, number, number, conn_id=f"c-{number}", frame=b'{"subscribe":"orders"}'))
        over = {"frame": b'{"unsubscribe":"orders"}'} if number == 1 else {"frame": None, "options": _OVER}
        if number != 2:
            rows.append(_asks(2 * number + 1, 0, number, number, conn_id=f"c-{number}") | over)
    _write(tmp_path / "one", 0, *rows, _asks(8, 1, 10, 10, conn_id="c-1"))
    assert _said(tmp_path / "one", Selection(start=9.0)) == [(0, "subscribe", "c-2"), (1, "request", 1)]
    assert _said(tmp_path / "one", Selection(start=11.0)) == []


def test_recordings_of_the_same_time_are_said_side_by_side(tmp_path: Path) -> None:
    folder = tmp_path / "one"
    # Two of them take turns, and a third is begun after the machine was: its clock begins anew.
    _write(folder, 0, _asks(0, 1, 0, 9000), _asks(1, 3, 2, 9002))
    _write(folder, 1, _asks(0, 2, 1, 50, conn_id="c-2"), _asks(1, 5, 4, 53, conn_id="c-2"), recording="d")
    _write(folder, 2, _asks(2, 4, 3, 9003))
    gap = frames.row(0, frame=None, ts_ns=0, mono_ns=0, flags=FLAG_GAP_BEFORE)
    _write(folder, 3, gap, _asks(1, 6, 6, 1, conn_id="c-3"), recording="e")
    assert _said(folder) == [(n - 1 if n < 6 else 6, "request", n) for n in range(1, 7)]
    assert [n for _, _, n in _said(folder, Selection(start=2, end=4.0))] == [3, 4]


async def test_a_connection_ends_where_it_has_ended(tmp_path: Path) -> None:
    _write(tmp_path / "one", 0, *_five_publications())
    async with _served() as (url, heard, _server):
        report = await replay(Capture(tmp_path / "one"), url, record=str(tmp_path / "two"))
        await eventually(lambda: len(heard) == 5)
    assert report.connections == 5
    assert [kind for _, kind, _ in _said(tmp_path / "two")] == ["publish", "end"] * 5


async def test_a_connection_ends_when_it_has_ended_and_the_last_one_is_not_waited_for(tmp_path: Path) -> None:
    def ends(seq: int, after: float, conn: str) -> dict[str, Any]:
        return _asks(seq, 0, after, after, conn_id=conn, frame=None, options=_OVER)

    says = _asks(0, 1, 0, 0, frame=b'{"publish":"news.today","body":1}')
    rows = says, ends(1, 0.2, "c-1"), _asks(2, 2, 0.25, 0.25, conn_id="c-2"), ends(3, 1e6, "c-2")
    _write(tmp_path / "one", 0, *rows)
    async with _served() as (url, _heard, _server):
        await replay(Capture(tmp_path / "one"), url, record=str(tmp_path / "two"))
    marks = [row for row in rows_in(tmp_path / "two") if row["frame"] is None]
    begin, end = (row["mono_ns"] for row in marks if row["conn_id"] == marks[0]["conn_id"])
    assert end - begin >= 200_000_000


async def test_a_client_that_is_refused_costs_what_it_would_have_said(tmp_path: Path) -> None:
    _write(tmp_path / "one", 0, *(_asks(n, n, 0, 0, conn_id=f"c-{n}") for n in range(3)))
    came = iter(("joe", None, "ann"))
    async with _echoing(authenticate=lambda handshake: next(came)).serve(WS) as listener:
        report = await _replayed(tmp_path / "one", listener.url)
    assert (report.connections, report.answered, report.skipped) == (2, 2, {"request": 1})


async def test_what_is_unsubscribed_is_unsubscribed_again(tmp_path: Path) -> None:
    async with _served() as (url, _, _server), connect(url, record=tmp_path / "one") as bus:
        async with bus.subscribe("orders.*"):
            await bus.request("user.get", {"n": 1})
        await bus.request("user.get", {"n": 2})
    async with _served() as (url, _, _server):
        report = await _replayed(tmp_path / "one", url, record=str(tmp_path / "two"))
    assert report.said == {"subscribe": 1, "request": 2, "unsubscribe": 1}
    assert not report.skipped
    said = [one.message.kind for one in client_messages(Capture(tmp_path / "two"), Selection(), Counter()) if one.message]
    assert said == [Kind.SUBSCRIBE, Kind.REQUEST, Kind.UNSUBSCRIBE, Kind.REQUEST]


async def test_what_another_protocol_cannot_say_is_counted_as_not_said(tmp_path: Path) -> None:
    async with _echoing(0x10001).serve("csb+tcp://127.0.0.1:0") as listener:
        async with connect(listener.url, record=tmp_path / "one") as bus, bus.subscribe(0x10002):
            await bus.request(0x10001, b"x")
    async with _served() as (url, _, _server):
        report = await _replayed(tmp_path / "one", url)
    assert not report.said
    assert report.skipped == {"subscribe": 1, "request": 1, "unsubscribe": 1}


async def test_a_replay_is_not_recorded_into_what_is_replayed(tmp_path: Path) -> None:
    _write_requests(tmp_path / "one", apart=0.1)
    (tmp_path / "same").symlink_to(tmp_path / "one")
    before = [path.read_bytes() for path in sorted((tmp_path / "one").iterdir())]
    with pytest.raises(CaptureError, match="record the replay in a different folder"):
        await _replayed(tmp_path / "one", NOBODY, record=str(tmp_path / "same"))
    assert [path.read_bytes() for path in sorted((tmp_path / "one").iterdir())] == before


async def test_a_dry_run_connects_to_nobody_and_tells_what_of_the_capture_is_lost(tmp_path: Path) -> None:
    folder = tmp_path / "one"
    parts = [[_asks(10 * part + n, n, 0, 0) for n in range(10)] for part in range(3)]
    parts.append([_asks(30, 0, 0, 0, frame=None, options=_OVER)])
    write_segment(folder, *(frames.batch(*part) for part in parts))
    damage_batches(folder, 1)
    report = await replay(Capture(folder), NOBODY, dry_run=True)
    assert (report.said, report.skipped, report.connections) == ({"request": 20}, {"damaged": 10}, 1)


async def test_numbered_actions_stay_numbers(tmp_path: Path) -> None:
    table = Csb(actions={"user.get": 0x10001})
    async with _echoing().serve("csb+tcp://127.0.0.1:0", protocol=table) as listener:
        async with connect(listener.url, protocol=table, record=tmp_path / "one") as bus:
            await bus.request("user.get", {"n": 1})
        report = await _replayed(tmp_path / "one", listener.url, record=str(tmp_path / "two"))
    assert report.answered == 1
    assert any(row["frame"][4:8] == b"\0\1\0\1" for row in rows_in(tmp_path / "two") if row["frame"])


async def test_what_is_not_wanted_is_not_said(tmp_path: Path) -> None:
    async with _served() as (url, _, server):
        async with server.record(tmp_path / "one"):
            async with connect(url) as one, connect(url) as two:
                await _talk(one, "ubre")
                await two.request("user.get", {"n": 77})
        last = max(row["conn_id"] for row in rows_in(tmp_path / "one"))
        for selection, answered, connections in (
            *((Selection(subjects=("user.get",)), 4, 2), (Selection(connections=(last,)), 1, 1)),
            (Selection(subjects=("orders.>",)), 0, 0),
        ):
            report = await _replayed(tmp_path / "one", url, selection=selection)
            assert (report.answered, report.connections) == (answered, connections)
        assert dict(report.said) == {}


async def test_the_pace_is_that_of_the_recording_by_a_factor(tmp_path: Path) -> None:
    _write_requests(tmp_path / "one", apart=0.2)
    async with _served() as (url, _, _server):
        await replay(Capture(tmp_path / "one"), url, speed=2.0, record=str(tmp_path / "two"))
    rows = rows_in(tmp_path / "two")
    asked = [row["mono_ns"] for row in rows if row["frame"] and row["direction"] == 0]
    # The first may be late on a busy machine, and the second is not for that: both are due from when there was a connection.
    assert asked[1] - rows[0]["mono_ns"] >= 95_000_000
    with pytest.raises(ValueError, match="above 0"):
        await replay(Capture(tmp_path / "one"), url, speed=0)


async def test_a_recording_of_one_protocol_can_be_said_in_another(tmp_path: Path) -> None:
    _write_requests(tmp_path / "one", apart=0)
    async with _served("jrep") as (url, _, _server):
        assert (await _replayed(tmp_path / "one", url)).answered == 2


@pytest.mark.parametrize(("protocol", "transport"), [("ubre", "ws"), ("csb", "tcp"), ("uprotocol", "ws")])
async def test_a_proxy_records_what_passes_and_changes_nothing(protocol: str, transport: str, tmp_path: Path) -> None:
    get, _, _ = _names(protocol)
    async with _served(protocol) as (_, _heard, bus), bus.serve(f"{protocol}+{transport}://127.0.0.1:0") as listener:
        async with RecordingProxy(listener.url, make_recorder(tmp_path), f"{protocol}+{transport}://127.0.0.1:0") as proxy:
            async with connect(proxy.url) as one, connect(proxy.url) as two:
                assert await one.request(get, {"n": 1}) == {"got": {"n": 1}}
                assert await two.request(get, {"n": 2}) == {"got": {"n": 2}}
    assert info(Capture(tmp_path)).connections == 2
    assert len(_exchanges(tmp_path)) == 2
    assert {row["role"] for row in rows_in(tmp_path)} == {1}


@pytest.mark.parametrize("format", ["json", "protobuf"])
async def test_a_proxy_records_what_strangers_write_so_that_it_can_be_read(format: str, tmp_path: Path) -> None:
    """A hash that is text, as up-python and up-java write it: strict buses refuse it, a proxy refuses nothing."""
    codec = UProtocol(format=format, mode="lenient").codec()  # type: ignore[arg-type]
    attributes = {"id": "018bcfe5-687b-8000-8000-000000000007", "source": "//v/body/1/door.front#Door", "note": "some hash"}
    frame = codec.encode([Message(Kind.PUBLISH, body="hi", attributes=attributes)]).replace(b"note", b"hash")
    url = f"uprotocol+tcp://127.0.0.1:0?format={format}"
    bus = Bus()
    async with bus.serve(url) as listener, RecordingProxy(listener.url, make_recorder(tmp_path), url) as proxy:
        port = int(proxy.url.partition("?")[0].rpartition(":")[2])
        async with await anyio.connect_tcp("127.0.0.1", port) as stream:
            await stream.send(len(frame).to_bytes(4, "big") + frame)
            await eventually(lambda: bus.stats().malformed == 1)
    said = [(event["subject"], event["id"]) for event in events_in(tmp_path, "publish")]
    assert said == [(attributes["source"], attributes["id"])]


async def test_a_proxy_lets_in_whom_the_server_lets_in(tmp_path: Path) -> None:
    def authenticate(handshake: Handshake) -> str | None:
        return "joe" if handshake.headers.get("authorization") == "Bearer hunter2" else None

    async with _echoing(authenticate=authenticate).serve(WS) as listener:
        async with RecordingProxy(listener.url, make_recorder(tmp_path), WS) as proxy:
            async with connect(proxy.url, headers={"authorization": "Bearer hunter2"}) as client:
                assert await client.request("user.get", "joe") == "joe"
            await refused(connect(proxy.url), Unauthorized)
    assert b"hunter2" not in b"".join(row["frame"] or b"" for row in rows_in(tmp_path))


async def test_a_proxy_hands_on_what_the_client_has_put_behind_the_question_mark(tmp_path: Path) -> None:
    seen = []

    def authenticate(handshake: Handshake) -> str:
        seen.append(dict(handshake.query))
        return "joe"

    async with Bus(authenticate=authenticate).serve(WS) as listener:
        target = f"{listener.url}?room=1&floor=2"
        async with RecordingProxy(target, make_recorder(tmp_path), WS) as proxy:
            for query in ("", "?room=7&token=a%26b%20%C3%BC"):
                async with connect(proxy.url + query):
                    pass
    assert seen == [{"room": "1", "floor": "2"}, {"room": "7", "floor": "2", "token": "a&b ü"}]


async def test_whoever_connects_to_a_proxy_while_the_server_is_away_does_not_fill_its_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with RecordingProxy(NOBODY, make_recorder(tmp_path), "ubre+tcp://127.0.0.1:0") as proxy:
        port = int(proxy.url.rpartition(":")[2])
        for _ in range(30):
            async with await anyio.connect_tcp("127.0.0.1", port) as stream:
                with contextlib.suppress(anyio.EndOfStream, anyio.BrokenResourceError):
                    await stream.receive()
    told = [record for record in caplog.records if record.name == "polybus.capture" and record.levelno == logging.WARNING]
    assert 1 <= len(told) <= 11
    assert "127.0.0.1:1" in told[0].getMessage()


async def test_a_server_that_is_not_there_is_told_as_connect_tells_it(tmp_path: Path) -> None:
    _write_requests(tmp_path / "one", apart=0)
    with pytest.raises(ConnectFailed, match="no server listens there"):
        await _replayed(tmp_path / "one", NOBODY, record=str(tmp_path / "two"))


async def test_a_server_that_sends_a_client_away_costs_what_is_left_of_it(tmp_path: Path) -> None:
    _write_requests(tmp_path / "one", apart=0.1)
    server = Bus()

    @server.handle("user.get")
    async def get(body: Any, ctx: Context) -> Any:
        assert ctx.peer is not None
        core_of(ctx.peer).link.close(4403, "go away")

    async with server.serve(WS) as listener:
        report = await replay(Capture(tmp_path / "one"), listener.url)
    assert report.answered == 0
    assert report.failed + report.skipped["request"] == 2


@pytest.mark.parametrize("insecure", [False, True])
async def test_a_recording_proxy_lets_in_clients_of_its_own_machine_alone(tmp_path: Path, insecure: bool) -> None:
    bus = Bus(authenticate=lambda handshake: "ann")
    async with bus.serve(WS) as listener:
        async with RecordingProxy(listener.url, make_recorder(tmp_path), WS, insecure=insecure) as proxy:
            with contextlib.nullcontext() if insecure else pytest.raises(Forbidden, match="203.0.113.7"):
                async with connect(proxy.url, headers={"x-forwarded-for": "203.0.113.7"}):
                    pass
