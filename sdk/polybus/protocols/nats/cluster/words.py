"""Messages between nodes of a cluster, and the state of an unanswered request."""

from __future__ import annotations

from typing import Any, Final

from attrs import define

from ....message import Kind, Message
from ....plugins import ToClient, ToUser
from ..._shared import milliseconds
from ..checks import refuse
from ..codec import HAVE_IT, NatsCodec
from ..connection import NatsConnection
from ..headers import KIND, TTL, USER, HeaderBlock, error_message, one_line, without_those_of_engine, write_block
from ..operations import write_named, write_publication
from ..stored import ToEngine, ToStore, write_to_engine
from .subjects import ClusterSubjects

PUBLISHED: Final = "publish"
_CONTROLS: Final = {"cancel": Kind.CANCEL, "item": Kind.ITEM, "credit": Kind.CREDIT, "end": Kind.END}
WORDS: Final = {kind: word for word, kind in _CONTROLS.items()}

_AGAIN: Final = 2.0
LONGEST_PAUSE: Final = 16.0
"""First and longest wait, in seconds, before an unconfirmed publication is sent again."""


@define(eq=False)
class AskedRequest:
    """A request or an open channel of this node."""

    names: str  # Wire subject and reply subject
    to: Any  # Address; None for any node with a handler
    at: float  # Time of the last attempt
    frame: bytes | None  # Bytes for another attempt, until a node has sent a receipt; None if addressed to one node
    node: str = ""  # Handling node, once known
    again: int = 0
    controls: list[tuple[str, bytes, bytes]] | None = None  # Control messages that wait until the handling node is known
    publication: Message | None = None  # Publication for a store, until confirmed
    pause: float = _AGAIN  # Seconds until it is sent again


def subject_of(subjects: ClusterSubjects, message: Message, to: Any) -> str:
    if to is None:
        return subjects.handled[message.subject]
    if isinstance(to, ToEngine):
        return str(message.subject)
    name = subjects.written[message.subject]
    if isinstance(to, ToUser):
        return subjects.keyed("k", to.key, name)
    if isinstance(to, ToStore):
        return to.at or f"{subjects.cluster}.p.{name}"
    if isinstance(to, ToClient):
        return subjects.keyed(f"n.{to.node}.d", to.id, name)
    return subjects.of_node(to.node, f"r.{name}")


def write_frame(connection: NatsConnection, names: str, message: Message, kind: str | None) -> bytes:
    payload, own = connection.codec.payload(message)
    extras = message.extras
    user = None if extras is None else extras.get("user")
    if extras is not None and isinstance(to := extras.get("to"), (ToEngine, ToStore)):
        return write_to_engine(names, to, message, payload, own, connection.limits.headers)
    if kind is None and user is None and not own and not message.headers:
        block = b"" if message.ttl is None else connection.codec.deadlines[message.ttl]
        return write_named(names, block, payload)
    if message.ttl is not None:
        own.append((TTL, str(milliseconds(message.ttl))))
    if kind is not None:
        own.append((KIND, kind))
    if user is not None:
        own.append((USER, one_line(user)))
    fields = without_those_of_engine(message.headers)
    return write_named(names, write_block(fields, own, connection.limits.headers), payload)


def write_published(connection: NatsConnection, subjects: ClusterSubjects, message: Message) -> bytes:
    to = None if message.extras is None else message.extras.get("to")
    if to is None:
        return write_frame(connection, subjects.published[message.subject], message, None)
    if isinstance(to, ToUser):
        subject = subjects.keyed("u", to.key, subjects.written[message.subject])
        return write_frame(connection, f"{subject} {subjects.echo}", message, None)
    subject = subjects.keyed(f"n.{to.node}.d", to.id, subjects.written[message.subject])
    return write_frame(connection, subject, message, PUBLISHED)


def write_have_it(node: str, reply: str, payload: bytes = b"") -> bytes:
    return write_publication(reply, None, f"NATS/1.0 {HAVE_IT} {node}\r\n\r\n".encode(), payload)


def read_open(message: Message, kind: str) -> None:
    """Turn a request into an open, as its header says."""
    parts = kind.split(" ")
    if parts[0] != "open" or len(parts) != 4 or not (_is_number(parts[2]) and _is_number(parts[3])):
        raise refuse(f"{kind[:60]!r} is not a kind of request", "malformed")
    message.kind = Kind.OPEN
    message.attributes.update(mode=parts[1], credit=int(parts[2]), hops=int(parts[3]))


def read_control(codec: NatsCodec, id: Any, headers: HeaderBlock, payload: bytes) -> Message:
    """Read a cancel, item, credit or end."""
    word, _, argument = (headers.kind or "").partition(" ")
    kind = _CONTROLS.get(word)
    if kind is None:
        raise refuse(f"{(headers.kind or '')[:60]!r} is not a control message", "malformed")
    if kind is Kind.END and headers.error is not None:
        message = error_message(id, headers, payload)
        message.kind = Kind.END
        return message
    if kind is Kind.ITEM:
        return codec.message(kind, "", id, headers, payload)
    message = Message(kind, "", id)
    if kind is Kind.CREDIT:
        if not _is_number(argument):
            raise refuse(f"a credit of {argument[:20]!r}", "malformed")
        message.attributes["credit"] = int(argument)
    return message


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 12


def not_there(to: Any) -> str:
    if isinstance(to, ToUser):
        return f"the user {to.key!r} is connected to no node of the cluster"
    if isinstance(to, ToClient):
        return "the node of that peer is gone"
    return f"the node {to.node} of the cluster is gone"
