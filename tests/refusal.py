"""What cannot be entered: a connection that is refused, a bus whose cluster it cannot join, a subscription that cannot be."""

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
