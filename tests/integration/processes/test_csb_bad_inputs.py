"""The list of bad inputs, CSB's part, against a real server: it survives, goes on answering, and the declared effect holds."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from polybus import Bus, connect

from .processes import BOUND, MIB, Process, control, loop_of, running
from .raw_websocket import raw_websocket, websocket_frame

pytestmark = pytest.mark.anyio

CASES: dict[str, dict[str, Any]] = {
    case["id"]: case
    for case in json.loads((Path(__file__).parents[2] / "vectors" / "bad_inputs.json").read_text())["cases"]
    if case["protocol"] == "csb" and case["transport"] == "websocket-binary" and case["input"]["kind"] != "steps"
}
del CASES["csb-019"]  # of our own requests: see tests/unit/protocols/csb
RESULTS = {"EncodingError": 0xCB, "PayloadTooLarge": 0xD1, "BadRequest": 0xCC, "NotFound": 0xC9}
GOOD = bytes.fromhex("12 00 7777 ffff0004 0004") + b"echo7"
ANSWER = bytes.fromhex("22 00 7777 ffff0004") + b"7"


@pytest.fixture(scope="module", params=[("asyncio", {}), ("trio", {})], ids=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    backend: tuple[str, dict[str, Any]] = request.param
    return backend


@pytest.fixture(scope="module")
async def server(anyio_backend: tuple[str, dict[str, Any]]) -> AsyncIterator[Process]:
    urls = ["csb+ws://127.0.0.1:0", "csb+tcp://127.0.0.1:0"]
    async with running(urls=urls, **loop_of(anyio_backend)) as process:
        yield process


@pytest.fixture(scope="module")
async def bystander(server: Process) -> AsyncIterator[Bus]:
    async with connect(server.urls[1]) as bus:
        yield bus


def frame_of(case: dict[str, Any]) -> bytes:
    given = case["input"]
    if given["kind"] == "hex":
        return bytes.fromhex(given["value"])
    return bytes.fromhex("1300000500000001") + b"".join(b"a%d=1&" % number for number in range(given["count"]))


@pytest.mark.parametrize("id", CASES)
async def test_a_bad_message_has_its_effect_and_no_other(server: Process, bystander: Bus, id: str) -> None:
    case = CASES[id]
    effect, error = case["expected"]["effect"], case["expected"]["error"]
    before, memory = await control(bystander), server.memory()
    frame = frame_of(case)
    async with raw_websocket(server.urls[0], "csb") as socket:
        await socket.send(websocket_frame(2, frame) + websocket_frame(2, GOOD))
        answers: list[bytes] = []
        with anyio.fail_after(BOUND):
            while not answers or answers[-1] != ANSWER:
                opcode, payload = await socket.receive()
                assert opcode == 2
                answers.append(payload)
    answers.pop()
    if effect == "reply_error":
        [answer] = answers
        assert (answer[0] >> 4, answer[1], answer[2:8]) == (2, RESULTS[error], frame[2:8])
    else:
        assert (effect, answers) == ("drop_count", [])
    after = await control(bystander)
    counter = "refused" if error == "NotFound" else "malformed"
    assert after["stats"][counter] - before["stats"][counter] == 1
    assert server.running()
    assert server.memory() - memory < 8 * MIB
    assert bystander.stats().reconnects == 0
    assert "Traceback" not in server.log()
