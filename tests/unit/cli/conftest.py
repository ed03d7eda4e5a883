"""Shared by the tests of commands."""

from collections.abc import Iterator

import pytest

from .support import serving


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """Where the bus of `app` is served, in a thread of this process."""
    with serving() as real:
        yield real
