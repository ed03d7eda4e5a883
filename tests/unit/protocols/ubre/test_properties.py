"""What holds for all messages and for all bytes."""

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polybus.errors import Code, RemoteProtocolError
from polybus.message import Kind, Message
from polybus.plugins import Codec, Refused
from polybus.protocols import Ubre

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x7f", min_codepoint=0x20), max_size=40)
IDS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=40)
HEADERS = st.dictionaries(NAMES.filter(bool), NAMES, min_size=1, max_size=4)
NUMBERS = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=8,
)
COUNTS = st.integers(0, 2**53)
DEADLINES = st.integers(0, 10**9).map(lambda milliseconds: milliseconds / 1000)
FAILURES = st.fixed_dictionaries({"text": TEXT, "reason": st.none() | TEXT, "detail": VALUES})
CODES = st.sampled_from([code for code in Code if code is not Code.OK])


def of(
    kind: Kind, bodies: st.SearchStrategy[Any] | None = None, **fields: st.SearchStrategy[Any]
) -> st.SearchStrategy[Message]:
    optional = {} if bodies is None else {"body": bodies}
    if kind in (Kind.REQUEST, Kind.PUBLISH, Kind.RESPONSE, Kind.OPEN):
        optional["headers"] = HEADERS
    if kind in (Kind.REQUEST, Kind.OPEN):
        optional["ttl"] = DEADLINES
    return st.fixed_dictionaries(fields, optional=optional).map(lambda given: Message(kind, **given))


def messages(bodies: st.SearchStrategy[Any], ids: st.SearchStrategy[Any] = IDS) -> st.SearchStrategy[Message]:
    opening = st.fixed_dictionaries(
        {"mode": st.sampled_from(["stream", "channel", "tunnel"]), "credit": COUNTS, "hops": COUNTS}
    )
    items = VALUES | st.binary(max_size=40)
    filled = NAMES.filter(bool)
    return st.one_of(
        of(Kind.REQUEST, bodies, subject=NAMES, id=ids),
        of(Kind.RESPONSE, bodies, id=ids),
        of(Kind.PUBLISH, bodies, subject=filled),
        of(Kind.SUBSCRIBE, subject=filled),
        of(Kind.UNSUBSCRIBE, subject=filled),
        of(Kind.ERROR, id=ids, code=CODES, attributes=FAILURES),
        of(Kind.CANCEL, id=ids),
        of(Kind.OPEN, items, subject=NAMES, id=ids, attributes=opening),
        of(Kind.ITEM, items, id=ids),
        of(Kind.CREDIT, id=ids, attributes=st.fixed_dictionaries({"credit": st.integers(1, 2**53)})),
        of(Kind.END, id=ids),
        of(Kind.END, id=ids, code=CODES, attributes=FAILURES),
    )


def parts(message: Message) -> dict[str, Any]:
    return {
        "kind": message.kind,
        "subject": message.subject,
        "id": message.id,
        "id type": type(message.id),
        "body": (message.body, type(message.body)) if message.has_body else "no body",
        "headers": message.headers,
        "ttl": message.ttl,
        "code": message.code,
        "attributes": message.attributes,
    }


def comes_back(codec: Codec, message: Message) -> None:
    [again] = codec.decode(codec.encode([message]))
    assert isinstance(again, Message)
    assert parts(again) == parts(message)


@given(messages(VALUES, IDS | st.integers(-(2**53), 2**53)))
def test_what_is_written_as_json_is_read_again(message: Message) -> None:
    comes_back(Ubre().codec(), message)
    comes_back(Ubre(dialect="spec").codec(), message)
    comes_back(Ubre(format="any").codec(), message)


@given(messages(VALUES))
def test_what_is_written_in_binary_is_read_again(message: Message) -> None:
    comes_back(Ubre(format="binary").codec(), message)
    comes_back(Ubre(format="binary", dialect="spec").codec(), message)
    comes_back(Ubre(format="binary", body_length=-1).codec(), message)


@given(messages(st.binary(max_size=40)))
def test_what_is_written_in_binary_with_raw_bodies_is_read_again(message: Message) -> None:
    comes_back(Ubre(format="binary", body="raw").codec(), message)


@given(messages(VALUES))
def test_any_reads_what_the_others_write(message: Message) -> None:
    reader = Ubre(format="any").codec()
    for format in ("json", "binary"):
        [again] = reader.decode(Ubre.from_options({"format": format}).codec().encode([message]))
        assert isinstance(again, Message)
        assert parts(again) == parts(message)


ADAPTERS = [Ubre(), Ubre(format="binary"), Ubre(format="binary", body="raw"), Ubre(format="any")]
VERBS = ["request", "success", "fail", "publish", "subscribe", "unsubscribe", "cancel", "open", "item", "credit", "end"]
MEMBERS = ["id", "body", "ttl", "headers", "code", "text", "reason", "detail", "subject", "mode", "n", "hops", "data"]
ODD = VALUES | st.sampled_from([2**53 + 1, -1, 0, "", "a\n", "stream", "\x7f"])
ALMOST_JSON = st.builds(
    lambda verbs, rest: json.dumps({**verbs, **rest}).encode(),
    st.dictionaries(st.sampled_from(VERBS), ODD, max_size=2),
    st.dictionaries(st.sampled_from(MEMBERS) | TEXT, ODD, max_size=6),
)
ALMOST_BINARY = st.builds(
    lambda letter, name, body, error: (
        bytes([letter]) + len(name).to_bytes(2, "big") + max(0, len(body) + error).to_bytes(4, "big") + name + body
    ),
    st.sampled_from(b"RsfcPSUCOoIiKE{X"),
    st.lists(st.binary(max_size=8) | ALMOST_JSON, max_size=4).map(b"\0".join),
    st.binary(max_size=20) | ALMOST_JSON,
    st.sampled_from([0, 0, 0, 0, 1, -1]),
)
ANYTHING = st.binary(max_size=60) | ALMOST_JSON | ALMOST_BINARY


@pytest.mark.parametrize("adapter", ADAPTERS, ids=str)
@given(frame=ANYTHING)
def test_any_bytes_give_messages_or_a_remote_protocol_error(adapter: Ubre, frame: bytes) -> None:
    try:
        [message] = adapter.codec().decode(frame)
    except RemoteProtocolError as error:
        assert error.reason
        assert error.frame == frame[:200]
    else:
        assert isinstance(message, Message)
        assert not message.has_body or message.body == message.format.decode(message.raw or b"")
        assert isinstance(adapter.codec().encode([message]), bytes)


@pytest.mark.parametrize("adapter", ADAPTERS, ids=str)
@given(frames=st.lists(ANYTHING, max_size=5))
def test_a_session_never_raises_and_its_answers_can_be_read(adapter: Ubre, frames: list[bytes]) -> None:
    session = adapter.session("server", rng=random.Random(0))
    session.send(Message(Kind.REQUEST, "m"), 0.0)
    session.frames_to_send()
    for frame in frames:
        session.receive(frame, 0.0)
    assert all(isinstance(event, (Message, Refused)) or type(event).__name__ == "CloseWanted" for event in session.events())
    for answer in session.frames_to_send():
        [message] = session.codec.decode(answer)
        assert isinstance(message, Message)
        assert message.kind is Kind.ERROR
