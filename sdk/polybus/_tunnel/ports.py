"""Ports of the ends of tunnels: what they need of the buses that they join."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from ..plugins import Gate

if TYPE_CHECKING:
    from .._core.handlers.lookup import HandlerLookup
    from .._core.link.link import Link
    from .._core.runtime.services import Services
    from ..plugins import Listening, ProtocolAdapter


class TunnelGate(Gate, Protocol):
    """The way into the inner bus: a gate that knows who has come in through it."""

    links: dict[Link, str]


class GateRegistry(Protocol):
    """The gates of a bus."""

    def open_gate(self, adapter: ProtocolAdapter, url: str, when_full: str) -> Any:
        """Make a gate: a `TunnelGate`, for `add_gate`."""
        ...

    def add_gate(self, gate: Any, listening: Listening) -> None:
        """Have others come in."""


class Hosting(Protocol):
    """The life of a bus."""

    async def take_in(self, guest: Any) -> None: ...


class JoinedBus(Protocol):
    """The outer or the inner bus of a tunnel."""

    services: Services
    lookup: HandlerLookup

    @property
    def links(self) -> GateRegistry: ...
    @property
    def life(self) -> Hosting: ...
