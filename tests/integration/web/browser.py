"""A real browser for the tests, or a reason to skip them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.support import missing

from .chromium import BOUND, Browser, Tab, chromium, find_chromium

__all__ = ["BOUND", "Browser", "Tab", "browser", "missing"]


@asynccontextmanager
async def browser(*, keeps_pages: bool = False) -> AsyncIterator[Browser]:
    """Chromium, until the block is left; `keeps_pages` as in `chromium`."""
    program = find_chromium()
    if program is None:
        missing("chromium is not installed: make web")
    async with chromium(program, keeps_pages=keeps_pages) as running:
        yield running
