"""Event loops that tests run on, and how many of them in which tier."""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from collections.abc import Iterable
from importlib.util import find_spec
from inspect import iscoroutinefunction, signature
from itertools import combinations
from typing import Any
from zlib import crc32

import pytest

__all__ = [
    "ASYNCIO",
    "FULL",
    "LOOPS",
    "TRIO",
    "UVLOOP",
    "every_loop",
    "every_loop_in_virtual_time",
    "left_out",
    "on",
    "virtual_time",
]

ASYNCIO, UVLOOP, TRIO = "asyncio", "asyncio+uvloop", "trio"
LOOPS: tuple[str, ...] = (ASYNCIO,) if sys.platform == "emscripten" else (ASYNCIO, UVLOOP, TRIO)

FULL = bool(os.environ.get("POLYBUS_FULL"))
"""The tier of `make test-all`: everything on every loop."""

_without_uvloop = pytest.mark.skipif(find_spec("uvloop") is None, reason="uvloop is not installed")
PARAMS: dict[str, Any] = {
    ASYNCIO: pytest.param(("asyncio", {"use_uvloop": False}), id=ASYNCIO),
    UVLOOP: pytest.param(("asyncio", {"use_uvloop": True}), id=UVLOOP, marks=_without_uvloop),
    TRIO: pytest.param(("trio", {}), id=TRIO),
}


