"""What holds for all messages, for all bytes and for all ways of cutting them."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from polybus.errors import Code
from polybus.limits import Limits
from polybus.message import Kind, Message
from polybus.protocols import Nats
from polybus.protocols.nats.framing import NatsCutter
from polybus.protocols.nats.operations import OperationReader, write_message

CODEC = Nats().codec()
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
TOKENS = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters=" \x7f.*>", min_codepoint=0x21), min_size=1, max_size=12
)
SUBJECTS = st.lists(TOKENS, min_size=1, max_size=4).map(".".join).filter(lambda name: not name.startswith("_INBOX"))
NAMES = st.text("abcXYZ019-_", min_size=1, max_size=12)
LINES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n\x00"), max_size=30).map(
    lambda text: text.strip(" \t")
)
HEADERS = st.none() | st.dictionaries(NAMES, LINES, min_size=1, max_size=4)
VALUES = st.recursive(
    st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner | st.none(), max_size=4) | st.dictionaries(TEXT, inner | st.none(), max_size=4),
    max_leaves=8,
)
BODIES = VALUES | st.binary(min_size=1, max_size=40)
INBOXES = st.from_regex(r"_INBOX\.[A-Za-z0-9]{1,20}\.[a-z0-9]{1,12}", fullmatch=True)
MILLISECONDS = st.none() | st.integers(0, 10**9).map(lambda number: number / 1000)


def written(kind: Kind, subject: str, id: Any, body: Any, headers: Any, ttl: Any = None) -> Message:
    message = Message(kind, subject, id, headers=headers, ttl=ttl)
    message.format = CODEC.format_for(body, subject)
    message.raw = message.format.encode(body)
    return message


def comes_back(message: Message) -> Message:
    [again] = CODEC.decode(CODEC.encode([message]))
    assert isinstance(again, Message)
    assert (again.kind, again.subject, again.id) == (message.kind, message.subject, message.id)
    assert again.body == message.body
    assert (again.headers or None, again.ttl) == (message.headers, message.ttl)
    return again


@given(SUBJECTS, INBOXES, BODIES, HEADERS, MILLISECONDS)
def test_publications_requests_and_responses_come_back(subject: str, inbox: str, body: Any, headers: Any, ttl: Any) -> None:
    comes_back(written(Kind.PUBLISH, subject, None, body, headers))
    comes_back(written(Kind.REQUEST, subject, inbox, body, headers, ttl))
    comes_back(written(Kind.RESPONSE, "", inbox, body, headers))


@given(INBOXES, st.sampled_from([code for code in Code if code]), TEXT, st.none() | TEXT, st.none() | VALUES)
def test_errors_come_back(inbox: str, code: Code, text: str, reason: Any, detail: Any) -> None:
    facts = {"text": text, "reason": reason, "detail": detail}
    [again] = CODEC.decode(CODEC.encode([Message(Kind.ERROR, "", inbox, code=code, attributes=facts)]))
    assert isinstance(again, Message)
    assert (again.kind, again.code, again.id, again.attributes) == (Kind.ERROR, code, inbox, facts)


@given(st.lists(st.tuples(SUBJECTS, st.binary(max_size=50)), max_size=6), st.lists(st.integers(0, 400), max_size=12))
def test_any_cutting_of_a_stream_gives_its_operations(messages: list[tuple[str, bytes]], cuts: list[int]) -> None:
    frames = [write_message(subject, "2", None, b"", payload) for subject, payload in messages]
    data, cutter = b"".join(frames), NatsCutter(1000, plain=False)
    edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    got = [frame for start, end in zip(edges, edges[1:], strict=False) for frame in cutter.feed(data[start:end])]
    assert got == frames
    reader = OperationReader(Limits())
    assert [(one.subject, one.payload) for one in map(reader.read, got)] == messages


@given(st.lists(st.binary(max_size=60), max_size=8))
def test_any_bytes_in_any_chunks_are_cut_within_bounds(chunks: list[bytes]) -> None:
    cutter, size = NatsCutter(100, plain=True), 0
    for chunk in chunks:
        size += len(chunk)
        for frame in cutter.feed(chunk):
            assert len(frame) <= size
        assert cutter.arrived <= size
    if cutter.broken is not None:
        assert cutter.feed(b"PING\r\n") == []
