"""Events of a broker: `Broker.events`."""

from __future__ import annotations

from attrs import field, frozen


@frozen(kw_only=True)
class BrokerEvent:
    """Something has happened at a broker.

    Attributes:
        at: Seconds on the event loop's clock.
        address: Of the connection that it is about.
    """

    at: float = field(default=0.0, eq=False)
    address: str = ""


@frozen(kw_only=True)
class ServerJoined(BrokerEvent):
    """A server's socket may carry clients.

    Attributes:
        server: Its id; empty where it has none.
    """

    server: str = ""


@frozen(kw_only=True)
class ServerLeft(BrokerEvent):
    """A server's socket is gone, and the clients on it are closed."""

    server: str = ""
    clients: int = 0
    reason: str = ""


@frozen(kw_only=True)
class ClientJoined(BrokerEvent):
    """A client has its number and its server."""

    client: int = 0
    server: str = ""


@frozen(kw_only=True)
class ClientLeft(BrokerEvent):
    """A client is gone."""

    client: int = 0
    reason: str = ""


@frozen(kw_only=True)
class FrameDropped(BrokerEvent):
    """A frame that breaks a rule, or comes too late.

    Attributes:
        reason: A short word, as in `BrokerStats.dropped`.
        text: For people.
    """

    reason: str = ""
    text: str = ""
