"""Ports of the core: what it asks of the rooms above, which hand it in."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from ...plugins import Transport
    from .memory import AnswerSizes, Share
    from .services import Services


class RunningCall(Protocol):
    """A request that is being served, as those that its handler makes see it."""

    deadline: float
    ended: bool
    asked_by_holder: bool


class RequestHandler(Protocol):
    """A handler, or the part in its place that sends requests on."""

    @property
    def answers(self) -> AnswerSizes: ...
    @property
    def name(self) -> str: ...
    @property
    def style(self) -> str: ...
    @property
    def subject(self) -> str | int:
        """The subject or pattern that it was registered for."""
        ...

    def checked(self, value: Any, /) -> Any:
        """An answer, or item, as the annotation of the function has it.

        Raises:
            TypeError: It does not fit.
        """
        ...

    @property
    def invoke(self) -> Callable[..., Any]:
        """Called with the `Services`, the message, the deadline and, of a stream or channel, that."""
        ...


class UnsentAnswers(Protocol):
    """The send queue of a link."""

    @property
    def takes_answers(self) -> bool: ...


class PeerLink(UnsentAnswers, Protocol):
    """The link of a peer, as calls, access control and loop prevention see it."""

    services: Services
    share: Share | None
    """Present where it was accepted."""
    inner: bool
    """True where the buses beyond it are this very bus."""

    @property
    def transport(self) -> Transport | None: ...
    @property
    def upstream(self) -> bool:
        """True if this bus has opened it."""
        ...

    @property
    def outbox(self) -> UnsentAnswers | None:
        """Present while the peer reads too slowly."""
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
