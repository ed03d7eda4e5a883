"""Narrow interface of the buses that a bridge joins."""

from __future__ import annotations

from collections.abc import Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from .._core.runtime import Runtime
    from .._core.services import Services
    from .._handlers.handler import Handler
    from .._peer.peer import Peer
    from .._pubsub.pubsub import PubSub
    from .._rpc.channel import Channel
    from .._rpc.loopback import Loopback
    from ..message import Message
    from ..plugins import ProtocolAdapter

__all__ = ["BridgedBus"]


class BridgedBus(Protocol):
    """One of the two buses of a bridge, as the bridge sees it."""

    @property
    def services(self) -> Services: ...

    @property
    def pubsub(self) -> PubSub: ...

    @property
    def loopback(self) -> Loopback: ...

    def enter(self) -> Coroutine[Any, Any, Runtime]:
        """Enter the bus; gives what `leave` wants."""
        ...

    def leave(self, runtime: Runtime, error: BaseException | None, /) -> Coroutine[Any, Any, None]:
        """Leave the bus, with an error or with a drain."""
        ...

    def adapters(self) -> Iterable[ProtocolAdapter]:
        """List the protocols of its links and listeners."""
        ...

    def add_side(self, side: Any, /) -> None:
        """Take in a `RouteSide` that begins at this bus."""

    def remove_side(self, side: Any, /) -> None:
        """Take such a side out."""

    def side(self, subject: str | int, kind: str, /) -> Any:
        """Find the `RouteSide` that takes such messages on to another bus."""
        ...

    def check_subject(self, subject: str | int, /) -> None:
        """Raise `LocalProtocolError` or `ReservedSubject` where an application must not use a subject."""

    def handler(self, subject: str | int, /) -> Handler | None:
        """Find the handler of a subject."""
        ...

    def tunnel_end(self, name: str | int, /) -> Any:
        """Find the end of tunnels of such a name in this process: a handler of tunnels, or a bridge."""
        ...

    def choose_peer(self, subject: str | int, /) -> Peer:
        """Choose the peer that a request goes to."""
        ...

    def notify(self, peer: Peer, message: Message, /) -> Coroutine[Any, Any, None]:
        """Write a notification as soon as there is room."""
        ...

    def open(
        self,
        subject: str | int,
        body: Any,
        mode: str,
        timeout: float | None,
        receives: Any,
        to: Peer | None,
        hops: int,
        /,
    ) -> Coroutine[Any, Any, Channel[Any, Any]]:
        """Open a stream or channel."""
        ...
