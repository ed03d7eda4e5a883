"""In rings of bridges each bus hears each publication at most once, in order, and never its own again, whatever breaks.

`make test` has one history of each form for 20 seconds of virtual time, `make test-all` ten of three minutes;
``python -m tests.simulation --rings --seeds 100`` as many as are wanted.
"""

import logging

import pytest

from tests.loops import FULL

from .rings import FORMS, histories

pytestmark = pytest.mark.native

SEEDS, SECONDS = (range(10), 180.0) if FULL else ([10], 20.0)
"""In so short a time few histories find in each ring that buses forget the order of what they have heard: that of seed 10."""


@pytest.fixture(autouse=True)
def silence(caplog: pytest.LogCaptureFixture) -> None:
    """A ring in which everything breaks has much to tell."""
    caplog.set_level(logging.CRITICAL)


@pytest.mark.parametrize("name", FORMS)
def test_in_a_ring_whose_links_break_each_bus_hears_all_once_in_order_and_nothing_of_its_own(name: str) -> None:
    histories(FORMS[name], SEEDS, SECONDS)()
