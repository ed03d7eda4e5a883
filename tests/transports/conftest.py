"""What is left open by a test fails its module: an unclosed socket is a warning, and warnings are errors."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def nothing_is_left_open() -> Iterator[None]:
    """One collection per module: one per test would take longer than the tests."""
    yield
    gc.collect()
