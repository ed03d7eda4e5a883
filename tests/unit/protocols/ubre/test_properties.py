"""What holds for all messages and for all bytes."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from polybus.errors import Code
from polybus.message import Kind, Message
from polybus.plugins import Codec
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
