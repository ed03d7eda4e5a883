"""What a bus looks like where one looks at it: its repr, and the traceback of a connect that failed."""

import traceback

import pytest

from polybus import Bus, ConnectFailed, Kind, Message, Survey, connect
from polybus.body import JSON
from polybus.testing import pair


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
async def test_a_connect_that_fails_has_the_line_of_the_caller_in_its_traceback_and_nothing_below() -> None:
    with pytest.raises(ConnectFailed) as failed:
        async with connect("ubre+tcp://127.0.0.1:1"):
            pass
    frames = traceback.extract_tb(failed.value.__traceback__)
    assert len(frames) <= 2
    assert failed.value.__suppress_context__ and failed.value.__cause__ is None


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (Message(Kind.REQUEST, "door", 7, b"null", JSON), "<Message request 'door' id=7 4 bytes>"),
        (Message(Kind.CANCEL, "door", 7, None, JSON), "<Message cancel 'door' id=7 0 bytes>"),
        (Survey(("a", "b"), complete=False), "Survey(['a', 'b'], complete=False)"),
    ],
    ids=str,
)
def test_the_repr_of_a_message_says_how_long_it_is_and_that_of_a_survey_what_was_found(value: object, shown: str) -> None:
    assert repr(value) == shown


def test_a_survey_is_a_sequence() -> None:
    found = Survey((1, 2, 3))
    assert (found[0], found[1:], [*found], len(found)) == (1, (2, 3), [1, 2, 3], 3)
