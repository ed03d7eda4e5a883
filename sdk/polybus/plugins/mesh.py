"""Nodes of a mesh, as a session between them names them: whom a message is for, who comes and goes, what is lost with them.

A session of such a wire has one peer, all of them, and says in `Message.peer` of what comes in whom it is for: one of the
classes here, or None for what any node may take. In `Message.attributes` of what goes out ``to`` says the same.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from attrs import field, frozen


@frozen
class ToAll:
    """A publication for each node: its own subscriptions and those of its clients.

    Attributes:
        source: The node that has sent it; empty where it is no node of ours.
    """

    source: str = ""


@frozen
class ToGroup:
    """A publication for one member of a group.

    Attributes:
        group: The name of the group.
        pattern: The pattern of the subscription, as it was told to the wire.
    """

    group: str
    pattern: str | int


@frozen
class ToUser:
    """A message for a user: publications for all connections of the user, all else for one of them."""

    key: str


@frozen
class ToNode:
    """A message for one node itself."""

    node: str


@frozen
class ToClient:
    """A message for one client, which is connected to the node."""

    node: str
    id: str


@frozen
class NodeJoined:
    """A node is there: it has said so, or answered when this one did.

    Attributes:
        node: Its name on this wire, another one for each of its connections.
        facts: What it says of itself: ``bus``, an id that stays, and ``name`` for people.
    """

    node: str
    facts: Mapping[str, Any] = field(factory=dict)


@frozen
class NodeLeft:
    """A node is not there any more.

    Attributes:
        orderly: It has said goodbye; otherwise its connection is gone.
    """

    node: str
    orderly: bool = False


@frozen
class Lost:
    """Requests and channels that come to no end, for the node is gone that had them or has asked for them.

    Attributes:
        ids: Keys that `Session.send` gave, and ids of what came in.
        sent: False where nobody has got them.
    """

    ids: Collection[Any]
    reason: str
    sent: bool = True


@frozen
class Due:
    """A wish of a session to be called (`Session.tick`) at that time, sooner than once a second.

    A time that has passed is the end of the next turn of the event loop: what came in this one and can be answered at once
    has its answer by then.
    """

    at: float
