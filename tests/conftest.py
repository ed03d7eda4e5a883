"""Shared by all tests: the event loop, and hypothesis profiles."""

import gc
import os
from inspect import iscoroutinefunction
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.loops import ASYNCIO, FULL, LOOPS, PARAMS
from tests.support import bounded

# A machine with other work to do is no failure: hypothesis would else take 200 ms for one example as one. Where a change is
# judged (.ci/run) it tries the same examples each time, so that the verdict is about the change; on our machines, others.
_USUAL = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize="POLYBUS_CI" in os.environ)
settings.register_profile("polybus", _USUAL)
settings.register_profile("long", _USUAL, max_examples=3000, derandomize=False)
settings.load_profile("polybus")
pytest.register_assert_rewrite("polybus.testing.contract")  # as it does itself, where it is not loaded before pytest


@pytest.fixture(
    scope="module",  # as in anyio itself, so that a module may share an asynchronous fixture
    params=[PARAMS[loop] for loop in (LOOPS if FULL else (ASYNCIO,))],
)
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """Runs a test that is marked `anyio` on asyncio; `every_loop` and `virtual_time` of `tests.loops` ask for more."""
    backend: tuple[str, dict[str, Any]] = request.param
    return backend


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> None:
    """Bound each asynchronous test, except in virtual time, where hours may pass, and with a `timeout` mark of its own."""
    backend = pyfuncitem.funcargs.get("anyio_backend")
    virtual = isinstance(backend, tuple) and not backend[1].keys() <= {"use_uvloop"}
    if iscoroutinefunction(pyfuncitem.obj) and not virtual and pyfuncitem.get_closest_marker("timeout") is None:
        pyfuncitem.obj = bounded(pyfuncitem.obj)


def pytest_collection_finish() -> None:
    """What is loaded stays: else each `gc.collect()` of a test looks at all of it, for a quarter of a second."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def caplog(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """Begins without the lines of requests that an earlier test left in a circle, and that say so when they are collected."""
    gc.collect()
    gc.freeze()  # what is left stays: the next one need not look at it
    return caplog


def pytest_unconfigure() -> None:
    """What was frozen is collected again: libraries in C say at the end what nobody has."""
    gc.unfreeze()
