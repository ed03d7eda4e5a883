"""Servers and clients as the exchange knows them, and the life of a client as a table.

The table is the one of document CSB, "Workflow with broker", steps 3 to 8.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from attrs import define, field

from ..plugins.tools import ViolationCounter


class Stage(enum.Enum):
    """State of a client's number."""

    OPEN = "open"
    """Connected, and assigned to a server that knows of it."""
    LEAVING = "leaving"
    """The broker has closed the connection and waits for its end."""
    RESTING = "resting"
    """The connection is gone. The number is kept out of use until nothing that was meant for it can be under way."""


class Event(enum.Enum):
    """Occurrences that the state depends on."""

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
    """Actions of the broker."""

    TO_SERVER = "to server"
    """Steps 4.1 and 5.3: hand the frame on, with the client's number in front."""
    TO_CLIENT = "to client"
    """Steps 4.3 and 5.1: hand the frame on, without it."""
    CLOSE = "close"
    """Steps 7.1 and 8.1: close the client's connection."""
    TELL = "tell"
    """Step 6.1: tell the server that the client has closed."""
    COUNT_LATE = "count late"
    """Too late: drop it and count it."""
    FREE = "free"
    """The number may be given again."""
    NOTHING = "nothing"


_OPEN, _LEAVING, _RESTING = Stage.OPEN, Stage.LEAVING, Stage.RESTING

_CLOSES = dict.fromkeys(
    (Event.SERVER_CLOSES, Event.SERVER_GONE, Event.CLIENT_SLOW, Event.SENT_AWAY, Event.DRAIN), (Act.CLOSE, _LEAVING)
)


def _late(stage: Stage) -> dict[Event, tuple[Act, Stage | None]]:
    """Nobody has a say any more."""
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
"""For every stage and event what is done, and the next stage; None where the number is forgotten."""


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
    clients: dict[int, BrokerClient] = field(factory=dict)
    """Clients that are open: the only ones that it may speak to."""
    held: dict[BrokerClient, None] = field(factory=dict)
    """Clients that are not read from until it takes more."""


@define(eq=False)
class BrokerClient:
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
