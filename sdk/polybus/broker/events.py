"""Events and counters of a broker: `Broker.events` and `Broker.stats`."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import define, field, frozen


@frozen(kw_only=True)
class BrokerEvent:
    """Base class of a broker's events.

    Attributes:
        at: Seconds on the event loop's clock.
        address: Of the connection.
    """

    at: float = field(default=0.0, eq=False)
    address: str = ""


@frozen(kw_only=True)
class ServerJoined(BrokerEvent):
    """A server has connected and can take clients.

    Attributes:
        server: Its id; may be empty.
    """

    server: str = ""


@frozen(kw_only=True)
class ServerLeft(BrokerEvent):
    """A server's connection is gone, and its clients are closed."""

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


@define(eq=False)
class BrokerCounters:
    """Counters of a running broker; never reset."""

    to_servers: int = 0
    to_clients: int = 0
    clients_total: int = 0
    servers_total: int = 0
    turned_away: int = 0
    slow_clients: int = 0
    dropped: dict[str, int] = field(factory=dict)

    def drop(self, reason: str) -> None:
        self.dropped[reason] = self.dropped.get(reason, 0) + 1


@frozen(kw_only=True)
class BrokerStats:
    """A snapshot of a broker: `Broker.stats()`.

    Attributes:
        sockets: Connections of servers.
        servers: Number of clients by server id; ``""`` for all servers without one.
        clients: Connected clients with a server.
        leaving: Clients with a connection that is being closed.
        resting: Numbers that are not reused yet.
        held: Clients that the broker does not read because their server is slow.
        to_servers: Frames forwarded to servers.
        to_clients: Frames forwarded to clients.
        clients_total: Clients accepted so far.
        servers_total: Connections of servers accepted so far.
        turned_away: Clients refused for want of a server.
        slow_clients: Clients closed because they did not read.
        dropped: Dropped frames by reason: ``truncated``, ``unknown_kind``, ``forbidden_kind``, ``unknown_client``,
            ``not_your_client``, ``late``, ``too_large``, ``refused``.
    """

    sockets: int
    servers: Mapping[str, int]
    clients: int
    leaving: int
    resting: int
    held: int
    to_servers: int
    to_clients: int
    clients_total: int
    servers_total: int
    turned_away: int
    slow_clients: int
    dropped: Mapping[str, int]
