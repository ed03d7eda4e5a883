"""The servers and clients of an exchange, and a table of the states of a client.

The table follows the CSB document, "Workflow with broker", steps 3 to 8.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from attrs import define, field

from ..plugins.tools import ViolationCounter


class Stage(enum.Enum):
    OPEN = "open"
    """The client is connected, and its server knows it."""
    LEAVING = "leaving"
    """The broker has closed the connection and waits for it to end."""
    RESTING = "resting"
    """The connection has ended. Its number is not reused until no frame for it can be in transit."""


class Event(enum.Enum):
    CLIENT_SPEAKS = "client speaks"
    SERVER_SPEAKS = "server speaks"
    SERVER_CLOSES = "server closes"
    SERVER_GONE = "server gone"
    CLIENT_SLOW = "client slow"
    SENT_AWAY = "sent away"
    """The client broke a rule, or its identity has expired."""
    DRAIN = "drain"
    CLIENT_GONE = "client gone"
    RESTED = "rested"


class Act(enum.Enum):
    TO_SERVER = "to server"
    """Forward the frame with the client's number in front (steps 4.1 and 5.3)."""
    TO_CLIENT = "to client"
    """Forward the frame without the number (steps 4.3 and 5.1)."""
    CLOSE = "close"
    """Close the client's connection (steps 7.1 and 8.1)."""
    TELL = "tell"
    """Tell the server that the client has closed (step 6.1)."""
    COUNT_LATE = "count late"
    """Drop a frame that arrives too late, and count it."""
    FREE = "free"
    """Allow the number to be reused."""
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
"""Maps each stage and event to the action and the next stage. The next stage is None if the number is forgotten."""


class End(Protocol):
    """A connection in the exchange.

    `send` does not wait. `backlog` is the number of bytes that the operating system has not accepted yet. `close` writes the
    frames that have been sent before it closes; `cut` does not. `hold` stops reading until `release` is called.
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
    """Replaces a closed connection and ignores everything."""

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
    """True if the server's connection is closed or closing."""
    offences: ViolationCounter | None = None
    """Created with the first."""
    clients: dict[int, BrokerClient] = field(factory=dict)
    """The server's open clients. It may send to no others."""
    held: dict[BrokerClient, None] = field(factory=dict)
    """Clients that the broker does not read while this server is slow."""


@define(eq=False)
class BrokerClient:
    number: int
    end: End
    send: Callable[[bytes], None]
    server: Server
    prefix: bytes
    params: Mapping[str, str]
    """Parameters of the client's handshake."""
    stage: Stage = Stage.OPEN
    paused: bool = False
    rests_until: float = 0.0
    asked: int = 0
    """Number of forwarded requests that have not been answered."""
    owes: int = 0
    """Number of requests from the server that this client has not answered."""
    waiting: int = 0
    """Number of unread bytes at the last count. It is counted only while the client is `paused`."""
    offences: ViolationCounter | None = None
    """Created with the first."""

    def is_open(self) -> bool:
        """Return True while the broker forwards this client's frames."""
        return self.stage is Stage.OPEN
