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
        reason: One of the keywords in `BrokerStats.frames_dropped_total`.
        text: Description of the reason.
    """

    reason: str = ""
    text: str = ""


@define(eq=False)
class BrokerCounters:
    """Counters that are never reset."""

    frames_to_servers_total: int = 0
    frames_to_clients_total: int = 0
    clients_accepted_total: int = 0
    servers_accepted_total: int = 0
    clients_rejected_total: int = 0
    clients_too_slow_total: int = 0
    frames_dropped_total: dict[str, int] = field(factory=dict)

    def drop(self, reason: str) -> None:
        self.frames_dropped_total[reason] = self.frames_dropped_total.get(reason, 0) + 1


@frozen(kw_only=True)
class BrokerStats:
    """A snapshot of a broker, as returned by `Broker.stats`.

    Attributes:
        sockets: Number of open server connections.
        server_clients: Number of clients by server id. Servers without an id are counted under ``""``.
        clients: Number of connected clients with a server.
        clients_closing: Number of clients that are being closed.
        client_numbers_reserved: Number of released client numbers that cannot be reused yet.
        clients_paused: Number of clients that the broker is not reading from because their server is slow.
        frames_to_servers_total: Number of frames forwarded to servers.
        frames_to_clients_total: Number of frames forwarded to clients.
        clients_accepted_total: Total number of accepted clients.
        servers_accepted_total: Total number of accepted server connections.
        clients_rejected_total: Number of clients rejected because no server was available.
        clients_too_slow_total: Number of clients closed because they read too slowly.
        frames_dropped_total: Number of dropped frames by reason: ``short_frame``, ``bad_kind``, ``forbidden_kind``,
            ``unknown_client``, ``not_your_client``, ``late``, ``too_large``, ``refused``.
    """

    sockets: int
    server_clients: Mapping[str, int]
    clients: int
    clients_closing: int
    client_numbers_reserved: int
    clients_paused: int
    frames_to_servers_total: int
    frames_to_clients_total: int
    clients_accepted_total: int
    servers_accepted_total: int
    clients_rejected_total: int
    clients_too_slow_total: int
    frames_dropped_total: Mapping[str, int]
