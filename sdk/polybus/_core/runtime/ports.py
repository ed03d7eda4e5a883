"""Interfaces that higher layers implement."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from ...plugins import Transport
    from .memory_budgets import AnswerSizes, Share
    from .services import Services
    from .workers import Places


class RunningCall(Protocol):
    """A request being handled. The handler's own requests inherit its deadline."""

    deadline: float
    ended: bool
    asked_by_holder: bool


class RequestHandler(Protocol):
    @property
    def answers(self) -> AnswerSizes: ...
    @property
    def name(self) -> str: ...
    @property
    def places(self) -> Places | None:
        """Slots for concurrent calls. None if their number is not limited."""
        ...

    @property
    def style(self) -> str: ...
    @property
    def subject(self) -> str | int: ...

    def checked(self, value: Any, /) -> Any:
        """Validate and convert an answer or item according to the function's annotation.

        Raises:
            TypeError: If it doesn't fit.
        """
        ...

    @property
    def invoke(self) -> Callable[..., Any]:
        """Function with the arguments `Services`, message, deadline and, for streams and channels, the `Channel`."""
        ...


class UnsentAnswers(Protocol):
    """The send queue of a link."""

    @property
    def takes_answers(self) -> bool: ...


class PeerLink(UnsentAnswers, Protocol):
    """The interface of a link for calls, access control and loop prevention."""

    services: Services
    share: Share | None
    """Set on links of clients."""
    inner: bool
    """True if the link connects the nodes of this bus in a cluster."""

    @property
    def transport(self) -> Transport | None: ...
    @property
    def upstream(self) -> bool:
        """True if the link leads to a server."""
        ...

    @property
    def outbox(self) -> UnsentAnswers | None:
        """Set while the peer reads too slowly."""
        ...


class CallingPeer(Protocol):
    """The interface of a peer for calls, access control and loop prevention."""

    grants: dict[str | int, bool] | None
    """Cached results of `authorize` by subject."""

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
