"""Applications under uvicorn, gunicorn, hypercorn and nginx, in this process and in others: pip, nginx; Chromium for the pages.

uvicorn runs on uvloop, where it is installed; in `make test-all` also on asyncio's own loop.
"""

from importlib.util import find_spec
from typing import Any

import pytest

from tests.loops import ASYNCIO, FULL, PARAMS, UVLOOP

from .support import OverAsgi

USUAL = ASYNCIO if find_spec("uvloop") is None else UVLOOP


@pytest.fixture(scope="module", params=[PARAMS[loop] for loop in ((ASYNCIO, UVLOOP) if FULL else (USUAL,))])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """Runs a test that is marked `anyio` on the loop that uvicorn takes."""
    backend: tuple[str, dict[str, Any]] = request.param
    return backend


@pytest.fixture(params=[pytest.param("auto", id="adopted"), pytest.param(OverAsgi, id="asgi")])
def way(request: pytest.FixtureRequest) -> Any:
    """``ws=`` of uvicorn: its own, whose connections are taken over, and one whose connections stay with it."""
    return request.param
