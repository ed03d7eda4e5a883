"""Event loops that tests run on, and how many of them in which tier."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Any

import pytest

__all__ = ["ASYNCIO", "FULL", "LOOPS", "TRIO", "UVLOOP", "every_loop", "on"]

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
    """Runs a test that is marked `anyio` once on each event loop, in every tier: for tests of what depends on the loop.

    A module has it as its own `anyio_backend`, a folder in its conftest.py.
    """
    backend: tuple[str, dict[str, Any]] = request.param
    return backend


def on(loop: str, *rest: Any) -> Any:
    """A class of tests, given last, that runs on these loops alone, where `make test-all` has it run on all."""
    *more, suite = rest
    assert {loop, *more} <= set(LOOPS)
    suite.loops = (loop, *more)
    if FULL:
        return suite
    return pytest.mark.parametrize("anyio_backend", [PARAMS[each] for each in suite.loops], scope="module")(suite)
