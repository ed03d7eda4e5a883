"""The states of a connection, as a table: what may come in each, and where it leads."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final


class NatsState(enum.Enum):
    """States of a connection."""

    WAITING = "waiting"
    """For the INFO with which a server begins."""
    CONNECTING = "connecting"
    """CONNECT and PING are sent: the PONG says that we are let in."""
    READY = "ready"
    CLOSED = "closed"
    """Nothing more is looked at."""


class NatsEvent(enum.Enum):
    """Events that move a session on."""

    INFO = "info"
    MESSAGE = "message"
    PING = "ping"
    PONG = "pong"
    OK = "ok"
    ERROR = "error"
    """An -ERR after which the server goes on."""
    FATAL = "fatal"
    """An -ERR that ends the connection."""
    FOREIGN = "foreign"
    """An operation that only clients say."""
    MALFORMED = "malformed"
    SILENCE = "silence"
    """The server has not answered a PING."""
    CLOSED = "closed"
    """This side leaves, or the connection is gone."""


_WAITING, _CONNECTING, _READY, _CLOSED = NatsState.WAITING, NatsState.CONNECTING, NatsState.READY, NatsState.CLOSED
_ENDS: Final = dict.fromkeys((NatsEvent.FATAL, NatsEvent.SILENCE, NatsEvent.CLOSED), _CLOSED)

TRANSITIONS: Final[Mapping[NatsState, Mapping[NatsEvent, NatsState]]] = {
    # Who begins with anything but INFO is no NATS server.
    _WAITING: {**dict.fromkeys(NatsEvent, _CLOSED), NatsEvent.INFO: _CONNECTING},
    _CONNECTING: {
        **_ENDS,
        NatsEvent.INFO: _CONNECTING,
        NatsEvent.MESSAGE: _CLOSED,
        NatsEvent.PING: _CONNECTING,
        NatsEvent.PONG: _READY,
        NatsEvent.OK: _CONNECTING,
        NatsEvent.ERROR: _CONNECTING,
        NatsEvent.FOREIGN: _CLOSED,
        NatsEvent.MALFORMED: _CLOSED,
    },
    # What one message has wrong costs that message alone; the link counts them.
    _READY: {**dict.fromkeys(NatsEvent, _READY), **_ENDS, NatsEvent.FOREIGN: _CLOSED},
    _CLOSED: dict.fromkeys(NatsEvent, _CLOSED),
}
