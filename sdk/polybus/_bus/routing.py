"""Where what a bus is asked to do goes: checks of what is passed, the peer or handler it is for, and what nobody could get."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from .._peer.peer import Peer
from .._validation import seconds, shown
from ..errors import AmbiguousRoute, Disconnected, NoHandler
from ..headers import check_headers
from ..subjects import canonical, check_subject, matches
from .links import Links

if TYPE_CHECKING:
    from .._handlers.handler import Handler
    from .._pubsub.publisher import PublicationRoute
    from ..message import Message

__all__ = ["Routing", "has_gone"]

_CHECKED = 4096


class Routing(Links):
    """The part of a `Bus` that decides where something goes, or that it goes nowhere."""

    _checked: set[str | int]

    def _route(self, subject: str | int) -> Peer:
        opened = self._opened
        only: Peer
        if len(opened) == 1 and opened[0]._peer is not None:
            only = opened[0]._peer
            return only
        self._check_gone()  # the better errors: of this, and where the bus is not entered
        opened = [link for link in opened if link.multiplexed is None]  # at the end of the others are clients, behind a broker
        if not opened:
            if self.leaving:
                raise Disconnected("this bus is being left")
            raise NoHandler(f"nobody to ask for {subject!r}: no handler here, and no link opened by this bus (to= asks a peer)")
        links = [link for link in opened if any(matches(pattern, subject) for pattern in link.serves)]
        if not links or links[0].peer is None:
            urls = ", ".join(link.url for link in opened)
            raise AmbiguousRoute(f"several links could take {subject!r} ({urls}): say to=, or connect with serves=")
        only = links[0].peer
        return only

    def _route_of(self, name: str | int) -> PublicationRoute:
        try:
            route = self._pubsub.publisher.routes.get(name)
        except TypeError:  # not hashable: `route` says what it should be
            route = None
        return route if route is not None else self._pubsub.publisher.route(name)

    def _check_peer(self, to: Any) -> None:
        """
        Raises:
            TypeError: Not a peer.
            ValueError: A peer of another bus.
        """
        if not isinstance(to, Peer):
            raise TypeError(f"to={shown(to)}: a Peer (of bus.peers, bus.peers_of(key) or ctx.peer), not {type(to).__name__}")
        if to.link.bus is not self._bus:
            raise ValueError(f"to={to!r}: a peer of another bus; ask that bus, or the peer itself")

    def _recipients(self, to: Any) -> tuple[tuple[Peer, ...], Peer | None]:
        """Those who are there, each once, and one who is not."""
        given: list[Any] = [*to] if isinstance(to, Iterable) and not isinstance(to, (str, bytes)) else [to]
        for peer in given:
            self._check_peer(peer)
        peers = list(dict.fromkeys(given))
        there = tuple(peer for peer in peers if not peer.gone)
        return there, next((peer for peer in peers if peer.gone), None) if len(there) < len(peers) else None

    def _check_opening(self, subject: str | int, timeout: float | None, to: Peer | None) -> None:
        self._check_subject(subject)
        if timeout is not None:
            seconds(timeout)
        if to is not None:
            self._check_peer(to)

    def _check_subject(self, subject: str | int) -> None:
        try:
            known = subject in self._checked
        except TypeError:  # not hashable, so certainly no subject
            known = False
        if not known:
            check_subject(subject, self.limits.subject)
            if len(self._checked) >= _CHECKED:
                self._checked.clear()
            self._checked.add(subject)

    def _handler(self, subject: str | int) -> Handler | None:
        """Who answers a subject."""
        found = self._handlers.get(subject)
        if found is None and self._by_uri and isinstance(subject, str):
            found = self._by_uri.get(canonical(subject))
        return found

    def _handler_of(self, message: Message) -> Handler | None:
        """Who answers a message; an address in it gets the spelling of the handler's registration, or else the canonical one.

        What `authorize` is asked about is then what the application has written, whatever the peer wrote.
        """
        subject = message.subject
        found = self._handler(subject)
        if isinstance(subject, str) and "/" in subject:
            message.subject = canonical(subject) if found is None else found.subject
        return found

    def _headers(self, headers: Mapping[str, str] | None) -> dict[str, str] | None:
        return None if headers is None else check_headers(headers, self.limits.headers)


def has_gone(peer: Peer) -> Disconnected:
    return Disconnected("the peer has gone", peer.address, False)
