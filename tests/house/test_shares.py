"""What `make test` leaves to each class of a contract."""

from __future__ import annotations

import itertools
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from tests.loops import ASYNCIO, LOOPS
from tests.shares import left_to, share_out, take_turns, traits_of

TESTS = [f"test_{number}" for number in range(12)]


def made(protocol: str, *loops: str, skip: str = "") -> Any:
    """A class with these tests."""

    def empty(self: Any) -> None:
        pass

    tests: dict[str, Any] = {name: pytest.mark.skip(reason="")(lambda _: None) if name == skip else empty for name in TESTS}
    return type("Suite", (), {**tests, "make": staticmethod(lambda: SimpleNamespace(name=protocol)), "loops": loops})


def every_form_on_every_transport(protocol: str) -> dict[str, Any]:
    places = itertools.product(("Short", "Long"), ("Memory", "Tcp", "WebSocket"))
    return {
        f"Test{form}{protocol}Over{transport}": made(protocol, LOOPS[number % 3])
        for number, (form, transport) in enumerate(places)
    }


def test_each_test_meets_each_trait_of_a_protocol_and_each_class_has_a_share_of_the_tests() -> None:
    classes = {**every_form_on_every_transport("Ubre"), **every_form_on_every_transport("Csb")}
    share_out(classes, full=False)
    for protocol in ("Ubre", "Csb"):
        group = {name: cls for name, cls in classes.items() if protocol in name}
        for test in TESTS:
            met = [traits_of(name, cls) for name, cls in group.items() if test in left_to(cls)]
            forms = {f"form {form}{protocol}" for form in ("Short", "Long")}
            assert {*itertools.chain(*met)} == {*LOOPS, *forms, "transport memory", "transport tcp", "transport ws"}
            assert len(met) <= 4
        assert all(4 <= len(left_to(cls)) <= 8 for cls in group.values())


def test_a_test_that_a_class_skips_is_left_to_the_others() -> None:
    classes = {"TestShortOverTcp": made("csb", ASYNCIO, skip="test_3"), "TestShortOverUnix": made("csb", ASYNCIO)}
    take_turns(classes, full=False)
    shares = [left_to(cls) for cls in classes.values()]
    assert "test_3" in shares[1]
    assert sorted([*shares[0], *shares[1]]) == sorted(TESTS)
    assert Counter(map(len, shares)) == {6: 2}


@pytest.mark.parametrize("share", [share_out, take_turns])
def test_nothing_is_left_out_of_the_whole_product(share: Any) -> None:
    classes = every_form_on_every_transport("Ubre")
    share(classes, full=True)
    assert all(left_to(cls) == {*TESTS} for cls in classes.values())
