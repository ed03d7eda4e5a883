"""The CSB cases of the shared bad inputs that one connection can tell; those of a broker are in tests/unit/broker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from polybus.message import Kind, Message
from polybus.plugins import CloseWanted, Refused
from polybus.protocols import Csb

VECTORS = Path(__file__).parents[3] / "vectors" / "bad_inputs.json"
CASES: dict[str, dict[str, Any]] = {
    case["id"]: case
    for case in json.loads(VECTORS.read_text())["cases"]
    if case["protocol"] == "csb" and case["transport"] == "websocket-binary"
}
RESULTS = {"EncodingError": 0xCB, "PayloadTooLarge": 0xD1, "BadRequest": 0xCC}
ELSEWHERE = {
    "csb-014": "nobody handles it: the bus answers, see test_bare_peer",
    "csb-019": "the 65,537th request: see test_session",
    "csb-020": "a late answer: see test_session",
}


def frame_of(case: dict[str, Any]) -> bytes:
    given = case["input"]
    if given["kind"] == "hex":
        return bytes.fromhex(given["value"])
    assert given["unit"] == "a%d=1&"
    return bytes.fromhex("1300000500000001") + b"".join(b"a%d=1&" % number for number in range(given["count"]))


@pytest.mark.parametrize("id", [id for id in CASES if id not in ELSEWHERE])
def test_the_declared_effect(id: str) -> None:
    case = CASES[id]
    session = Csb().session("server")
    session.start(0.0)
    session.events()
    frame = frame_of(case)
    session.receive(frame, 0.0)
    [event] = session.events()
    assert isinstance(event, Refused)
    assert session.frames_to_send() == []  # the bus knows whether the id is free to be answered
    if event.answer is not None:
        session.send(event.answer, 0.0)
    answers = session.frames_to_send()
    effect, error = case["expected"]["effect"], case["expected"]["error"]
    if effect == "drop_count":
        assert (event.error.reason, answers) == (error, [])
    else:
        assert effect == "reply_error"
        [answer] = answers
        assert answer[1] == RESULTS[error]
        assert answer[0] >> 4 == 2
        assert answer[2:8] == frame[2:8]


def test_the_connection_goes_on_after_each() -> None:
    session = Csb().session("server")
    session.start(0.0)
    for case in CASES.values():
        if case["id"] not in ELSEWHERE:
            session.receive(frame_of(case), 0.0)
    session.receive(bytes.fromhex("10 00 0009 00000001"), 0.0)
    events = session.events()
    assert not any(isinstance(event, CloseWanted) for event in events)
    assert isinstance(events[-1], Message)
    assert events[-1].kind is Kind.REQUEST


def test_every_case_is_here_or_elsewhere() -> None:
    assert set(ELSEWHERE) < set(CASES)
    assert len(CASES) == 12
