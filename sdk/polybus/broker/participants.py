"""Servers and clients in the exchange, and the life of a client as a table.

The table follows document CSB, "Workflow with broker", steps 3 to 8.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from attrs import define, field

from ..plugins.tools import ViolationCounter


class Stage(enum.Enum):
    OPEN = "open"
    """Connected, and known to its server."""
    LEAVING = "leaving"
    """The broker has closed the connection and waits for its end."""
    RESTING = "resting"
    """The connection is gone. The number is not reused until no frame for it can be in transit."""


class Event(enum.Enum):
    CLIENT_SPEAKS = "client speaks"
    SERVER_SPEAKS = "server speaks"
    SERVER_CLOSES = "server closes"
    SERVER_GONE = "server gone"
    CLIENT_SLOW = "client slow"
    SENT_AWAY = "sent away"
    """It broke a rule, or its identity has expired."""
    DRAIN = "drain"
    CLIENT_GONE = "client gone"
    RESTED = "rested"


class Act(enum.Enum):
    TO_SERVER = "to server"
    """Steps 4.1 and 5.3: forward the frame with the client's number in front."""
    TO_CLIENT = "to client"
    """Steps 4.3 and 5.1: forward the frame without the number."""
    CLOSE = "close"
    """Steps 7.1 and 8.1: close the client's connection."""
    TELL = "tell"
    """Step 6.1: tell the server that the client has closed."""
    COUNT_LATE = "count late"
    """Too late: drop it and count it."""
    FREE = "free"
    """The number may be reused."""
    NOTHING = "nothing"


_OPEN, _LEAVING, _RESTING = Stage.OPEN, Stage.LEAVING, Stage.RESTING

_CLOSES = dict.fromkeys(
    (Event.SERVER_CLOSES, Event.SERVER_GONE, Event.CLIENT_SLOW, Event.SENT_AWAY, Event.DRAIN), (Act.CLOSE, _LEAVING)
)


def _late(stage: Stage) -> dict[Event, tuple[Act, Stage | None]]:
    """Ignore both sides."""
    late = dict.fromkeys((Event.CLIENT_SPEAKS, Event.SERVER_SPEAKS), (Act.COUNT_LATE, stage))
    return {**dict.fromkeys(Event, (Act.NOTHING, stage)), **late}


TABLE: Final[Mapping[Stage, Mapping[Event, tuple[Act, Stage | None]]]] = {
    Stage.OPEN: {
        Event.CLIENT_SPEAKS: (Act.TO_SERVER, _OPEN),
        Event.SERVER_SPEAKS: (Act.TO_CLIENT, _OPEN),
        **_CLOSES,
        Event.CLIENT_GONE: (Act.TELL, _RESTING),
        Event.RESTED: (Act.NOTHING, _OPEN),
    },
    Stage.LEAVING: {**_late(_LEAVING), Event.CLIENT_GONE: (Act.TELL, _RESTING)},
    Stage.RESTING: {**_late(_RESTING), Event.RESTED: (Act.FREE, None)},
}
"""Action and next stage by stage and event; None if the number is forgotten."""


class End(Protocol):
    """A connection in the exchange.

    `send` does not wait; `backlog` is bytes that the operating system has not taken. `close` first writes sent frames, `cut`
    does not. `hold` stops reading until `release`.
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
    """Replaces a closed connection: ignores everything."""

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
    """Its connection is closed, or closing."""
    offences: ViolationCounter | None = None
    """Created with the first."""
    clients: dict[int, BrokerClient] = field(factory=dict)
    """Open clients: the only ones that it may send to."""
    held: dict[BrokerClient, None] = field(factory=dict)
    """Clients that are not read while this server is slow."""


@define(eq=False)
class BrokerClient:
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
    """Forwarded requests without an answer."""
    owes: int = 0
    """Requests of its server without an answer."""
    waiting: int = 0
    """Unread bytes when last counted; only while `paused`."""
    offences: ViolationCounter | None = None
    """Created with the first."""

    def is_open(self) -> bool:
        """True while its frames are forwarded."""
        return self.stage is Stage.OPEN
