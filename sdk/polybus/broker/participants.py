"""Servers and clients as the exchange knows them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Protocol

from attrs import define, field

from .._util.violation_counter import ViolationCounter
from .client_states import Stage


class End(Protocol):
    """A connection as the exchange sees it.

    `send` does not wait; `backlog` is bytes that the operating system has not taken. `close` first writes what was sent, `cut`
    does not. After `hold` nothing is read until `release`.
    """

    @property
    def address(self) -> str: ...
    def send(self, frame: bytes, /) -> None: ...
    def backlog(self) -> int: ...
    def close(self, code: int, reason: str, /) -> None: ...
    def cut(self, code: int, reason: str, /) -> None: ...
    def hold(self) -> None: ...
    def release(self) -> None: ...


class _Gone:
    """In place of a connection that is no more: nothing comes, and nothing goes."""

    address = "a connection that is gone"

    def backlog(self) -> int:
        return 0

    def send(self, *_: object) -> None:
        pass

    close: Callable[..., None] = send
    cut: Callable[..., None] = send
    hold: Callable[..., None] = send
    release: Callable[..., None] = send


GONE: Final = _Gone()


@define(eq=False)
class Server:
    """One socket of a server, and the clients on it."""

    end: End
    send: Callable[[bytes], None]
    id: str = ""
    instance: str = ""
    registered: bool = False
    paused: bool = False
    gone: bool = False
    """Its socket is closed, or told to close."""
    offences: ViolationCounter | None = None
    """Made with the first."""
    clients: dict[int, Client] = field(factory=dict)
    """Clients that are open: the only ones that it may speak to."""
    held: dict[Client, None] = field(factory=dict)
    """Clients that are not read from until it takes more."""


@define(eq=False)
class Client:
    """One client."""

    number: int
    end: End
    send: Callable[[bytes], None]
    server: Server
    prefix: bytes
    params: Mapping[str, str]
    """Of its handshake."""
    stage: Stage = Stage.OPEN
    paused: bool = False
    rests_until: float = 0.0
    asked: int = 0
    """Requests of its that have been handed on and not answered yet."""
    owes: int = 0
    """Requests of its server that it has not answered yet."""
    waiting: int = 0
    """Bytes that waited for it when this was last looked at; only while it is `paused`."""
    offences: ViolationCounter | None = None
    """Made with the first."""

    def is_open(self) -> bool:
        """True while its frames are handed on."""
        return self.stage is Stage.OPEN
