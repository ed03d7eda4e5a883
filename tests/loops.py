"""Event loops for tests: asyncio by default, all where a module requests them, and all everywhere in `make test-all`."""

import os
import sys
from importlib.util import find_spec
from typing import Any

import pytest

__all__ = [
    "ASYNCIO",
    "FULL",
    "LOOPS",
    "PARAMS",
    "TRIO",
    "UVLOOP",
    "both_backends",
    "every_loop",
    "on",
    "virtual_asyncio",
    "virtual_time",
]

ASYNCIO, UVLOOP, TRIO = "asyncio", "asyncio+uvloop", "trio"
LOOPS: tuple[str, ...] = (ASYNCIO,) if sys.platform == "emscripten" else (ASYNCIO, UVLOOP, TRIO)

FULL = bool(os.environ.get("POLYBUS_FULL"))
"""`make test-all`: every loop, many seeds."""

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
    """A module's or a folder's `anyio_backend`: its tests run on each loop. For tests of what depends on the loop."""
    backend: tuple[str, dict[str, Any]] = request.param
    return backend


@pytest.fixture(scope="module", name="anyio_backend", params=[PARAMS[loop] for loop in LOOPS if FULL or loop != UVLOOP])
def both_backends(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """A module's `anyio_backend`: its tests run on asyncio and trio. For tests of what depends on tasks and their scopes."""
    backend: tuple[str, dict[str, Any]] = request.param
    return backend


def _held(loop: str) -> tuple[str, dict[str, Any]]:
    if loop == TRIO:
        from trio.testing import MockClock

        return "trio", {"clock": MockClock(autojump_threshold=0)}
    if sys.platform == "emscripten":  # its one loop has no selector
        return "asyncio", {}
    from polybus.testing.virtual_time import VirtualLoop

    return "asyncio", {"loop_factory": VirtualLoop}


@pytest.fixture(scope="module", name="anyio_backend", params=[loop for loop in LOOPS if loop != UVLOOP])
def virtual_time(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """A module's `anyio_backend`: its tests run in virtual time, on asyncio and trio (uvloop's time cannot be held).

    For tests about times, without sockets, threads and processes, which keep their own.
    """
    return _held(request.param)


@pytest.fixture(scope="module", name="anyio_backend", params=[ASYNCIO, *([TRIO] if FULL else [])])
def virtual_asyncio(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """As `virtual_time`, on asyncio alone but in `make test-all`: for tests of what does not depend on the loop."""
    return _held(request.param)


def on(loop: str, suite: Any) -> Any:
    """A class of tests that runs on this loop; in `make test-all` on all."""
    loops = LOOPS if FULL else (loop,)
    return pytest.mark.parametrize("anyio_backend", [PARAMS[each] for each in loops if each in LOOPS], scope="module")(suite)
