"""Pages, frames and Python in a real Chromium; one browser and one site (127.0.0.1 and localhost are two) per test module.

Needs Chromium (``make web``), the npm packages `ubre` and `pyodide` with the wheels of `tests/integration/pyodide` (``make
peers``), and for `test_documentation` the site that ``make docs`` builds. Tests with missing parts are skipped; in CI they
fail. To run only this folder: ``make test-integration ARGS=tests/integration/browser``.
"""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.integration.browser.site import Site, site
from tests.integration.web.browser import Browser, Tab, browser
from tests.support import eventually


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    """The browser has its own event loop."""
    return "asyncio", {"use_uvloop": False}


@pytest.fixture(scope="module")
async def chromium(anyio_backend: Any) -> AsyncIterator[Browser]:
    async with browser() as started:
        yield started


@pytest.fixture(scope="module")
async def server(anyio_backend: Any) -> AsyncIterator[Site]:
    async with site() as running:
        yield running


@pytest.fixture(scope="module")
async def one_tab(chromium: Browser, server: Site) -> Tab:
    """The tab of a module: another one would take ten times as long as another page in it."""
    return await chromium.tab(f"{server.here}/page")


@pytest.fixture
async def tab(chromium: Browser, server: Site, one_tab: Tab) -> AsyncIterator[Tab]:
    """An empty page of 127.0.0.1, without cookies, that has thrown nothing when the test is over."""
    chromium.problems.clear()
    await one_tab.forget()
    yield one_tab
    await one_tab.visit(f"{server.here}/page")  # empty, for the next one
    await eventually(lambda: not server.bus.peers)
    assert chromium.problems == []
