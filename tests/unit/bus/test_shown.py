"""What a bus looks like where one looks at it: its repr, and the traceback of a connect that failed."""

from __future__ import annotations

import traceback

import pytest

from polybus import Bus, ConnectFailed, connect
from polybus.testing import pair
from tests.support import bounded

pytestmark = pytest.mark.anyio


@bounded
async def test_the_repr_of_a_bus_says_whether_it_runs_and_how_many_links_it_has() -> None:
    bus = Bus()
    assert repr(bus) == "<Bus not entered, 0 handlers>"
    async with bus:
        assert repr(bus) == "<Bus ready, 0 links, 0 handlers>"
        async with pair(bus):
            assert repr(bus) == "<Bus ready, 1 link, 0 handlers>"
        await bus.drain()
        assert repr(bus).startswith("<Bus leaving, ")
    assert repr(bus) == "<Bus not entered, 0 handlers>"


@pytest.mark.native
@bounded
async def test_a_connect_that_fails_has_the_line_of_the_caller_in_its_traceback_and_nothing_below() -> None:
    with pytest.raises(ConnectFailed) as failed:
        async with connect("ubre+tcp://127.0.0.1:1"):
            pass
    frames = traceback.extract_tb(failed.value.__traceback__)
    assert len(frames) <= 2
    assert failed.value.__suppress_context__ and failed.value.__cause__ is None
