"""The contract of J.REP over HTTP, on each way back to the client: in an application, and by a bus alone."""

from typing import Any

import pytest

from polybus.protocols import Jrep
from tests.shares import take_turns

from .contract import alone, attached


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    """What depends on the event loop is in the tests of the ways themselves."""
    return "asyncio", {"use_uvloop": False}


TestWebSocketInAnApplication = attached(Jrep, path="/", transport="http")
TestEventsAlone = alone(Jrep, "?channel=events")
TestPollsAlone = alone(Jrep, "?channel=poll")

take_turns({"events": TestEventsAlone, "polls": TestPollsAlone})
