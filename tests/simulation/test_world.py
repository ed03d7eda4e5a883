"""A world of five buses, three protocols, a broker and a ring of bridges keeps its promises whatever breaks.

`make test` lives in it 75 times, `make test-all` two thousand times, ``python -m tests.simulation --seeds 10000``
as often as is wanted.
"""

import logging
import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.loops import FULL

from .mutants import MUTANTS, is_found
from .world import disturbed

pytestmark = pytest.mark.native

SEEDS = 2_000 if FULL else 75
AT_ONCE = 25
TRIED = 40
"""Seeds of which one at least must find a bug that is put in on purpose; far fewer do."""


@pytest.fixture(autouse=True)
def silence(caplog: pytest.LogCaptureFixture) -> None:
    """A world in which everything breaks has much to tell."""
    caplog.set_level(logging.CRITICAL)


@pytest.mark.parametrize("first", range(0, SEEDS, AT_ONCE))
def test_whatever_breaks_every_request_ends_nothing_comes_twice_or_out_of_order_and_nothing_is_left(first: int) -> None:
    disturbed(range(first, first + AT_ONCE))()


def test_the_world_is_the_same_in_another_process() -> None:
    command = "from tests.simulation.world import disturbed; print(disturbed([5])().trace)"
    done = subprocess.run(
        [sys.executable, "-c", command],
        env={**os.environ, "PYTHONHASHSEED": "3"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.split()[-1] == disturbed([5])().trace


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_bug_that_is_put_in_on_purpose_is_found(mutant: Callable[[pytest.MonkeyPatch], None]) -> None:
    assert any(is_found(mutant, seed) for seed in range(TRIED))
