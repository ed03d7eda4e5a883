"""What is kept for whoever is at the other end of a link, and what is known of it."""

from __future__ import annotations

import datetime
import math
import secrets
from collections import deque
from typing import TYPE_CHECKING, Any

from .._core.memory import Account
from .._rpc.call import Answer, Call

if TYPE_CHECKING:
    import anyio

    from .._core.memory import Share
    from .._link.link import Link
    from .._rpc.channel import Channel
    from .._rpc.reply import Reply
    from .._util.priority_queue import UrgentQueue
    from ..message import Message
    from ..plugins import Identity
    from .authorization_queue import Deliveries
    from .extension_probe import Question

__all__ = ["KnownPeer"]


class KnownPeer(Answer):
    """The state of a `Peer`; what is done with it is in the classes above this one."""

    __slots__ = (
        "__weakref__",
        "_allowed",
        "_asking",
        "_answers_only",
        "_due",
        "_extended",
        "_id",
        "_identity",
        "_late",
        "_silent",
        "_unsent",
        "_where",
        "account",
        "calls",
        "channels",
        "connected_at",
        "expected",
        "key",
        "large",
        "link",
        "passes_on",
        "patterns",
        "pending",
        "scopes",
        "share",
        "stopping",
        "undecided",
        "undelivered",
        "waiting",
        "warned",
    )

    def __init__(self, link: Link, key: Any, identity: Identity, where: str = "") -> None:
        self.link: Link = link
        """The connection. For the rooms of this package: not part of the public interface."""
        self._identity = identity
        self._where = where
        self._id: str | None = None
        self.key: Any = key
        """How the session names this peer, where it has many."""
        self.connected_at: datetime.datetime = datetime.datetime.now(datetime.UTC)
        self.pending: dict[Any, Reply[Any]] = {}
        """Requests that were written and wait for their answer."""
        self.calls: dict[Any, Call] | None = None
        """Requests of this peer whose handlers run or wait, by their id."""
        self.waiting: deque[Call] | UrgentQueue[Call] | None = None
        """Requests whose turn has not come: in order, and by urgency where the wire has priorities."""
        self.large: dict[Call, int] | None = None
        """Requests that run and have large bodies, and what those cost."""
        self.expected: dict[Call, int] | None = None
        """Requests that run and will have large answers, as far as that can be foreseen, and what is set aside for those."""
        self.scopes: set[anyio.CancelScope] | None = None
        """Of tasks that end when it is gone."""
        self.stopping: int = 0
        """Handlers of requests that are over already: each keeps its place until it returns."""
        self.patterns: dict[str | int, int] | None = None
        """What the peer has subscribed to, and what that is charged with."""
        self.channels: dict[Any, Channel[Any, Any]] | None = None
        self.passes_on: bool = False
        """Whether it has said that it passes publications on to other buses."""
        self.warned: bool = False
        """Whether the log says already that it wants too many subscriptions."""
        self.share: Share | None = link.share
        """Of what the bus shares out, where others have opened the link."""
        self.account: Account = Account(link.runtime, link.runtime.limits.waiting_bytes, link.share)
        """What this peer makes the bus keep: requests and questions that wait, items that nobody has read."""
        self.undecided: deque[Message] | None = None
        """Messages that wait for an asynchronous `authorize`."""
        self.undelivered: Deliveries | None = None
        """Publications to it that wait for an asynchronous `authorize`."""
        self._unsent: dict[Reply[Any], None] | None = None
        self._allowed: dict[str | int, bool] | None = None
        self._due = math.inf
        self._extended: bool | None = None
        self._answers_only = False
        self._silent = False
        """Whether it was asked who it is, and has not answered in time."""
        self._asking: Question | None = None
        self._late: dict[Any, Question] | None = None
        """Questions without an answer as yet, by their id."""

    @property
    def id(self) -> str:
        """Random text that tells peers apart."""
        if self._id is None:
            self._id = secrets.token_hex(6)
        return self._id

    @property
    def identity(self) -> Any:
        """What `authenticate` gave."""
        return self._identity.value

    @property
    def identity_key(self) -> str | None:
        """The key under which `Bus.peers_of` finds it."""
        return self._identity.key

    @property
    def address(self) -> str:
        """Network address, as far as the transport knows it."""
        return self._where or self.link.address

    @property
    def protocol(self) -> str:
        """Name of the protocol."""
        return self.link.adapter.name

    @property
    def transport(self) -> str:
        """Name of the transport; empty while there is no connection."""
        return self.link.transport.name if self.link.transport is not None else ""

    @property
    def connected(self) -> bool:
        """Whether the link is up, and the peer there."""
        link = self.link
        if not link.stands:
            return False
        return self.key is None or link.crowd is None or link.crowd.peers.get(self.key) is self

    @property
    def may_be_ours(self) -> bool:
        """Whether it is there, and can be asked who it is; it has not shown that it is none of ours."""
        session = self.link.session
        return self.connected and self._extended is not False and session is not None and session.capabilities.extensions

    @property
    def gone(self) -> bool:
        """Whether it has left for good; one whose link is to come back has not."""
        link = self.link
        if self.key is not None:
            return link.crowd is None or link.crowd.peers.get(self.key) is not self
        return link.ends is not None

    def __repr__(self) -> str:
        return f"<Peer {self.id} {self.protocol}+{self.transport} {self.address}>"

    # -- what the classes above do ---------------------------------------------------------------------------------------

    def _watch(self, deadline: float) -> None:
        """Have `_expire` called soon after a deadline."""
        raise NotImplementedError

    def _abandoned(self, reply: Reply[Any]) -> None:
        """Nobody waits for this answer any more."""
        raise NotImplementedError
