"""Nodes of a mesh as a session between them names them: addresses, arrivals and departures, and lost requests.

A session of such a wire has one peer, which stands for all nodes. `Message.peer` of an incoming message is its address: one
of the classes here, or None for a message that any node may take. Outgoing messages have the address in ``to`` of
`Message.attributes`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from msgspec import Struct


class ToAll(Struct, frozen=True, weakref=True):
    """A publication for every node: for its own and its clients' subscriptions.

    Attributes:
        source: The sending node; empty if it is not one of ours.
    """

    source: str = ""


class ToGroup(Struct, frozen=True, weakref=True):
    """A publication for one member of a queue group.

    Attributes:
        group: Name of the group.
        pattern: Pattern of the subscription as sent to the wire.
    """

    group: str
    pattern: str | int


class ToUser(Struct, frozen=True, weakref=True):
    """A message for a user: publications reach all connections of the user, requests one."""

    key: str


class ToNode(Struct, frozen=True, weakref=True):
    """A message for a node itself."""

    node: str


class ToClient(Struct, frozen=True, weakref=True):
    """A message for a client that is connected to the node."""

    node: str
    id: str


class NodeJoined(Struct, frozen=True, weakref=True):
    """A node announced itself, or answered the announcement of this one.

    Attributes:
        node: Its name on this wire, new for each connection.
        facts: Its own description: ``bus``, a permanent id, and ``name`` for people.
    """

    node: str
    facts: Mapping[str, Any] = {}


class NodeLeft(Struct, frozen=True, weakref=True):
    """A node left.

    Attributes:
        orderly: True if it announced its exit; False if its connection is gone.
    """

    node: str
    orderly: bool = False


class Lost(Struct, frozen=True, weakref=True):
    """Requests and channels that will not end because the node at their other end is gone.

    Attributes:
        ids: Keys from `Session.send`, and ids of incoming messages.
        sent: False if no node received them.
    """

    ids: Collection[Any]
    reason: str
    sent: bool = True


class Due(Struct, frozen=True, weakref=True):
    """Request of a session for a call of `Session.tick` at that time, sooner than the usual second.

    A time in the past means the end of the next event loop iteration: answers that can be given at once are sent by then.
    """

    at: float
