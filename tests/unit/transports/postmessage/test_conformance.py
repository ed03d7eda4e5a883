"""The table of ports, played in one process; `tests/integration/browser` plays it in Chromium."""

import anyio
import pytest

from tests.unit.transports.postmessage.table import ROWS, Row


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
async def test_in_one_process(row: Row) -> None:
    with anyio.fail_after(5):
        assert await row.play() == row.expected
