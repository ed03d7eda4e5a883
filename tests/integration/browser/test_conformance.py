"""The table of ports in a real Chromium, which runs each site in a process of its own."""

import anyio
import pytest

from tests.integration.browser.site import Site, play
from tests.integration.web.browser import BOUND, Tab
from tests.unit.transports.postmessage.table import ROWS, Row


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
async def test_chromium_does_what_ours_do(tab: Tab, server: Site, row: Row) -> None:
    await tab.visit(f"{server.here}/page")
    with anyio.fail_after(BOUND):
        assert await play(tab, row.script) == row.expected
