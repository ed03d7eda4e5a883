"""What `make test` leaves out of the cases that differ by their event loop alone."""

from __future__ import annotations

import re
from collections import defaultdict
from itertools import chain, combinations, product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.loops import LOOPS, left_out


def made(test: str, loops: tuple[str, ...], cases: int | list[dict[str, int]], *marks: str) -> list[Any]:
    each = [{"case": case} for case in range(cases)] if isinstance(cases, int) else cases
    return [
        SimpleNamespace(
            nodeid=f"{test}[{loop}-{number}]",
            callspec=SimpleNamespace(params={"anyio_backend": (loop, {}), "case": number}, indices=case),
            get_closest_marker=lambda name: name in marks or None,
        )
        for loop, (number, case) in product(loops, enumerate(each))
    ]


@pytest.mark.parametrize("cases", [2, 3, 8])
@pytest.mark.parametrize("loops", [LOOPS[:2], LOOPS], ids=["two loops", "three loops"])
@pytest.mark.parametrize("folder", ["unit", "integration/web", "integration/interop", "integration/processes"])
def test_each_test_keeps_all_of_its_cases_and_loops_and_no_pair_is_left_out_by_all_tests(
    folder: str, loops: tuple[str, ...], cases: int
) -> None:
    tests = [f"tests/{folder}/test_x.py::test_{number}" for number in range(20)]
    items = [item for test in tests for item in made(test, loops, cases)]
    out = {item.nodeid for item in left_out(items)}
    met: defaultdict[str, set[Any]] = defaultdict(set)
    for item in items:
        if item.nodeid not in out:
            met[item.nodeid.partition("[")[0]].add((item.callspec.params["anyio_backend"][0], item.callspec.params["case"]))
    assert [*met] == tests
    for pairs in met.values():
        assert {loop for loop, _ in pairs} == {*loops}
        assert {case for _, case in pairs} == {*range(cases)}
        assert len(pairs) == max(cases, len(loops))
    assert set().union(*met.values()) == {*product(loops, range(cases))}


@pytest.mark.parametrize(
    "items",
    [
        made("tests/unit/test_x.py::test_alone", LOOPS[:2], 1),
        made("tests/integration/processes/test_x.py::test_alone", LOOPS, 1),
        made("tests/unit/test_x.py::test_chosen", LOOPS[:1], 4),
        made("tests/integration/web/test_x.py::test_y", LOOPS[:2], 4, "browser"),
        made("tests/contract/test_x.py::test_y", LOOPS[:2], 4),
    ],
    ids=["one case", "one case on every loop", "chosen", "browser", "contract"],
)
def test_nothing_is_left_out_where_there_is_one_case_or_a_browser_or_where_a_class_names_its_loops(items: list[Any]) -> None:
    assert left_out(items) == []


@pytest.mark.parametrize("cases", [1, 2, 8])
def test_a_costly_test_keeps_each_of_its_cases_on_one_loop_and_others_have_another(cases: int) -> None:
    tests = [made(f"tests/unit/test_x.py::test_{number}", LOOPS, cases, "costly") for number in range(20)]
    kept = [[item for item in items if item not in left_out(items)] for items in tests]
    assert all(sorted(item.callspec.params["case"] for item in items) == [*range(cases)] for items in kept)
    assert {item.callspec.params["anyio_backend"][0] for items in kept for item in items} == {*LOOPS}


def test_of_three_parameters_every_pair_of_values_is_kept_and_every_loop() -> None:
    cases = [dict(zip("abc", place, strict=True)) for place in product(range(5), range(3), range(5))]
    items = made("tests/unit/test_x.py::test_y", LOOPS, cases, "pairwise")
    out = left_out(items)
    kept = [item for item in items if item not in out]
    assert {item.callspec.params["anyio_backend"][0] for item in kept} == {*LOOPS}
    met = [combinations(sorted(item.callspec.indices.items()), 2) for item in kept]
    assert {*chain(*met)} == {*chain(*(combinations(sorted(case.items()), 2) for case in cases))}
    assert len(kept) < len(cases) / 2


def test_what_is_marked_for_make_test_all_is_left_out_wherever_it_is() -> None:
    items = made("tests/house/test_x.py::test_y", LOOPS, 1, "full")
    assert left_out(items) == items


def test_whatever_is_for_the_other_tier_alone_is_named_in_contributing() -> None:
    root = Path(__file__).parents[2]
    mark = "pytest.mark." + "full"
    files = [path for depth in ("*", "*/*", "*/*/*") for path in root.glob(f"tests/{depth}/test_*.py")]
    named = set(re.findall(r"`(?:integration/\w+/)?(test_\w+\.py)`", (root / "CONTRIBUTING.md").read_text()))
    assert {path.name for path in files if mark in path.read_text()} <= named
