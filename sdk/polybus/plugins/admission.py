"""Admission of peers: the facts of a handshake, the identity of a peer, and the gate of a bus, which transports ask."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from http.cookies import CookieError, SimpleCookie
from typing import Any, Protocol

from attrs import field, frozen

from .._secrets import shown_members
from ..errors import BusError
from .transports import Transport


@frozen(kw_only=True)
class Handshake:
    """Facts about a peer that is not admitted yet; `Bus(authenticate=...)` decides on them."""

    protocol: str = ""
    transport: str = ""
    url: str = ""
    """Of the listener."""
    path: str = "/"
    query: Mapping[str, str] = field(factory=dict, repr=shown_members)
    headers: Mapping[str, str] = field(factory=dict, repr=shown_members)
    """Lower-case names; empty where the transport has none."""
    cookies: Mapping[str, str] = field(factory=dict, repr=lambda cookies: f"<{len(cookies)}>")
    origin: str | None = None
    address: str = ""
    tls_peer: Mapping[str, Any] | None = None
    """The verified client certificate, as `ssl.SSLSocket.getpeercert` gives it."""
    outer: Any = None
    """Of a tunnel: the outer peer."""
    params: Mapping[str, str] = field(factory=dict, repr=shown_members)
    """Facts that the protocol's own handshake or a tunnel passed along."""
    scope: Mapping[str, Any] | None = field(default=None, repr=False)
    """In a web application: its ASGI scope, with what middleware has put there (``session``, ``user``, ``path_params``)."""


@frozen
class Identity:
    """Identity of a peer.

    Attributes:
        value: Anything: shown as `Peer.identity` and `Context.identity`.
        key: For `Bus.peers_of`: all connections of one user share it.
        expires_at: An aware datetime at which the link ends (WebSocket close code 4401).
    """

    value: Any = None
    key: str | None = None
    expires_at: Any = None


@frozen
class Admission:
    """The outcome of `Gate.admit` for a peer that is admitted."""

    identity: Identity
    handshake: Handshake


class Gate(Protocol):
    """The bus's side of accepting: transports ask it."""

    def knock(self, address: str) -> BusError | None:
        """A connection was accepted, nothing is read yet. None lets it go on; an error says why not (limits, draining)."""
        ...

    def left(self, address: str) -> None:
        """A connection that knocked went away before `opened`."""

    def admit(self, handshake: Handshake, decided: Callable[[Admission | BusError], None]) -> None:
        """Ask for admission of a peer. `decided` is called once, at once or later."""

    def opened(self, transport: Transport, admission: Admission) -> None:
        """The connection is established; the bus calls `transport.start`."""


def cookies_of(text: str) -> dict[str, str]:
    """The cookies in the value of a Cookie header, for `Handshake.cookies`; none where it is malformed."""
    try:
        return {name: morsel.value for name, morsel in SimpleCookie(text).items()}
    except CookieError:
        return {}
