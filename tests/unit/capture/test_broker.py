"""A broker that records: what its clients say and hear, each frame once."""

import json
import math
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from polybus import Broker, Bus, Identity, NotFound, connect
from polybus.capture import Capture, CaptureError, info, replay
from polybus.capture.schema import DIRECTION_IN, DIRECTION_OUT
from tests.refusal import refused

from .folders import events_in

TCP, WS = "csb+tcp://127.0.0.1:0", "csb+ws://127.0.0.1:0/game"


def _server() -> Bus:
    bus = Bus()

    @bus.handle("user.get")
    async def get(body: Any) -> Any:
        return body

    @bus.handle("user.fail")
    async def fail(body: Any) -> None:
        raise NotFound("no such user")

    return bus


async def test_what_clients_say_and_hear_is_recorded_once_and_can_be_said_again_to_a_server(tmp_path: Path) -> None:
    recording = Broker((TCP, WS), TCP, record=tmp_path, authenticate=lambda handshake: Identity("Ann", key="user-ann"))
    async with recording as broker, connect(broker.server_urls[0], bus=_server()):
        async with connect(broker.client_urls[0]) as one, connect(broker.client_urls[1]) as two:
            for number in range(3):
                body = {"n": number, "password": "hunter2"}
                assert await one.request("user.get", body) == body
            with pytest.raises(NotFound):
                await two.request("user.fail", {})
    events = events_in(tmp_path)
    asked = [event for event in events if event["kind"] == "request" and event["subject"].startswith("user.")]
    assert Counter(event["subject"] for event in asked) == {"user.get": 3, "user.fail": 1}
    assert {event["direction"] for event in asked} == {DIRECTION_IN}
    assert Counter(event["transport"] for event in asked) == {"tcp": 3, "ws": 1}
    answers = {(event["conn_id"], event["correlation_id"]): event for event in events if event["kind"] == "response"}
    for event in asked:
        answer = answers[event["conn_id"], event["correlation_id"]]
        assert answer["direction"] == DIRECTION_OUT
        assert answer["seq"] > event["seq"]
        assert answer["mono_ns"] >= event["mono_ns"]
    links = Counter((event["kind"], event["source"]) for event in events if event["kind"] in ("open", "close"))
    assert links == {("open", "user-ann"): 2, ("close", "user-ann"): 2}
    assert b"hunter2" not in b"".join(event["data"] or b"" for event in events)
    assert info(Capture(tmp_path)).open == 0
    async with _server().serve(TCP) as listener:
        report = await replay(Capture(tmp_path), listener.url, speed=math.inf)
    assert (report.said["request"], report.answered, report.failed) == (4, 3, 1)


async def test_a_broker_that_is_entered_again_records_again(tmp_path: Path) -> None:
    broker = Broker(TCP, TCP, record=tmp_path)
    for number in range(2):
        async with broker, connect(broker.server_urls[0], bus=_server()), connect(broker.client_urls[0]) as client:
            await client.request("user.get", {"n": number})
    assert len(info(Capture(tmp_path)).captures) == 2
    asked = [event for event in events_in(tmp_path) if event["subject"] == "user.get"]
    assert [json.loads(event["data"]) for event in asked] == [{"n": 0}, {"n": 1}]


async def test_a_broker_that_cannot_record_does_not_begin(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    await refused(Broker(TCP, TCP, record=tmp_path / "file"), CaptureError, match="cannot record to")
    assert not [thread for thread in threading.enumerate() if thread.name == "polybus recorder"]
    with pytest.raises(TypeError, match="the path of a folder"):
        Broker(TCP, TCP, record=7)  # type: ignore[arg-type]


async def test_clients_that_are_cut_are_recorded_to_their_end(tmp_path: Path) -> None:
    async with Broker(TCP, TCP, record=tmp_path) as broker, connect(broker.server_urls[0], bus=_server()):
        async with connect(broker.client_urls[0]) as client:
            await client.request("user.get", {"n": 1})
            await broker.aclose()
    assert [event["kind"] for event in events_in(tmp_path, "open", "close")] == ["open", "close"]
