"""The table of bad inputs: what each does to a codec, to a session and, over a real socket, to a server."""

import json
from pathlib import Path
from typing import Any

import anyio
import pytest

from polybus import Bus, Message, connect
from polybus.events import BusEvent, DeadLettered, FrameRefused
from polybus.message import Kind
from polybus.plugins import Refused
from polybus.protocols import UProtocol
from polybus.protocols._protobuf.any_body import ANY
from tests.support import BOUND

CASES: list[dict[str, Any]] = [
    case
    for case in json.loads((Path(__file__).parents[3] / "vectors" / "bad_inputs.json").read_text())["cases"]
    if case["protocol"] == "uprotocol"
]
DAY = 24 * 3_600_000
ID = "018bcfe5-6800-7000-8000-000000000001"


def now_ms(case: dict[str, Any]) -> int:
    setup = case.get("setup", "")
    if "year later" in setup:
        return 1_700_000_000_000 + 365 * DAY
    return int(setup.split()[3]) if setup.startswith("fake clock at") else 1_700_000_000_500


def frame_of(case: dict[str, Any]) -> bytes:
    given = case["input"]
    return bytes.fromhex(given["value"]) if given["kind"] == "hex" else given["value"].encode()


def adapter_of(case: dict[str, Any]) -> UProtocol:
    format: Any = "protobuf" if case["transport"].endswith("protobuf") else "json"
    return UProtocol(format=format, clock=lambda: now_ms(case) * 1_000_000)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_the_declared_outcome(case: dict[str, Any]) -> None:
    session = adapter_of(case).session("server")
    expected = case["expected"]
    frame = frame_of(case)
    if "pending" in case.get("setup", ""):
        # The id in the table is not one of ours: the same answer to a request that is.
        sink = "up://dev.example/body.access/1/rpc.UpdateDoor"
        key = session.send(Message(Kind.REQUEST, sink, None, ANY.encode(1), ANY, None, 1.0), 0.0)
        assert key is not None
        frame = frame.replace(f'"reqid":"{ID}"'.encode(), f'"reqid":"{key}"'.encode())
    session.receive(frame, 0.0)
    (event,) = session.events()
    if expected["effect"] == "accept":
        assert isinstance(event, Message)
    elif expected["effect"] == "local_error":
        assert isinstance(event, Message)
        assert event.kind is Kind.ERROR
        assert "UNKNOWN(99)" in event.attributes["text"]
    elif expected["error"] == "expired":
        assert isinstance(event, Message)
        assert event.ttl == 0.0  # the bus answers DEADLINE_EXCEEDED
    else:
        assert isinstance(event, Refused)
        assert event.error.reason == expected["error"]
        assert event.error.close_code is None


@pytest.mark.anyio
@pytest.mark.parametrize("format", ["json", "protobuf"])
async def test_a_server_survives_them_all_and_answers_the_next_good_request(format: str) -> None:
    """All over one TCP connection, which stays; a good client beside it is served all the time."""
    bus = Bus()
    heard: list[BusEvent] = []

    @bus.handle("echo")
    async def echo(body: Any) -> Any:
        return body

    with anyio.fail_after(BOUND):
        async with bus.serve(f"uprotocol+tcp://127.0.0.1:0?format={format}") as listener, connect(listener.url) as good:
            events = bus.events()
            port = int(listener.url.partition("?")[0].rpartition(":")[2])
            bad = await anyio.connect_tcp("127.0.0.1", port)
            cases = [case for case in CASES if case["transport"].endswith(format)]
            for case in cases:
                frame = frame_of(case)
                await bad.send(len(frame).to_bytes(4, "big") + frame)
                assert await good.request("echo", case["id"]) == case["id"]
            # An empty frame on TCP is a keep-alive. What is refused is told, by the event of a refusal or of a dead letter:
            # of all, for the time in the ids of the table is long past.
            expected = sum(1 for case in cases if frame_of(case) and case["id"] not in ("up-044",))
            async for event in events:
                if isinstance(event, (FrameRefused, DeadLettered)):
                    heard.append(event)
                    if len(heard) >= expected:
                        break
                elif expected == 0:
                    break
            assert await good.request("echo", "still there") == "still there"
            assert len(bus.peers) == 2
            await bad.aclose()
