"""Replaying: the clients of a recording say again what they said, and the same comes of it."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from polybus import Bus, ConnectFailed, Context, NotFound, connect
from polybus.capture import Capture, CaptureError, Selection, decode, info, make_recorder, replay
from polybus.capture.schema import DIRECTION_OUT
from polybus.capture.taps import End
from polybus.protocols import Csb
from tests.support import bounded, eventually

pytestmark = pytest.mark.anyio
PROTOCOLS = ("ubre", "ubre?format=binary", "csb", "jrep", "uprotocol", "uprotocol?format=protobuf")


def _names(protocol: str) -> tuple[str, str, str]:
    if protocol.startswith("uprotocol"):
        return "//v/body/1/rpc.Get", "//v/body/1/rpc.Fail", "//v/body/1/door.front#Door"
    return "user.get", "user.fail", "news.today"


def _server(protocol: str) -> tuple[Bus, list[Any]]:
    get, fail, topic = _names(protocol)
    bus, heard = Bus(), []

    @bus.handle(get)
    async def on_get(body: Any) -> Any:
        return {"got": body}

    @bus.handle(fail)
    async def on_fail(body: Any) -> None:
        raise NotFound("no such user")

    @bus.on(topic)
    async def on_topic(body: Any) -> None:
        heard.append(body)

    return bus, heard


def _url(protocol: str) -> str:
    name, _, query = protocol.partition("?")
    return f"{name}+tcp://127.0.0.1:0" + (f"?{query}" if query else "")


@asynccontextmanager
async def _served(protocol: str) -> AsyncIterator[tuple[str, list[Any], Bus]]:
    bus, heard = _server(protocol)
    async with bus.serve(_url(protocol)) as listener:
        yield listener.url, heard, bus


async def _talk(bus: Bus, protocol: str) -> None:
    get, fail, topic = _names(protocol)
    for number in range(3):
        await bus.request(get, {"n": number}, timeout=5)
    with pytest.raises(NotFound):
        await bus.request(fail, {"n": 9}, timeout=5)
    await bus.publish(topic, {"title": "hello"})


def _exchanges(folder: Path) -> list[tuple[Any, ...]]:
    """Requests with their answers, and publications: without ids and times."""
    events = [event for batch in Capture(folder).batches() for event in decode(batch.rows).events.to_pylist()]
    answers = {event["correlation_id"]: event for event in events if event["kind"] == "response"}
    found: list[tuple[Any, ...]] = []
    for event in events:
        if str(event["subject"]).startswith("_polybus") or event["correlation_id"] is None and event["kind"] == "request":
            continue
        if event["kind"] == "request":
            answer = answers[event["correlation_id"]]
            found.append(("request", event["subject"], event["data"], answer["code"], answer["data"]))
        elif event["kind"] in ("publish", "subscribe"):
            found.append((event["kind"], event["subject"], event["data"]))
    return found


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("side", ["client", "server"])
@bounded
async def test_a_replay_gives_the_same_exchanges(protocol: str, side: str, tmp_path: Path) -> None:
    original = tmp_path / "original"
    async with _served(protocol) as (url, heard, server):
        if side == "client":
            async with connect(url, record=original) as bus:
                await _talk(bus, protocol)
        else:
            async with server.record(original), connect(url) as bus:
                await _talk(bus, protocol)
    async with _served(protocol) as (url, heard_again, _):
        report = await replay(Capture(original), url, speed=math.inf, record=str(tmp_path / "again"))
        await eventually(lambda: heard_again == heard)
    assert (report.answered, report.failed) == (3, 1)
    assert heard_again == heard == [{"title": "hello"}]
    before, after = _exchanges(original), _exchanges(tmp_path / "again")
    assert [one for one in before if one[0] == "request"] == [one for one in after if one[0] == "request"]
    assert len([one for one in after if one[0] == "request"]) == 4
    assert [one for one in before if one[0] == "publish"] == [one for one in after if one[0] == "publish"]
    assert info(Capture(tmp_path / "again")).sources == [str(original)]


def _write_requests(folder: Path, apart: float) -> None:
    """A capture of two requests, so many seconds apart."""
    recorder = make_recorder(folder)
    recorder.open()
    end = End(DIRECTION_OUT, "c-1", "peer", "ubre", "tcp", (), "{}")
    for number in (1, 2):
        frame = b'{"request":"user.get","id":"%d","body":{"n":%d}}' % (number, number)
        recorder.take((end, round(number * apart * 1e9), frame, None))
    recorder.close()


@bounded
async def test_numbered_actions_stay_numbers(tmp_path: Path) -> None:
    table = Csb(actions={"user.get": 0x10001})
    server = Bus()

    @server.handle("user.get")
    async def get(body: Any) -> Any:
        return body

    async with server.serve("csb+tcp://127.0.0.1:0", protocol=table) as listener:
        async with connect(listener.url, protocol=table, record=tmp_path / "one") as bus:
            await bus.request("user.get", {"n": 1})
        report = await replay(Capture(tmp_path / "one"), listener.url, speed=math.inf, record=str(tmp_path / "two"))
    assert report.answered == 1
    frames = [row["frame"] for batch in Capture(tmp_path / "two").batches() for row in batch.rows.to_pylist() if row["frame"]]
    assert any(frame[4:8] == b"\0\1\0\1" for frame in frames)


@bounded
async def test_subscriptions_are_made_again_though_they_are_older_than_what_is_wanted(tmp_path: Path) -> None:
    async with _served("ubre") as (url, _, server):
        async with server.record(tmp_path / "one"), connect(url) as bus, bus.subscribe("orders.*"):
            await bus.request("user.get", {"n": 1})
            await bus.request("user.get", {"n": 2})
        capture = Capture(tmp_path / "one")
        rows = [row for batch in capture.batches() for row in batch.rows.to_pylist()]
        second = next(place for place, row in enumerate(rows) if b'"n":2' in (row["frame"] or b""))
        start = (rows[second - 1]["ts_ns"] + rows[second]["ts_ns"]) // 2 - rows[0]["ts_ns"]
        report = await replay(
            capture, url, speed=math.inf, selection=Selection(start=start / 1e9), record=str(tmp_path / "two")
        )
    assert dict(report.said) == {"subscribe": 1, "request": 1}
    said = _exchanges(tmp_path / "two")
    assert said[0][:2] == ("subscribe", "orders.*")
    assert json.loads(said[1][2]) == {"n": 2}


@bounded
async def test_what_is_not_wanted_is_not_said(tmp_path: Path) -> None:
    async with _served("ubre") as (url, _, server):
        async with server.record(tmp_path / "one"):
            async with connect(url) as one, connect(url) as two:
                await _talk(one, "ubre")
                await two.request("user.get", {"n": 77})
        capture = Capture(tmp_path / "one")
        conns = sorted({row["conn_id"] for batch in capture.batches() for row in batch.rows.to_pylist()})
        only = await replay(capture, url, speed=math.inf, selection=Selection(subjects=("user.get",)))
        assert (only.answered, only.connections) == (4, 2)
        last = await replay(capture, url, speed=math.inf, selection=Selection(connections=(conns[-1],)))
        assert (last.answered, last.connections) == (1, 1)
        none = await replay(capture, url, speed=math.inf, selection=Selection(subjects=("orders.>",)))
        assert dict(none.said) == {}


@bounded
async def test_a_dry_run_connects_to_nobody(tmp_path: Path) -> None:
    async with _served("ubre") as (url, _, _server):
        async with connect(url, record=tmp_path / "one") as bus:
            await _talk(bus, "ubre")
    report = await replay(Capture(tmp_path / "one"), "ubre+tcp://127.0.0.1:1", dry_run=True)
    assert dict(report.said) == {"request": 4, "publish": 1}
    assert report.connections == 1


@bounded
async def test_the_pace_is_that_of_the_recording_by_a_factor(tmp_path: Path) -> None:
    _write_requests(tmp_path / "one", apart=0.2)
    async with _served("ubre") as (url, _, _server):
        await replay(Capture(tmp_path / "one"), url, speed=2.0, record=str(tmp_path / "two"))
    rows = [row for batch in Capture(tmp_path / "two").batches() for row in batch.rows.to_pylist() if row["frame"]]
    asked = [row["mono_ns"] for row in rows if row["direction"] == 0]
    assert asked[1] - asked[0] >= 95_000_000
    with pytest.raises(ValueError, match="above 0"):
        await replay(Capture(tmp_path / "one"), url, speed=0)


@bounded
async def test_a_recording_of_one_protocol_can_be_said_in_another(tmp_path: Path) -> None:
    async with _served("ubre") as (url, _, _server):
        async with connect(url, record=tmp_path / "one") as bus:
            await bus.request("user.get", {"n": 1})
    async with _served("jrep") as (url, _, _server):
        report = await replay(Capture(tmp_path / "one"), url, speed=math.inf)
    assert report.answered == 1


@bounded
async def test_a_proxy_records_what_passes_and_changes_nothing(tmp_path: Path) -> None:
    from polybus.capture.proxy import RecordingProxy

    for protocol, transport in (("ubre", "ws"), ("csb", "tcp"), ("jrep", "tcp"), ("uprotocol", "ws")):
        folder = tmp_path / protocol
        get, _, _ = _names(protocol)
        bus, _ = _server(protocol)
        async with bus.serve(f"{protocol}+{transport}://127.0.0.1:0") as listener:
            proxy = RecordingProxy(listener.url, make_recorder(folder), f"{protocol}+{transport}://127.0.0.1:0")
            async with proxy:
                async with connect(proxy.url) as one, connect(proxy.url) as two:
                    assert await one.request(get, {"n": 1}) == {"got": {"n": 1}}
                    assert await two.request(get, {"n": 2}) == {"got": {"n": 2}}
        found = info(Capture(folder))
        assert found.connections == 2
        assert len([one for one in _exchanges(folder) if one[0] == "request"]) == 2
        rows = [row for batch in Capture(folder).batches() for row in batch.rows.to_pylist()]
        assert {row["role"] for row in rows} == {1}


@bounded
async def test_a_proxy_lets_in_whom_the_server_lets_in(tmp_path: Path) -> None:
    from polybus import Handshake, Unauthorized
    from polybus.capture.proxy import RecordingProxy

    def authenticate(handshake: Handshake) -> str | None:
        return "joe" if handshake.headers.get("authorization") == "Bearer hunter2" else None

    bus = Bus(authenticate=authenticate)

    @bus.handle("who")
    async def who() -> str:
        return "joe"

    async with bus.serve("ubre+ws://127.0.0.1:0/bus") as listener:
        async with RecordingProxy(listener.url, make_recorder(tmp_path), "ubre+ws://127.0.0.1:0/bus") as proxy:
            async with connect(proxy.url, headers={"authorization": "Bearer hunter2"}) as client:
                assert await client.request("who") == "joe"
            with pytest.raises(Unauthorized):
                async with connect(proxy.url):
                    pass
    assert b"hunter2" not in b"".join(
        row["frame"] or b"" for batch in Capture(tmp_path).batches() for row in batch.rows.to_pylist()
    )


async def test_captures_that_are_none_are_told(tmp_path: Path) -> None:
    with pytest.raises(CaptureError):
        await replay(Capture(tmp_path), "ubre+tcp://127.0.0.1:1")


@bounded
async def test_a_server_that_is_not_there_is_told_as_connect_tells_it(tmp_path: Path) -> None:
    async with _served("ubre") as (url, _, _server):
        async with connect(url, record=tmp_path / "one") as bus:
            await bus.request("user.get", {"n": 1})
    with pytest.raises(ConnectFailed, match="nobody listens there"):
        await replay(Capture(tmp_path / "one"), "ubre+tcp://127.0.0.1:1", record=str(tmp_path / "two"))


@bounded
async def test_a_server_that_sends_a_client_away_costs_what_is_left_of_it(tmp_path: Path) -> None:
    _write_requests(tmp_path / "one", apart=0.1)
    server = Bus()

    @server.handle("user.get")
    async def get(body: Any, ctx: Context) -> Any:
        assert ctx.peer is not None
        ctx.peer._link.close(4403, "go away")

    async with server.serve("ubre+ws://127.0.0.1:0") as listener:
        report = await replay(Capture(tmp_path / "one"), listener.url)
    assert report.answered == 0
    assert report.failed + report.skipped["request"] == 2
