"""The fuzz targets, for a moment each: seeds, and seeds that were cut, joined and damaged."""

from __future__ import annotations

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


@pytest.mark.parametrize("name", TARGETS)
def test_damaged_frames_do_no_harm(name: str) -> None:
    target = TARGETS[name]

    @settings(max_examples=150)
    @given(damaged(target.seeds()))
    def tried(data: bytes) -> None:
        target(data)

    tried()
