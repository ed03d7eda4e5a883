"""What holds for all messages and for all bytes."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, TypeAlias

import pytest
from hypothesis import given, settings
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


Strategies: TypeAlias = Mapping[str, st.SearchStrategy[Any]]


def of(kind: Kind, optional: Strategies = {}, **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Message]:  # noqa: B006  # read
    made: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(fields, optional={**optional})
    return made.map(lambda given: written(kind, **given))


def ids_under(action: int) -> st.SearchStrategy[int]:
    return NUMBERS.map(lambda number: action << 16 | number)


ANSWERED = st.builds(lambda action, number: action << 16 | number, ACTIONS, NUMBERS)
OPENED = ids_under(wire.OPEN) | ids_under(wire.OPEN).map(lambda id: ~id)
ANY_BODY: Strategies = {"body": BODIES}
MESSAGES = st.one_of(
    of(Kind.REQUEST, ANY_BODY, subject=SUBJECTS, id=NUMBERS),
    of(Kind.REQUEST, subject=SUBJECTS, id=ids_under(wire.REQUEST_MORE), headers=HEADERS, ttl=DEADLINES, body=BODIES),
    of(Kind.PUBLISH, {"headers": HEADERS, **ANY_BODY}, subject=SUBJECTS),
    of(Kind.RESPONSE, ANY_BODY, id=ANSWERED),
    of(Kind.ERROR, id=ANSWERED, code=CODES, attributes=FAILURES),
    of(
        Kind.OPEN,
        {"headers": HEADERS, "ttl": DEADLINES},
        subject=SUBJECTS,
        id=ids_under(wire.OPEN),
        attributes=OPENINGS,
        body=BODIES,
    ),
    of(Kind.ITEM, id=OPENED, body=BODIES),
    of(Kind.CREDIT, id=OPENED, attributes=st.fixed_dictionaries({"credit": st.integers(1, 2**32 - 1)})),
    of(Kind.END, id=OPENED),
    of(Kind.END, id=OPENED, code=CODES, attributes=FAILURES),
)


@settings(max_examples=3 * settings().max_examples)
@given(MESSAGES)
def test_messages_of_every_kind_come_back(message: Message) -> None:
    [again] = CODEC.decode(CODEC.encode([message]))
    assert isinstance(again, Message)
    assert (again.kind, again.subject, again.code, again.headers) == (
        message.kind,
        message.subject,
        message.code,
        message.headers,
    )
    assert (again.body, type(again.body)) == (message.body, type(message.body))
    assert again.ttl == pytest.approx(message.ttl, abs=0.001)
    assert {name: again.attributes[name] for name in message.attributes} == message.attributes
    if message.kind is Kind.REQUEST:
        assert again.id & 0xFFFF == message.id & 0xFFFF
    elif message.kind is not Kind.PUBLISH:
        assert again.id == message.id


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
