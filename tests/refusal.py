"""Context managers that fail on entering: a refused connection, a bus without its cluster, an impossible subscription."""

from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

__all__ = ["refused"]


async def refused(
    entering: AbstractAsyncContextManager[Any], error: type[Exception] | tuple[type[Exception], ...], match: str | None = None
) -> None:
    """Enter a block, which fails with this error."""
    with pytest.raises(error, match=match):
        async with entering:
            raise AssertionError("it was entered")
