"""The contract of the other protocols under uvicorn; on one event loop, which is what the transport depends on."""

from typing import Any

import pytest

from polybus.protocols import Csb, Jrep, UProtocol
from tests.contract.core import core_of
from tests.integration.web.contract import attached


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    """uvicorn's usual one, where it is installed, is tried with UBRE."""
    return "asyncio", {"use_uvloop": False}


TestCsb = core_of(attached(Csb))
TestJrep = core_of(attached(Jrep))
TestUProtocol = core_of(attached(lambda: UProtocol(format="protobuf")))
