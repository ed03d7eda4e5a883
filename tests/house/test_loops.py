"""What `make test` leaves out of the cases that differ by their event loop alone."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import defaultdict
from itertools import chain, combinations, product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.loops import FULL, LOOPS, PARAMS, left_out


def made(test: str, loops: tuple[str, ...], cases: int | list[dict[str, int]], *marks: str) -> list[Any]:
    each = [{"case": case} for case in range(cases)] if isinstance(cases, int) else cases
    return [
        SimpleNamespace(
            nodeid=f"{test}[{loop}-{number}]",
            callspec=SimpleNamespace(params={"anyio_backend": (loop, {}), **case}),
            get_closest_marker=lambda name: SimpleNamespace(args=["b"]) if name in marks else None,
        )
        for loop, (number, case) in product(loops, enumerate(each))
    ]


def given(item: Any) -> dict[str, int]:
    return {name: value for name, value in item.callspec.params.items() if name != "anyio_backend"}


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
        made("tests/integration/processes/test_x.py::test_alone", LOOPS, 1),
        made("tests/unit/test_x.py::test_chosen", LOOPS[:1], 4),
        made("tests/integration/web/test_x.py::test_y", LOOPS[:2], 4, "browser"),
        made("tests/contract/test_x.py::test_y", LOOPS[:2], 4),
    ],
    ids=["one case on every loop", "chosen", "browser", "contract"],
)
def test_nothing_is_left_out_where_there_is_one_case_on_every_loop_or_a_browser_or_where_a_class_names_its_loops(
    items: list[Any],
) -> None:
    assert left_out(items) == []


def usual(test: str, cases: int = 1, **given: Any) -> list[Any]:
    """Items as a module has them that says nothing about loops."""
    items = made(test, (LOOPS[0], LOOPS[-1]), cases)
    for item in items:
        item.callspec.params["anyio_backend"] = PARAMS[item.callspec.params["anyio_backend"][0]].values[0]
        vars(item).update(given)
    return items


def test_of_a_test_with_one_case_that_is_not_about_loops_one_loop_is_kept_and_of_the_next_test_the_other() -> None:
    module = SimpleNamespace(test_a=waits, test_b=waits, test_bare=usual, test_c=waits, other=waits)
    tests = [usual(f"tests/unit/test_x.py::{name}", module=module) for name in ("test_a", "test_b", "test_c")]
    kept = [[item for item in items if item not in left_out(items)] for items in tests]
    assert [[item.callspec.params["anyio_backend"][0] for item in found] for found in kept] == [
        ["asyncio"],
        ["trio"],
        ["asyncio"],
    ]
    kept_of_all = [item for item in chain(*tests) if item not in left_out(chain(*tests))]
    assert kept_of_all == [*chain(*kept)], "whatever else is run"


async def waits() -> None: ...


def asks(anyio_backend_name: str) -> None: ...


@pytest.mark.parametrize("given", [{"function": asks}, {"cls": SimpleNamespace(loops=LOOPS[:1])}], ids=["test", "class"])
def test_a_test_that_asks_for_its_loop_keeps_both_and_so_does_one_whose_class_names_them(given: dict[str, Any]) -> None:
    assert left_out(usual("tests/unit/test_x.py::test_a", **given)) == []


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
    met = [combinations(sorted(given(item).items()), 2) for item in kept]
    assert {*chain(*met)} == {*chain(*(combinations(sorted(case.items()), 2) for case in cases))}
    assert len(kept) < len(cases) / 2


def test_each_value_is_kept_in_fewer_cases_than_every_pair() -> None:
    cases = [dict(zip("ab", place, strict=True)) for place in product(range(3), range(2))]
    items = made("tests/unit/test_x.py::test_y", LOOPS[:1], cases, "each_value")
    out = left_out(items)
    kept = [given(item) for item in items if item not in out]
    assert ({case["a"] for case in kept}, {case["b"] for case in kept}, len(kept)) == ({0, 1, 2}, {0, 1}, 3)


def test_of_a_real_test_too() -> None:
    test = (
        "tests/integration/processes/test_workers.py::test_at_sigterm_running_requests_are_answered_while_the_engine_is_there"
    )
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-n", "0", test]
    found = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True).stdout
    cases = re.findall(r"there\[(\w+)-(\w+)\]", found)
    assert [*map(set, zip(*cases, strict=True))] == [{"supervisor", "all"}, {"asyncio", "trio"}]
    assert len(cases) == (4 if FULL else 2)


def test_of_a_parameter_in_turn_one_value_is_kept_and_in_another_test_another() -> None:
    cases = [dict(zip("ab", place, strict=True)) for place in product(range(3), range(2))]
    tests = [made(f"tests/integration/processes/test_x.py::test_{number}", ("",), cases, "in_turn") for number in range(20)]
    kept = [[given(item) for item in items if item not in left_out(items)] for items in tests]
    assert all([case["a"] for case in found] == [0, 1, 2] for found in kept)
    assert {(len({case["b"] for case in found}), found[0]["b"]) for found in kept} == {(1, 0), (1, 1)}


def test_what_is_marked_for_make_test_all_is_left_out_wherever_it_is() -> None:
    items = made("tests/house/test_x.py::test_y", LOOPS, 1, "full")
    assert left_out(items) == items


def test_whatever_is_for_the_other_tier_alone_is_named_in_contributing() -> None:
    root = Path(__file__).parents[2]
    mark = "pytest.mark." + "full"
    files = [path for depth in ("*", "*/*", "*/*/*") for path in root.glob(f"tests/{depth}/test_*.py")]
    named = set(re.findall(r"`(?:(?:house|integration/\w+)/)?(test_\w+\.py)`", (root / "CONTRIBUTING.md").read_text()))
    assert {path.name for path in files if mark in path.read_text()} <= named
