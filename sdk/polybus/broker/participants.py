"""The servers and clients of an exchange."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from attrs import define, field

from ..plugins.tools import ViolationCounter


class Stage(enum.Enum):
    OPEN = "open"
    """The client is connected, and known to its server."""
    LEAVING = "leaving"
    """The broker is closing the connection."""
    RESTING = "resting"
    """The connection has closed, but frames with its number may still be in flight, so that it cannot be reused."""


class Event(enum.Enum):
    CLIENT_SPEAKS = "client speaks"
    SERVER_SPEAKS = "server speaks"
    SERVER_CLOSES = "server closes"
    SERVER_GONE = "server gone"
    CLIENT_SLOW = "client slow"
    SENT_AWAY = "sent away"
    """The client has violated the protocol, or its identity has expired."""
    DRAIN = "drain"
    CLIENT_GONE = "client gone"
    RESTED = "rested"


class End(Protocol):
    """A connection.

    `backlog` is the number of bytes that the operating system has not accepted yet. `close` first writes pending frames, `cut`
    does not. `hold` stops reading until `release`.
    """

    @property
    def address(self) -> str: ...
    def backlog(self) -> int: ...
    def close(self, code: int, reason: str, /) -> None: ...
    def cut(self, code: int, reason: str, /) -> None: ...
    def hold(self) -> None: ...
    def release(self) -> None: ...


class _Gone:
    """Stands for a closed connection, and ignores all calls."""

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
    end: End
    send: Callable[[bytes], None]
    id: str = ""
    instance: str = ""
    registered: bool = False
    paused: bool = False
    gone: bool = False
    """True if the connection is closed or closing."""
    offences: ViolationCounter | None = None
    """Created by the first violation."""
    clients: dict[int, BrokerClient] = field(factory=dict)
    """The only clients to which the server may send."""
    held: dict[BrokerClient, None] = field(factory=dict)
    """Clients whose frames are not read while this server is slow."""


@define(eq=False)
class BrokerClient:
    number: int
    end: End
    send: Callable[[bytes], None]
    server: Server
    prefix: bytes
    params: Mapping[str, str]
    """Parameters of the handshake."""
    stage: Stage = Stage.OPEN
    paused: bool = False
    rests_until: float = 0.0
    asked: int = 0
    """Number of forwarded requests without an answer."""
    owes: int = 0
    """Number of requests that this client has not answered."""
    waiting: int = 0
    """Number of unread bytes when they were last counted, while the client was `paused`."""
    offences: ViolationCounter | None = None
    """Created by the first violation."""

    def is_open(self) -> bool:
        return self.stage is Stage.OPEN
