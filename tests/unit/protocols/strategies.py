"""What messages are made of, for properties of several protocols."""

from typing import Any

from hypothesis import strategies as st

from polybus import Code, Kind, Message

Strategy = st.SearchStrategy[Any]

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x7f", min_codepoint=0x20), max_size=40)
HEADERS = st.dictionaries(NAMES.filter(bool), NAMES, min_size=1, max_size=4)
NUMBERS = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
COUNTS = st.integers(0, 2**53)
TTLS = st.integers(0, 10**9).map(lambda milliseconds: milliseconds / 1000)
CODES = st.sampled_from([code for code in Code if code is not Code.OK])


def values(leaves: Strategy, within: Strategy = st.nothing(), keys: Strategy = TEXT) -> Strategy:  # noqa: B008  # immutable
    """Plain values: `leaves`, and lists and dictionaries of these and of `within`."""
    return st.recursive(
        leaves,
        lambda inner: st.lists(inner | within, max_size=4) | st.dictionaries(keys, inner | within, max_size=4),
        max_leaves=8,
    )


VALUES = values(st.none() | st.booleans() | NUMBERS | TEXT)
FAILURES = st.fixed_dictionaries({"text": TEXT, "reason": st.none() | TEXT, "detail": VALUES})


def messages_of(kind: Kind, bodies: Strategy | None = None, **fields: Strategy) -> st.SearchStrategy[Message]:
    """Messages of a kind with these fields, perhaps with a body, and with headers and a time where the kind has them."""
    optional = {} if bodies is None else {"body": bodies}
    if kind in (Kind.REQUEST, Kind.PUBLISH, Kind.RESPONSE, Kind.OPEN):
        optional["headers"] = HEADERS
    if kind in (Kind.REQUEST, Kind.OPEN):
        optional["ttl"] = TTLS
    return st.fixed_dictionaries(fields, optional=optional).map(lambda given: Message(kind, **given))
