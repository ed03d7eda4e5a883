"""Verbs that a client of a contract needs: those of a bus, a peer or a user, and of their blocking twins."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from .._core.rpc.channel import ChannelContext


class Asker(Protocol):
    """Asks, tells, and opens streams."""

    def request(self, subject: str | int, body: Any = ..., *, timeout: float = ..., returns: Any = ...) -> Awaitable[Any]: ...

    async def notify(self, subject: str | int, body: Any = ...) -> None: ...

    def stream(
        self, subject: str | int, body: Any = ..., *, returns: Any = ..., timeout: float | None = ...
    ) -> ChannelContext[Any, Any]: ...


class BlockingAsker(Protocol):
    """The same for threads."""

    def request(self, subject: str | int, body: Any = ..., *, timeout: float = ..., returns: Any = ...) -> Any: ...

    def notify(self, subject: str | int, body: Any = ...) -> None: ...

    def stream(
        self, subject: str | int, body: Any = ..., *, returns: Any = ..., timeout: float | None = ...
    ) -> AbstractContextManager[Iterable[Any]]: ...
