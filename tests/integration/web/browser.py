"""A real browser for the tests, or a reason to skip them."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NoReturn

import pytest

from .chromium import BOUND, Browser, Tab, chromium, find_chromium

__all__ = ["BOUND", "Browser", "Tab", "browser", "missing"]


def missing(text: str) -> NoReturn:
    """Skip the test; in CI that is a failure."""
    if os.environ.get("POLYBUS_CI"):
        pytest.fail(text, pytrace=False)
    pytest.skip(text)


@asynccontextmanager
async def browser(*, keeps_pages: bool = False) -> AsyncIterator[Browser]:
    """Chromium, until the block is left; `keeps_pages` as in `chromium`."""
    program = find_chromium()
    if program is None:
        missing("chromium is not installed: make web")
    async with chromium(program, keeps_pages=keeps_pages) as running:
        yield running
