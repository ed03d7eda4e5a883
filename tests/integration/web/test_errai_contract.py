"""The contract of J.REP over HTTP, on each way back to the client: in an application, and by a bus alone."""

from typing import Any

import pytest

from polybus.protocols import Jrep
from tests.contract.core import core_of

from .contract import alone, attached


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    """What depends on the event loop is in the tests of the ways themselves."""
    return "asyncio", {"use_uvloop": False}


TestWebSocketInAnApplication = attached(Jrep, path="/", transport="http")
TestEventsAlone = core_of(alone(Jrep, "?channel=events"))
TestPollsAlone = core_of(alone(Jrep, "?channel=poll"))
