"""What every test shares: the event loops that polybus promises to run on, how hypothesis tries things, and who runs what."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.strategies import text

from tests.distribution import load, scope_of, seconds_by_file
from tests.loops import ASYNCIO, FULL, LOOPS, PARAMS, TRIO, left_out

# A machine with other work to do is no failure: hypothesis would else take 200 ms for one example as one. Where a change is
# judged (.ci/run) it tries the same examples each time, so that the verdict is about the change; on our machines, others.
_USUAL = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize="POLYBUS_CI" in os.environ)
settings.register_profile("polybus", _USUAL)
settings.register_profile("long", _USUAL, max_examples=3000, derandomize=False)
settings.load_profile("polybus")
pytest.register_assert_rewrite("polybus.testing.contract")  # as it does itself, where it is not loaded before pytest


@pytest.fixture(
    scope="module",  # as in anyio itself, so that a module may share an asynchronous fixture
    params=[PARAMS[loop] for loop in (LOOPS if FULL else (ASYNCIO, TRIO))],
)
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """Runs a test that is marked `anyio` on asyncio and on trio; on uvloop too where the loop matters (`every_loop`)."""
    backend: tuple[str, dict[str, Any]] = request.param
    return backend


@pytest.fixture
def caplog(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """Begins without the lines of requests that an earlier test left in a circle, and that say so when they are collected."""
    gc.collect()
    return caplog


def pytest_configure(config: pytest.Config) -> None:
    """The workers that share the tests begin as such forks, too. Ctrl-C means what it does although a shell has it ignored."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as of what runs in the background of a script
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if sys.platform == "linux" and config.getoption("numprocesses", None) and not FULL:
        from tests.fork_server import may_fork

        may_fork(True)


@pytest.hookimpl(wrapper=True)
def pytest_sessionstart(session: pytest.Session) -> Generator[None, Any, Any]:
    """Have Hypothesis find the characters that text may have, while the workers that share the tests collect.

    It keeps them on disk. In a new checkout each worker would else find them: three seconds of CPU.
    """
    yield
    if session.config.getoption("numprocesses", None) and not hasattr(session.config, "workerinput"):
        text().validate()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection(session: pytest.Session) -> Generator[None, Any, Any]:
    """Collect no garbage among a million objects that stay, neither meanwhile nor with each `gc.collect` of a test."""
    gc.disable()
    try:
        if (worker := getattr(session.config, "workerinput", None)) is not None:
            number, workers = int(worker["workerid"].removeprefix("gw")), worker["workercount"]
            load([session.config.invocation_params.dir / name for name in session.config.args], number, workers)
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Programs begin as forks of a process that has loaded what they need, but for `own_interpreter` and `make test-all`."""
    if sys.platform == "linux":
        from tests.fork_server import may_fork

        may_fork(not FULL and item.get_closest_marker("own_interpreter") is None)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what `make test-all` adds; where several workers share the tests, begin with what takes longest.

    What is not in the table counts as long: so the workers end together.
    """
    if not FULL and (out := left_out(items)):
        config.hook.pytest_deselected(items=out)
        kept = set(items).difference(out)
        items[:] = [item for item in items if item in kept]
    if hasattr(config, "workerinput"):
        seconds = seconds_by_file()
        items.sort(key=lambda item: -seconds.get(scope_of(item.nodeid).partition("::")[0], float("inf")))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Hand out the tests by file (`make test`)."""
    from tests.distribution import scheduler

    return scheduler(config, log)
