"""Events and counters of a broker: `Broker.events` and `Broker.stats`."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import define, field, frozen


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
        servers: Their ids, with the number of clients of each; sockets without an id are together under ``""``.
        clients: Clients that are connected and assigned.
        leaving: Clients whose connections are being closed.
        resting: Numbers that are kept out of use.
        held: Clients that are not read from because their server is slow.
        to_servers: Frames handed on to servers.
        to_clients: Frames handed on to clients.
        clients_total: Clients that have ever been let in.
        servers_total: Sockets of servers that have ever been let in.
        turned_away: Clients that found no server.
        slow_clients: Clients that were closed because they did not read.
        dropped: Frames that went nowhere, by reason: ``truncated``, ``unknown_kind``, ``forbidden_kind``, ``unknown_client``,
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
