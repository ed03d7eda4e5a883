"""What leads through a bus to other buses: tunnels, and the ends of bridges."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .._tunnel import TunnelConnector
from .._tunnel.endpoint import Entrance
from .._validation import check_type, shown
from ..plugins.registry import find_protocol
from ..subjects import check_pattern, is_pattern
from .acceptor import WHEN_FULL
from .routing import Routing

if TYPE_CHECKING:
    from .._peer.peer import Peer
    from ..plugins import ProtocolAdapter
    from .bus import Bus

__all__ = ["Passages"]


class Passages(Routing):
    """The part of a `Bus` through which others are reached."""

    _entrances: list[Entrance]
    _route_sides: list[Any]

    def tunnel(self, name: str, *, params: Mapping[str, str] | None = None) -> TunnelConnector:
        """A connection that runs inside a link of this bus: ``connect(bus.tunnel("plant.7"), protocol="csb")``.

        It goes to the peer that a request to `name` would go to. It comes back after a loss as any connection does, once the
        outer link is back.

        Args:
            name: What the other side serves by `handle_tunnels`.
            params: Shown there in `Handshake.params`.

        Raises:
            ReservedSubject, LocalProtocolError: The name cannot be.
            TypeError: `params` are not text to text.
        """
        return self._tunnel(name, params, None)

    def _tunnel(self, name: str, params: Mapping[str, str] | None, peer: Peer | None) -> TunnelConnector:
        if not isinstance(name, str):
            raise TypeError(f"tunnel({shown(name)}): a name, for example 'plant.7', not {type(name).__name__}")
        self._check_subject(name)
        given = dict(params or {})
        if not all(isinstance(text, str) for pair in given.items() for text in pair):
            raise TypeError(f"params={shown(params)}: text to text")

        def route() -> Peer:
            self._services.running.check_here()
            return peer if peer is not None else self._route(name)

        def lasting() -> bool:
            runtime = self._services.runtime
            return runtime is not None and not runtime.closing and (bool(self._opened) if peer is None else not peer.gone)

        return TunnelConnector(route, lasting, name, given)

    def handle_tunnels(
        self, pattern: str, inner: Bus, *, protocol: str | ProtocolAdapter, when_full: str = "drop_oldest"
    ) -> None:
        """Lead tunnels of these names to another bus, as if their openers had connected to it.

        A bus that does not run yet is entered with the first tunnel, and left together with this one. ``authorize(peer,
        "tunnel", name)`` of this bus is asked first; then `inner` asks its own ``authenticate`` with the outer peer in
        `Handshake.outer`; without one, whoever comes is who it is here.

        Args:
            pattern: ``plant.{id}``: what the names give is in `Handshake.params`.
            inner: Where they lead; may be this bus.
            protocol: What is spoken inside: name or adapter.
            when_full: As in `serve`.

        Raises:
            LocalProtocolError, ReservedSubject: The pattern is not valid.
            ValueError: The protocol or the policy is not known, or the pattern is served already.
            TypeError: `inner` is no bus.
        """
        from .bus import Bus  # which is one of these

        check_pattern(pattern, self.limits.subject)
        check_type(inner, Bus, "inner", "Bus()")
        if when_full not in WHEN_FULL:
            raise ValueError(f"when_full={when_full!r}: one of {', '.join(WHEN_FULL)}")
        if any(entrance.pattern == pattern for entrance in self._entrances):
            raise ValueError(f"tunnels of {pattern!r} are served already")
        self._entrances.append(Entrance(self._bus, pattern, inner, find_protocol(protocol, {}), when_full))

    def _entrance(self, name: str | int) -> Any:
        """Find the end of a tunnel, in place of a handler."""
        found = next((entrance for entrance in self._entrances if entrance.fits(name)), None)
        if found is None and (side := self._side(name, "tunnel")) is not None:
            return side.tunnels
        return found

    def _side(self, subject: str | int, kind: str) -> Any:
        """Find the route of a bridge that takes such messages."""
        return next((side for side in self._route_sides if side.fits(subject, kind)), None)

    def _add_side(self, side: Any) -> None:
        self._route_sides.append(side)
        source = side.route.source
        if "request" in side.route.kinds and not is_pattern(source):
            self._pubsub.announcer.add_handler(source)

    def _remove_side(self, side: Any) -> None:
        if side in self._route_sides:
            self._route_sides.remove(side)

    def _adapters(self) -> set[ProtocolAdapter]:
        """List the protocols of its links and listeners."""
        return {link.adapter for link in self._services.running.links} | {
            listener._gate.adapter for listener in self._listeners
        }

    def _answered(self) -> list[str | int]:
        """List the subjects that are answered here, by handlers or over bridges."""
        crossing = [side.route.source for side in self._route_sides if "request" in side.route.kinds]
        return [*self._handlers, *(source for source in crossing if not is_pattern(source))]
