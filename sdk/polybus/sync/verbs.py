"""The classes of `polybus.sync`, created from asynchronous ones at import.

Type checkers and editors read ``verbs.pyi``, which ``python scripts/make_blocking.py`` writes.
"""

from __future__ import annotations

from typing import Any

from .. import Bus, Caller, Listener, Peer, RemotePeer, User
from .twin import AskingTwin, Twin

__all__ = ["BlockingBus", "BlockingCaller", "BlockingListener", "BlockingPeer", "BlockingRemotePeer", "BlockingUser"]


class BlockingPeer(
    AskingTwin,
    of=Peer,
    verbs="id identity identity_key address protocol transport connected connected_at "
    "request publish subscribe notify stream channel tunnel close=aclose",
):
    """A `Peer` that blocks the calling thread."""


class BlockingRemotePeer(
    AskingTwin, of=RemotePeer, verbs="id node identity_key protocol request notify publish stream channel"
):
    """A `RemotePeer` that blocks the calling thread."""


class BlockingUser(AskingTwin, of=User, verbs="key request notify publish stream channel online peers"):
    """A `User` that blocks the calling thread."""


class BlockingCaller(AskingTwin, of=Caller, verbs="identity request notify stream channel"):
    """A `Caller` that blocks the calling thread."""


class BlockingListener(Twin, of=Listener, verbs="url peers"):
    """A `Listener` for threads."""


class BlockingBus(
    AskingTwin,
    of=Bus,  # handlers are registered on the `Bus`, which does not block
    verbs="request as_ notify publish publish_nowait subscribe stream channel connect serve record tunnel peers peers_of "
    "user nodes present stats events drain wait_closed",
):
    """A `Bus` that blocks the calling thread. Several threads can use it at once.

    A request returns its answer instead of a `Reply`, so concurrent requests require several threads.
    """

    def __reduce__(self) -> Any:
        raise TypeError("a bus cannot be pickled: open one in each process")
