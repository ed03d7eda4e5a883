"""What a program adds to a library without requests: a future for each, where the answers come in the order of the requests."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

__all__ = ["Answers"]


class Answers:
    """Those that are waited for."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[Any]] = deque()
        self._new = asyncio.get_running_loop().create_future

    def next(self) -> asyncio.Future[Any]:
        """The answer to the request that is sent now."""
        answer: asyncio.Future[Any] = self._new()
        self._waiting.append(answer)
        return answer

    def arrived(self, value: object) -> None:
        self._waiting.popleft().set_result(value)
