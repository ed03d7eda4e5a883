"""A bus behind a web server: FastAPI and Starlette under uvicorn and hypercorn, HTTP by a bus alone, examples in processes.

Needs the packages of the extra ``dev``. Some tests need more, and are skipped without it (in CI they fail): Chromium
(`test_chat_page`) and nginx, which ``make web`` installs, and a NATS server (several workers, `test_outbox`). To run only this
folder: ``make test-integration ARGS=tests/integration/web``.
"""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from .browser import Browser, browser
from .support import both_ways  # noqa: F401  # pytest finds the fixture by its name here


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    """uvicorn runs on asyncio; `support.both_loops` has uvloop too, where connections are taken over from it."""
    return "asyncio", {"use_uvloop": False}


@pytest.fixture(scope="module")
async def chromium(anyio_backend: Any) -> AsyncIterator[Browser]:
    async with browser() as started:
        yield started
