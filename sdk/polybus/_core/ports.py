"""Ports of the core: what it asks of the rooms above, which hand it in."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from ..plugins import Transport
    from .answer_sizes import AnswerSizes
    from .services import Services


class RunningCall(Protocol):
    """A request that is being served, as those that its handler makes see it."""

    deadline: float
    ended: bool


class RequestHandler(Protocol):
    """A handler, or the part in its place that sends requests on."""

    @property
    def answers(self) -> AnswerSizes:
        """The sizes of its answers."""
        ...

    @property
    def name(self) -> str:
        """Its name, for errors and logs."""
        ...

    @property
    def style(self) -> str:
        """Async, inline, thread, stream or channel."""
        ...

    @property
    def invoke(self) -> Callable[..., Any]:
        """Called with the bus, the message, the deadline and, of a stream or channel, that."""
        ...


class PeerLink(Protocol):
    """The link of a peer, as loop prevention sees it."""

    @property
    def services(self) -> Services: ...

    @property
    def transport(self) -> Transport | None: ...


class RemotePeer(Protocol):
    """A peer, as access control and loop prevention see it."""

    grants: dict[str | int, bool] | None
    """Answers of `authorize`, by subject."""

    @property
    def id(self) -> str: ...

    @property
    def identity(self) -> Any: ...

    @property
    def identity_key(self) -> str | None: ...

    @property
    def link(self) -> PeerLink: ...
