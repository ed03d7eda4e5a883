"""The fuzz targets, for a moment each: seeds, and seeds that were cut, joined and damaged."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuzz.targets import TARGETS
from polybus import RemoteProtocolError, protocols


def test_every_protocol_has_a_target() -> None:
    assert {name.partition("-")[0] for name in TARGETS} == {getattr(protocols, name)().name for name in protocols.__all__}


@pytest.mark.parametrize("name", TARGETS)
def test_the_seeds_do_no_harm_and_some_of_them_are_good(name: str) -> None:
    target = TARGETS[name]
    good = 0
    for seed in target.seeds():
        target(seed)
        for adapter in target.adapters:
            try:
                good += len(adapter.codec().decode(seed))
            except RemoteProtocolError:
                continue
    assert good > 5


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from(
        [10**400, 2**53 + 1, -1, "", "a\n", "\x7f", "ServerBus", "a:1:RespondTo:RPC", "CS4", "stream", "^EncodedType"]
    )
    | st.floats(allow_nan=False)
    | st.text(st.characters(), max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=6,
)


def objects_of(value: Any) -> list[dict[str, Any]]:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [value] * isinstance(value, dict) + [found for one in inner for found in objects_of(one)]


def odd(seeds: list[bytes]) -> st.SearchStrategy[bytes]:
    """A seed of JSON with other values, of whatever type, in some of its members or in those that other seeds have."""
    texts = []
    for seed in seeds:
        try:
            if objects_of(json.loads(seed)):
                texts.append(seed)
        except ValueError:
            continue
    names = sorted({name for text in texts for one in objects_of(json.loads(text)) for name in one})

    def made(text: bytes, changes: list[tuple[int, str | int, Any]]) -> bytes:
        document = json.loads(text)
        objects = objects_of(document)
        for place, name, value in changes:
            one = objects[place % len(objects)]
            own = list(one) or names
            one[name if isinstance(name, str) else own[name % len(own)]] = value
        return json.dumps(document).encode()

    change = st.tuples(st.integers(0, 20), st.integers(0, 20) | st.sampled_from(names), VALUES)
    return st.builds(made, st.sampled_from(texts), st.lists(change, min_size=1, max_size=4))


def damaged(seeds: list[bytes]) -> st.SearchStrategy[bytes]:
    """A seed with some bytes changed, taken out or put in, also those of another."""
    which = st.integers(0, len(seeds) - 1)
    patch = st.binary(max_size=4) | which.map(lambda at: seeds[at][:64])
    wound = st.tuples(st.integers(0, 2048), st.integers(0, 4), patch)

    def made(at: int, wounds: list[tuple[int, int, bytes]]) -> bytes:
        data = bytearray(seeds[at][:2048])
        for start, cut, put in wounds:
            start %= len(data) + 1
            data[start : start + cut] = put
        return bytes(data)

    return st.builds(made, which, st.lists(wound, max_size=3))


@pytest.mark.parametrize("name", ["ubre", "jrep", "uprotocol"])
def test_members_of_any_type_do_no_harm(name: str) -> None:
    target = TARGETS[name]

    @settings(max_examples=40)
    @given(odd(target.seeds()))
    def tried(data: bytes) -> None:
        target(data)

    tried()


@pytest.mark.parametrize("name", TARGETS)
def test_damaged_frames_do_no_harm(name: str) -> None:
    target = TARGETS[name]

    @settings(max_examples=60)
    @given(damaged(target.seeds()))
    def tried(data: bytes) -> None:
        target(data)

    tried()
