"""Addresses and events of sessions between the nodes of a mesh.

Such a session has a single peer, which represents all nodes. The address of an incoming message is in `Message.peer`. It is an
instance of a ``To...`` class, or None if any node may handle the message. Outgoing messages have the address in ``to`` of their
`attributes`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from msgspec import Struct


class ToAll(Struct, frozen=True, weakref=True):
    """Addresses a publication to the subscriptions of all nodes and their clients.

    Attributes:
        source: Name of the sending node; empty if the sender is not part of the mesh.
    """

    source: str = ""


class ToGroup(Struct, frozen=True, weakref=True):
    """Addresses a publication to one member of a queue group.

    Attributes:
        group: Name of the group.
        pattern: Pattern of the subscription, as the protocol encodes it.
    """

    group: str
    pattern: str | int


class ToUser(Struct, frozen=True, weakref=True):
    """Addresses a publication to all connections of a user, or a request to one of them."""

    key: str


class ToNode(Struct, frozen=True, weakref=True):
    """Addresses a message to a node itself."""

    node: str


class ToClient(Struct, frozen=True, weakref=True):
    """Addresses a message to a client of a node."""

    node: str
    id: str


class NodeJoined(Struct, frozen=True, weakref=True):
    """A node announced itself, or answered this node's announcement.

    Attributes:
        node: Name of the node, which changes with each connection.
        facts: Description of the node, with a permanent id in ``bus`` and a human-readable ``name``.
    """

    node: str
    facts: Mapping[str, Any] = {}


class NodeLeft(Struct, frozen=True, weakref=True):
    """A node left.

    Attributes:
        node: Name of the node.
        orderly: True if the node said goodbye; False if its connection was lost.
    """

    node: str
    orderly: bool = False


class Lost(Struct, frozen=True, weakref=True):
    """Requests and channels failed because the remote node is gone.

    Attributes:
        ids: Keys from `Session.send`, and ids of incoming messages.
        reason: Text for the error.
        sent: False if no node received the requests.
    """

    ids: Collection[Any]
    reason: str
    sent: bool = True


class Due(Struct, frozen=True, weakref=True):
    """Asks the bus to call `Session.tick` at a given time instead of waiting for the next second.

    If the time is in the past, the bus calls it at the end of the next event loop iteration.
    """

    at: float
