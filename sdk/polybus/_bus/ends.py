"""The bus as its parts and its bridges see it: they get these functions in place of the bus."""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Iterable
from typing import TYPE_CHECKING, Any

from attrs import frozen

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
    from .bus import Bus

__all__ = ["BridgeEnd", "PubSubEnd", "bridge_end"]


@frozen
class PubSubEnd:
    """The bus as its publications and subscriptions see it; implements `_pubsub.ports.BusPort`."""

    check_subject: Callable[[str | int], None]
    check_gone: Callable[[], None]
    answered: Callable[[], Collection[str | int]]
    is_leaving: Callable[[], bool]


@frozen
class BridgeEnd:
    """The bus as its bridges see it; implements `_bridge.ports.BridgedBus`."""

    services: Services
    pubsub: PubSub
    loopback: Loopback
    enter: Callable[[], Coroutine[Any, Any, Runtime]]
    leave: Callable[[Runtime, BaseException | None], Coroutine[Any, Any, None]]
    adapters: Callable[[], Iterable[ProtocolAdapter]]
    add_side: Callable[[Any], None]
    remove_side: Callable[[Any], None]
    side: Callable[[str | int, str], Any]
    check_subject: Callable[[str | int], None]
    handler: Callable[[str | int], Handler | None]
    tunnel_end: Callable[[str | int], Any]
    choose_peer: Callable[[str | int], Peer]
    notify: Callable[[Peer, Message], Coroutine[Any, Any, None]]
    open: Callable[[str | int, Any, str, float | None, Any, Peer | None, int], Coroutine[Any, Any, Channel[Any, Any]]]


def bridge_end(bus: Bus) -> BridgeEnd:
    """Make the end of a bridge at a bus."""
    return bus._bridge_end()
