"""RPC and publish/subscribe over any protocol and any transport.

`connect` connects to a server and returns a `Bus`. ``Bus().serve(url)`` accepts connections.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from . import errors
from ._core.bus.acceptor import Listener
from ._core.bus.bus import Bus, connect
from ._core.bus.cluster_clients import RemotePeer, User
from ._core.bus.message_routing import Caller
from ._core.bus.registration import Router
from ._core.handlers.providers import Dependencies
from ._core.peer.peer import Peer
from ._core.peer.subscription import Subscription
from ._core.rpc.channel import Channel
from ._core.rpc.reply import Reply
from ._core.runtime.context import Context
from ._core.runtime.executor import CallNext, HandlerExecutor, Middleware
from .contracts import method, notify
from .errors import *  # noqa: F403  # all of them
from .limits import Limits
from .message import Kind, Message
from .nodes import Cluster, Node, Store, Survey
from .outcomes import Outcome, OutgoingHook
from .plugins import Handshake, Identity
from .retry import Backoff, Retry
from .stats import Stats
from .subjects import Subject

if TYPE_CHECKING:
    from .bridges import Route, bridge
    from .broker import Broker
    from .running import run

__all__ = [
    "Backoff", "Broker", "Bus", "CallNext", "Caller", "Channel", "Cluster", "Context", "Dependencies", "Handshake", "Identity",
    "Kind", "Limits", "Listener", "Message", "Middleware", "Node", "Outcome", "OutgoingHook", "Peer", "RemotePeer", "Reply",
    "Retry", "Route", "Router", "Stats", "Store", "Subject", "Subscription", "Survey", "User", "bridge", "connect", "method",
    "notify", "run",
]  # fmt: skip
__all__ += errors.__all__


def _show_public_names() -> None:
    """Make tracebacks and reprs show the public path of each name."""
    for name in __all__:
        thing = globals().get(name)
        if getattr(thing, "__module__", "").startswith("polybus."):
            thing.__module__ = "polybus"


_show_public_names()


def _context_in_a_thread(*facts: Any) -> Context:
    """Create the context of a `def` handler. The blocking API is imported only when the first such handler runs."""
    from .sync import Context as BlockingContext

    return BlockingContext(*facts)


def _cloudevents() -> Any:
    from .protocols.uprotocol import cloudevent

    return cloudevent


HandlerExecutor.context_in_a_thread = staticmethod(_context_in_a_thread)
Message.cloudevents = staticmethod(_cloudevents)


_WHEN_ASKED_FOR: Final = {"Broker": ".broker", "Route": ".bridges", "bridge": ".bridges", "run": ".running"}
"""Maps rarely used names to their modules, which are imported lazily. Eager imports would make ``import polybus`` a sixth
slower."""


if not TYPE_CHECKING:  # with this function, type checkers would accept unknown names

    def __getattr__(name: str) -> Any:
        if name not in _WHEN_ASKED_FOR:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        thing = getattr(import_module(_WHEN_ASKED_FOR[name], __name__), name)
        thing.__module__ = __name__
        return thing
