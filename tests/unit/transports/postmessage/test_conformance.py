"""The table of windows, frames and ports, played in one process; `tests/integration/browser` plays it in Chromium."""

import anyio
import pytest

from tests.unit.transports.postmessage.table import HOST, ROWS, Row


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
async def test_in_one_process(row: Row) -> None:
    for origin in (HOST, "https://child.example") if row.framed else (HOST,):
        with anyio.fail_after(5):
            assert await row.play(origin) == row.expected
