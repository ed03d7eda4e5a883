"""Parts that a subject gives to the messages that go to it: bytes that are the same each time."""

from __future__ import annotations

from typing import Any

from attrs import frozen

from .messages.checks import check_local_subject
from .messages.text import quoted
from .names import service_of

__all__ = ["SubjectParts", "address_of", "addressed"]


@frozen
class SubjectParts:
    """Parts that a subject gives to the messages that go to it.

    Attributes:
        to: ``{"ToSubject":...``, of a remote procedure with its CommandType.
        reply: From there to the id in ReplyTo.
        errors: From the id in ReplyTo to that in ErrorTo.
        body: The name of the part with the body, with what stands around it.
    """

    to: bytes
    reply: bytes
    errors: bytes
    body: bytes


def address_of(subject: Any, limit: int) -> SubjectParts:
    """Make the parts of all messages to a subject of at most `limit` bytes.

    Raises:
        LocalProtocolError, ReservedSubject: Nothing can be sent there.
    """
    name = quoted(check_local_subject(subject, limit))
    service = service_of(subject)
    if service == subject:
        to = b'{"ToSubject":' + name
    else:
        method = subject[len(service) + 1 :]
        to = b'{"ToSubject":%b,"CommandType":%b' % (quoted(service), quoted(method))
    body = b',"MethodParms":' if service != subject else b',"Value":'
    return SubjectParts(to, b'%b,"ReplyTo":%b:' % (to, name[:-1]), b':RespondTo:RPC","ErrorTo":%b:' % name[:-1], body)


def addressed(subject: str) -> bytes:
    """The beginning of an answer."""
    return b'{"ToSubject":' + quoted(subject)
