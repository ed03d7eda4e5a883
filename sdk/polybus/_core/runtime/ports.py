"""Ports of the core: interfaces that higher layers implement and pass in."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from ...plugins import Transport
    from .memory_budgets import AnswerSizes, Share
    from .services import Services


class RunningCall(Protocol):
    """A request being served, as its handler's own requests see it."""

    deadline: float
    ended: bool
    asked_by_holder: bool


class RequestHandler(Protocol):
    """A handler, or a forwarder in its place."""

    @property
    def answers(self) -> AnswerSizes: ...
    @property
    def name(self) -> str: ...
    @property
    def style(self) -> str: ...
    @property
    def subject(self) -> str | int:
        """The subject or pattern of the registration."""
        ...

    def checked(self, value: Any, /) -> Any:
        """Check and convert an answer or item by the function's annotation.

        Raises:
            TypeError: It does not fit.
        """
        ...

    @property
    def invoke(self) -> Callable[..., Any]:
        """Takes the `Services`, the message, the deadline and, for a stream or channel, the conversation."""
        ...


class UnsentAnswers(Protocol):
    """The send queue of a link."""

    @property
    def takes_answers(self) -> bool: ...


class PeerLink(UnsentAnswers, Protocol):
    """The link of a peer, as calls, access control and loop prevention see it."""

    services: Services
    share: Share | None
    """Set on accepted links."""
    inner: bool
    """True if the link leads back to this bus."""

    @property
    def transport(self) -> Transport | None: ...
    @property
    def upstream(self) -> bool:
        """True if this bus opened the link."""
        ...

    @property
    def outbox(self) -> UnsentAnswers | None:
        """Set while the peer reads too slowly."""
        ...


class CallingPeer(Protocol):
    """A peer, as calls, access control and loop prevention see it."""

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
    @property
    def public(self) -> Any:
        """The `Peer` that the application knows."""
        ...
