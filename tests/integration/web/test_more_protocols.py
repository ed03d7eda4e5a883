"""The contract of the other protocols under uvicorn; on one event loop, which is what the transport depends on."""

from typing import Any

import pytest

from polybus.protocols import Csb, Jrep, UProtocol
from tests.integration.web.contract import attached
from tests.shares import classes_of, take_turns


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    """uvicorn's usual one, where it is installed, is tried with UBRE."""
    return "asyncio", {"use_uvloop": False}


TestCsb = attached(Csb)
TestJrep = attached(Jrep)
TestUProtocol = attached(lambda: UProtocol(format="protobuf"))

take_turns(classes_of(globals()))
