"""Event loops that tests run on, and how many of them in which tier."""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from collections.abc import Iterable
from importlib.util import find_spec
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
LOOPS = (ASYNCIO, UVLOOP, TRIO)

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
    params=list(PARAMS.values()),
)
def every_loop(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """Runs a test that is marked `anyio` on each event loop, in every tier: for tests of what depends on the loop.

    In `make test` the cases of a test take turns on them (`left_out`).

    A module has it as its own `anyio_backend`, a folder in its conftest.py.
    """
    backend: tuple[str, dict[str, Any]] = request.param
    return backend


def _in_virtual_time(*others: Any) -> Any:
    @pytest.fixture(scope="module", name="anyio_backend", params=[ASYNCIO, *others, TRIO])
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
    assert {loop, *more} <= set(LOOPS)
    suite.loops = (loop, *more)
    if FULL:
        return suite
    return pytest.mark.parametrize("anyio_backend", [PARAMS[each] for each in suite.loops], scope="module")(suite)


def left_out(items: Iterable[pytest.Item]) -> list[pytest.Item]:
    """Cases that `make test` leaves to `make test-all`.

    Each test keeps each of its cases, and each of its loops: that is all pairs of test and case, and of test and loop. Tests
    with a single case are there in full; one that is `costly` is on one loop, another in each test. Of the cases of a test that
    is `pairwise` there are as many as all pairs of its parameters' values need. Tests that are marked `full` are left out.
    """
    tests: defaultdict[str, defaultdict[str, list[pytest.Item]]] = defaultdict(lambda: defaultdict(list))
    out = []
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
        if on_each[0][0].get_closest_marker("pairwise") is not None:
            cases = _pairs([getattr(item, "callspec").indices for item in on_each[0]])  # noqa: B009
        turns = len(cases) if costly else max(len(cases), len(on_each))
        kept = {((first + turn) % len(on_each), cases[turn % len(cases)]) for turn in range(turns)}
        if len(cases) == 1 and not costly:
            kept = {(loop, case) for loop in range(len(on_each)) for case in cases}
        out += [item for loop, found in enumerate(on_each) for case, item in enumerate(found) if (loop, case) not in kept]
    return out


def _pairs(cases: list[dict[str, int]]) -> list[int]:
    """The numbers of some of these cases, in which each pair of values is met that all of them have."""
    pairs = [{*case.items(), *combinations(sorted(case.items()), 2)} for case in cases]
    chosen, missing = [], set().union(*pairs)
    while missing:
        best = max(range(len(cases)), key=lambda case: len(pairs[case] & missing))
        chosen.append(best)
        missing -= pairs[best]
    return sorted(chosen)


_IN_TURN = ("tests/unit/", "tests/integration/")
