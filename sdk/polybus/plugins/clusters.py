"""Nodes of a cluster, as a session between them names them: whom a message is for, who comes and goes, what is lost with them.

A session of such a wire has one peer, the cluster, and says in `Message.peer` of what comes in whom it is for: one of the
classes here, or None for what any node may take. In `Message.attributes` of what goes out ``to`` says the same.
"""

from __future__ import annotations

import math
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
class ToEngine:
    """A question to the engine itself: its subject is one of the wire."""


@frozen
class ToStore:
    """A publication that the engine answers when it has stored it.

    Attributes:
        id: Of the publication: one that comes again under the same id is stored once. Empty for none.
        at: Its subject on the wire, where that is not the one of a publication.
        only: The one durable handler that it is for, where that is not all.
        again: It was sent before, and whoever listens may have heard it.
        block: Headers as they stand on the wire, in place of all that would be written; empty for none.
        until: Time from which on it is not sent again: the store may have forgotten its id.
    """

    id: str
    at: str = ""
    only: str = ""
    again: bool = False
    block: bytes = b""
    until: float = math.inf


@frozen
class ToReader:
    """A stored publication for a reader of its store, or a word of the engine to that reader.

    Attributes:
        reader: The number that the reader was subscribed by; 0 in a word for all of the consumer's.
        ack: Where it says what has become of the publication; of a word of the engine, where it may not say that, or empty.
        attempt: How often it has been given to a reader, this time included.
        number: Of the publication in its store.
        consumer: Whom the engine gave it to.
        place: Of this time among all that the consumer was given.
        status: Of a word of the engine; 0 for a publication.
        text: Beside the status.
        left: Publications that were asked for and do not come any more, where a word says so.
        only: The one durable handler that it is for; None where it is for all.
        fault: Why a publication cannot be read; empty where it can.
        block: Headers that cannot be read, as they stand on the wire; empty where they can, and where nothing has come of it.
    """

    reader: int
    ack: str = ""
    attempt: int = 1
    number: int = 0
    consumer: str = ""
    place: int = 0
    status: int = 0
    text: str = ""
    left: int | None = None
    only: str | None = None
    fault: str = ""
    block: bytes = b""


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
