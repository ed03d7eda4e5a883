"""Events and statistics of a broker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from attrs import define, field, frozen


@frozen(kw_only=True)
class BrokerEvent:
    """Base class of a broker's events.

    Attributes:
        at: Time of the event, in seconds on the event loop's clock.
        address: Address of the connection.
    """

    at: float = field(default=0.0, eq=False)
    address: str = ""


@frozen(kw_only=True)
class ServerJoined(BrokerEvent):
    """A server has connected. Its `server` id may be empty."""

    server: str = ""


@frozen(kw_only=True)
class ServerLeft(BrokerEvent):
    """A server has disconnected. The broker is closing its clients."""

    server: str = ""
    clients: int = 0
    reason: str = ""


@frozen(kw_only=True)
class ClientJoined(BrokerEvent):
    """A client has connected and been assigned to a server."""

    client: int = 0
    server: str = ""


@frozen(kw_only=True)
class ClientLeft(BrokerEvent):
    """A client has disconnected."""

    client: int = 0
    reason: str = ""


DropReason = Literal[
    "short_frame", "bad_kind", "forbidden_kind", "unknown_client", "not_your_client", "late", "too_large", "refused"
]


@frozen(kw_only=True)
class FrameDropped(BrokerEvent):
    """The broker has dropped a frame that violates the protocol or arrived too late.

    Attributes:
        reason: One of the keywords in `BrokerStats.dropped`.
        text: Description of the reason.
    """

    reason: str = ""
    text: str = ""


@define(eq=False)
class BrokerCounters:
    """Counters that are never reset."""

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
    """A snapshot of a broker, as returned by `Broker.stats`.

    Attributes:
        sockets: Number of open server connections.
        servers: Number of clients by server id. Servers without an id are counted under ``""``.
        clients: Number of connected clients with a server.
        leaving: Number of clients that are being closed.
        resting: Number of released client numbers that cannot be reused yet.
        held: Number of clients that the broker is not reading from because their server is slow.
        to_servers: Number of frames forwarded to servers.
        to_clients: Number of frames forwarded to clients.
        clients_total: Total number of accepted clients.
        servers_total: Total number of accepted server connections.
        turned_away: Number of clients rejected because no server was available.
        slow_clients: Number of clients closed because they read too slowly.
        dropped: Number of dropped frames by reason: ``short_frame``, ``bad_kind``, ``forbidden_kind``, ``unknown_client``,
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
