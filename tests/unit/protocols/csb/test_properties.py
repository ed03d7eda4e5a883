"""What holds for all messages and for all bytes."""

from __future__ import annotations

import struct
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from polybus.errors import Code, RemoteProtocolError
from polybus.message import Kind, Message
from polybus.plugins import PeerClosed, PeerOpened, Ready, Refused
from polybus.protocols import Csb
from polybus.protocols.csb import wire

CODEC = Csb(actions={"user.login": 0x00010001}).codec()
WRAPPED = Csb(side="broker-server").codec()
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x7f", min_codepoint=0x20), max_size=40)
ACTIONS = st.integers(0, wire.FIRST_RESERVED - 1).filter(lambda number: number != 0x00010001)
SUBJECTS = NAMES | ACTIONS | st.just("user.login")
NUMBERS = st.integers(0, 0xFFFF)
HEADERS = st.dictionaries(NAMES.filter(bool), NAMES, min_size=1, max_size=4)
VALUES = st.recursive(
    st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner | st.none() | TEXT, max_size=4) | st.dictionaries(TEXT, inner | st.none() | TEXT, max_size=4),
    max_leaves=8,
)
BODIES = VALUES | TEXT | st.binary(max_size=40)
FAILURES = st.fixed_dictionaries({"text": TEXT, "reason": st.none() | TEXT, "detail": st.none() | VALUES})
CODES = st.sampled_from([code for code in Code if code is not Code.OK])
OPENINGS = st.fixed_dictionaries(
    {
        "mode": st.sampled_from(["stream", "channel", "tunnel"]),
        "credit": st.integers(0, 2**32 - 1),
        "hops": st.integers(0, 2**32 - 1),
    }
)
DEADLINES = st.integers(0, 10**9).map(lambda milliseconds: milliseconds / 1000)


def written(kind: Kind, id: Any = None, subject: Any = "", **facts: Any) -> Message:
    message = Message(kind, subject, id)
    for name, value in facts.items():
        if name == "body":
            message.format = CODEC.format_for(value, subject)
            message.raw = message.format.encode(value)
        else:
            setattr(message, "extras" if name == "attributes" else name, value)
    return message


def comes_back(message: Message) -> Message:
    [again] = CODEC.decode(CODEC.encode([message]))
    assert isinstance(again, Message)
    assert (again.kind, again.code) == (message.kind, message.code)
    return again


@given(SUBJECTS, NUMBERS, st.none() | BODIES)
def test_requests_come_back(subject: Any, number: int, body: Any) -> None:
    facts = {} if body is None else {"body": body}
    again = comes_back(written(Kind.REQUEST, number, subject, **facts))
    assert (again.subject, again.id & 0xFFFF, again.body) == (subject, number, body)
    assert type(again.body) is type(body)


@given(SUBJECTS, NUMBERS, HEADERS, DEADLINES, BODIES)
def test_requests_with_headers_and_deadlines_come_back(
    subject: Any, number: int, headers: dict[str, str], ttl: float, body: Any
) -> None:
    message = written(Kind.REQUEST, wire.REQUEST_MORE << 16 | number, subject, headers=headers, ttl=ttl, body=body)
    again = comes_back(message)
    assert (again.subject, again.id, again.headers, again.body) == (subject, message.id, headers, body)
    assert again.ttl is not None
    assert abs(again.ttl - ttl) < 0.001


@given(SUBJECTS, st.none() | HEADERS, st.none() | BODIES)
def test_publications_come_back(subject: Any, headers: dict[str, str] | None, body: Any) -> None:
    facts = {} if body is None else {"body": body}
    again = comes_back(written(Kind.PUBLISH, None, subject, headers=headers, **facts))
    assert (again.subject, again.headers, again.body) == (subject, headers, body)


@given(ACTIONS, NUMBERS, st.none() | BODIES)
def test_responses_come_back(action: int, number: int, body: Any) -> None:
    facts = {} if body is None else {"body": body}
    again = comes_back(written(Kind.RESPONSE, action << 16 | number, **facts))
    assert (again.id, again.body) == (action << 16 | number, body)


@given(ACTIONS, NUMBERS, CODES, FAILURES)
def test_errors_come_back(action: int, number: int, code: Code, facts: dict[str, Any]) -> None:
    again = comes_back(written(Kind.ERROR, action << 16 | number, code=code, attributes=dict(facts)))
    assert (again.id, again.attributes) == (action << 16 | number, facts)


@given(SUBJECTS, NUMBERS, OPENINGS, st.none() | HEADERS, st.none() | DEADLINES, BODIES)
def test_opens_come_back(subject: Any, number: int, facts: Any, headers: Any, ttl: float | None, body: Any) -> None:
    message = written(Kind.OPEN, wire.OPEN << 16 | number, subject, attributes=dict(facts), headers=headers, ttl=ttl, body=body)
    again = comes_back(message)
    assert (again.subject, again.id, again.headers, again.body) == (subject, message.id, headers, body)
    assert {name: again.attributes[name] for name in facts} == facts


@given(NUMBERS, st.booleans(), BODIES, CODES, FAILURES, st.integers(1, 2**32 - 1))
def test_items_credits_and_ends_come_back(
    number: int, answering: bool, body: Any, code: Code, facts: dict[str, Any], credit: int
) -> None:
    id = wire.OPEN << 16 | number
    id = ~id if answering else id
    assert comes_back(written(Kind.ITEM, id, body=body)).body == body
    assert comes_back(written(Kind.CREDIT, id, attributes={"credit": credit})).attributes["credit"] == credit
    assert comes_back(written(Kind.END, id)).id == id
    failed = comes_back(written(Kind.END, id, code=code, attributes=dict(facts)))
    assert (failed.id, failed.attributes) == (id, facts)


def frames() -> st.SearchStrategy[bytes]:
    """Bytes that get past the first checks more often than chance allows."""
    heads = st.builds(
        struct.Struct(">BBHI").pack,
        st.integers(0, 255) | st.sampled_from([0x10, 0x11, 0x12, 0x13, 0x14, 0x20, 0x22]),
        st.integers(0, 255) | st.just(0),
        NUMBERS,
        st.integers(0xFFFF0000, 0xFFFF000F) | st.integers(0, 2**32 - 1),
    )
    lengths = st.builds(struct.Struct(">H").pack, st.integers(0, 6) | st.just(0xFFFF))
    return st.builds(lambda *parts: b"".join(parts), heads, lengths | st.just(b""), st.binary(max_size=40))


@given(frames() | st.binary(max_size=40))
def test_any_bytes_give_messages_or_a_refusal(frame: bytes) -> None:
    for codec in (CODEC, WRAPPED):
        try:
            [message] = codec.decode(frame)
        except RemoteProtocolError as error:
            assert error.protocol == "csb"
        else:
            assert isinstance(message, Message)
            _ = message.body


@given(st.lists(frames(), max_size=8))
def test_a_session_takes_any_bytes(given_frames: list[bytes]) -> None:
    for adapter, head in ((Csb(), b""), (Csb(side="broker-server"), (7).to_bytes(4))):
        session = adapter.session("server")
        session.start(0.0)
        if head:
            session.receive(head + bytes.fromhex("d0000000 00000000"), 0.0)
        for frame in given_frames:
            session.receive(head + frame, 0.0)
        assert all(isinstance(event, Message | Ready | Refused | PeerOpened | PeerClosed) for event in session.events())
        for frame in session.frames_to_send():
            adapter.codec().decode(frame)
