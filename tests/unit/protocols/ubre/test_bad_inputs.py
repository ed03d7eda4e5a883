"""The UBRE cases of the shared bad inputs, as far as one connection can tell; the rest is the bus's and the transports'."""

import json
from pathlib import Path
from typing import Any

import pytest

from polybus.message import Kind, Message
from polybus.plugins import CloseWanted, Refused
from polybus.protocols import Ubre
from polybus.protocols.ubre.session import UbreSession

VECTORS = Path(__file__).parents[3] / "vectors" / "bad_inputs.json"
CASES: dict[str, dict[str, Any]] = {
    case["id"]: case for case in json.loads(VECTORS.read_text())["cases"] if case["protocol"] in ("ubre", "ubre-binary")
}

# The vectors' word, and ours where it is another.
REASONS = {"invalid_topic": "invalid_subject"}

# Well-formed for the session; what makes them bad is decided above it.
GOES_UP = {
    "ubre-022": Kind.REQUEST,  # an id in flight twice: the bus knows what is in flight
    "ubre-023": Kind.REQUEST,  # nobody serves it
    "ubre-024": Kind.REQUEST,  # a magic name is a name
    "ubre-045": Kind.REQUEST,  # the requester goes away
    "ubre-046": Kind.REQUEST,  # the document's dialect
    "ubre-050": Kind.PUBLISH,  # a loop of bridges
}
ELSEWHERE = {
    "ubre-020": "late answers: the ids there are not of our form, see test_session",
    "ubre-021": "late answers: the ids there are not of our form, see test_session",
    "ubre-041": "a flood of subscriptions: the bus counts them",
    "ubre-042": "a flood of requests: the bus counts them",
    "ubreb-006": "the body length -1, allowed: see below",
    "ubreb-014": "the length before a frame belongs to the transport",
    "ubreb-015": "keep-alives belong to the transport",
}


def frames_of(case: dict[str, Any]) -> list[bytes]:
    given = case["input"]
    match given["kind"]:
        case "text":
            return [given["value"].encode()]
        case "hex":
            return [bytes.fromhex(given["value"])]
        case "repeat":
            return [(given["prefix"] + given["unit"] * given["count"] + given["suffix"]).encode()]
        case "steps":
            return [step["send"].encode() for step in given["value"] if step["send"] != "<close>"]
    raise AssertionError(given)


def session_for(case: dict[str, Any]) -> UbreSession:
    session = Ubre(format="binary" if case["protocol"] == "ubre-binary" else "json").session("server")
    session.start(0.0)
    session.events()
    return session


def good_frame_of(session: UbreSession) -> bytes:
    return session.codec.encode([Message(Kind.REQUEST, "m", "1", body=1)])


@pytest.mark.parametrize("name", [name for name in CASES if name not in GOES_UP and name not in ELSEWHERE])
def test_it_is_refused_for_the_reason_that_the_vector_gives(name: str) -> None:
    case = CASES[name]
    session = session_for(case)
    for frame in frames_of(case):
        session.receive(frame, 0.0)
    refused, *rest = session.events()
    assert isinstance(refused, Refused)
    expected = case["expected"]
    assert refused.error.reason == REASONS.get(expected["error"], expected["error"])
    assert "\n" not in str(refused.error)
    if expected["effect"] == "drop_count":
        assert rest == []
    else:
        [close] = rest
        assert isinstance(close, CloseWanted)
        assert expected["effect"] == f"close_{close.code}"


def test_a_body_of_length_minus_1_is_the_rest_of_the_frame() -> None:
    codec = Ubre(format="binary", body="raw").codec()
    [message] = codec.decode(frames_of(CASES["ubreb-006"])[0])
    assert isinstance(message, Message)
    assert (message.kind, message.subject, message.raw) == (Kind.PUBLISH, "t", b"abc")


def test_an_integer_of_5000_digits_is_refused_and_not_answered() -> None:
    session = session_for(CASES["ubre-031"])
    session.receive(frames_of(CASES["ubre-031"])[0], 0.0)
    assert session.frames_to_send() == []


@pytest.mark.parametrize("name", GOES_UP)
def test_it_is_a_message_for_the_session(name: str) -> None:
    session = session_for(CASES[name])
    for frame in frames_of(CASES[name]):
        session.receive(frame, 0.0)
    events = session.events()
    assert events
    for event in events:
        assert isinstance(event, Message)
        assert event.kind is GOES_UP[name]


@pytest.mark.parametrize("name", CASES)
def test_a_good_request_right_after_is_received(name: str) -> None:
    session = session_for(CASES[name])
    if name not in ELSEWHERE:
        for frame in frames_of(CASES[name]):
            session.receive(frame, 0.0)
    session.events()
    session.receive(good_frame_of(session), 0.0)
    [message] = session.events()
    assert isinstance(message, Message)
    assert message.subject == "m"


def test_every_case_is_spoken_for() -> None:
    assert set(GOES_UP) | set(ELSEWHERE) < set(CASES)