@pytest.fixture(
    scope="module",  # as in anyio itself, so that a module may share an asynchronous fixture
    name="anyio_backend",
    params=[PARAMS[loop] for loop in LOOPS],
)
def every_loop(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """Runs a test that is marked `anyio` on each event loop, in every tier: for tests of what depends on the loop.

    In `make test` the cases of a test take turns on them (`left_out`).

    A module has it as its own `anyio_backend`, a folder in its conftest.py.
    """
    backend: tuple[str, dict[str, Any]] = request.param
    return backend


def _in_virtual_time(*others: Any) -> Any:
    @pytest.fixture(scope="module", name="anyio_backend", params=[ASYNCIO] if len(LOOPS) == 1 else [ASYNCIO, *others, TRIO])
    def backend(request: pytest.FixtureRequest) -> Any:
        if request.param == TRIO:
            from trio.testing import MockClock

            return "trio", {"clock": MockClock(autojump_threshold=0)}
        if request.param == ASYNCIO:
            if sys.platform == "emscripten":  # its one loop has no selector
                return "asyncio", {}
            from polybus.testing.virtual_time import VirtualLoop

            return "asyncio", {"loop_factory": VirtualLoop}
        return request.param

    return backend


virtual_time = _in_virtual_time(*([PARAMS[UVLOOP]] if FULL else []))
"""A module's `anyio_backend`: its tests run on asyncio and on trio in virtual time, and each with all its cases. For tests
about times, without sockets, threads and processes, which keep their own. uvloop's time cannot be held: `make test-all` has it
as well.
"""

every_loop_in_virtual_time = _in_virtual_time(PARAMS[UVLOOP])
"""The same with uvloop, in wall time, in every tier."""


def on(loop: str, *rest: Any) -> Any:
    """A class of tests, given last, that runs on these loops alone, where `make test-all` has it run on all."""
    *more, suite = rest
    assert {loop, *more} <= set(PARAMS)
    suite.loops = (loop, *more)
    if FULL:
        return suite
    return pytest.mark.parametrize("anyio_backend", [PARAMS[each] for each in suite.loops], scope="module")(suite)


def left_out(items: Iterable[pytest.Item]) -> list[pytest.Item]:
    """Cases that `make test` leaves to `make test-all`.

    Each test keeps each of its cases, and each of its loops: that is all pairs of test and case, and of test and loop. Tests
    with a single case are there in full where the loop matters (`every_loop`, or the test asks which loop it is on); others are
    on asyncio or on trio, the next test of the module on the other. One that is `costly` is on one loop, another in each test.
    Of the cases of a test that is `pairwise` there are as many as all pairs of its parameters' values need, of one with
    `each_value` as many as the values need; of the values of a parameter that is named by `in_turn` there is one, in the next
    test another. Tests that are marked `full` are left out.
    """
    tests: defaultdict[str, defaultdict[str, list[pytest.Item]]] = defaultdict(lambda: defaultdict(list))
    out, coroutines = [], dict[int, list[str]]()
    for item in items:
        if item.get_closest_marker("full") is not None:
            out.append(item)
        elif hasattr(item, "callspec") and item.nodeid.startswith(_IN_TURN) and item.get_closest_marker("browser") is None:
            loop = getattr(item, "callspec").params.get("anyio_backend")  # noqa: B009
            tests[item.nodeid.partition("[")[0]][str(loop) if isinstance(loop, tuple) else ""].append(item)
    for name, loops in tests.items():
        on_each = [*loops.values()]
        if len({len(found) for found in on_each}) > 1:
            continue
        first, costly = crc32(name.encode()), on_each[0][0].get_closest_marker("costly") is not None
        cases = [*range(len(on_each[0]))]
        values_of = _values(on_each[0])
        if (in_turn := on_each[0][0].get_closest_marker("in_turn")) is not None:
            for parameter in in_turn.args:
                values = [*dict.fromkeys(case[parameter] for case in values_of)]
                one = values[first // 8 % len(values)]
                cases = [case for case in cases if values_of[case][parameter] == one]
        for mark, together in (("each_value", 1), ("pairwise", 2)):
            if on_each[0][0].get_closest_marker(mark) is not None:
                cases = _met(values_of, together)
        turns = len(cases) if costly else max(len(cases), len(on_each))
        kept = {((first + turn) % len(on_each), cases[turn % len(cases)]) for turn in range(turns)}
        if len(on_each[0]) == 1 and not costly:
            usual = {loop for loop in loops if loop} == {str(PARAMS[loop].values[0]) for loop in (ASYNCIO, TRIO)}
            first = _place(on_each[0][0], coroutines) % 2
            kept = {(first, 0)} if usual and not _about_loops(on_each[0][0]) else {(loop, 0) for loop in range(len(on_each))}
        out += [item for loop, found in enumerate(on_each) for case, item in enumerate(found) if (loop, case) not in kept]
    return out


def _about_loops(item: pytest.Item) -> bool:
    """A test asks which loop it is on, or its class says which."""
    asked = {"anyio_backend", "anyio_backend_name"} & set(signature(getattr(item, "function", _about_loops)).parameters)
    return bool(asked) or hasattr(getattr(item, "cls", None), "loops")


def _place(item: pytest.Item, coroutines: dict[int, list[str]]) -> int:
    """The place of a test in its module or class: the same whatever else is run, and another than that of the next test.

    `coroutines` keeps the names that a module or class was found to have, by its identity.
    """
    name = item.nodeid.partition("[")[0]
    around = getattr(item, "cls", None) or getattr(item, "module", None)
    if (names := coroutines.get(id(around))) is None:
        names = [each for each in dir(around) if each.startswith("test_") and iscoroutinefunction(getattr(around, each))]
        coroutines[id(around)] = names
    last = name.rpartition("::")[2]
    return names.index(last) if last in names else crc32(name.encode())


def _values(items: list[pytest.Item]) -> list[dict[str, int]]:
    """What tells the values of each item's parameters apart. The indices of pytest do not: they number the cases."""
    found = []
    for item in items:
        params = dict(getattr(item, "callspec").params)  # noqa: B009
        if isinstance(params.get("anyio_backend"), tuple):  # one of the loops that these cases are repeated on
            del params["anyio_backend"]
        found.append({name: id(value) for name, value in params.items()})
    return found


def _met(cases: list[dict[str, int]], together: int) -> list[int]:
    """The numbers of some of these cases, in which so many values are met together as in all of them."""
    groups = [
        {group for size in range(1, together + 1) for group in combinations(sorted(case.items()), size)} for case in cases
    ]
    chosen, missing = [], set().union(*groups)
    while missing:
        best = max(range(len(cases)), key=lambda case: len(groups[case] & missing))
        chosen.append(best)
        missing -= groups[best]
    return sorted(chosen)


_IN_TURN = ("tests/unit/", "tests/integration/")
