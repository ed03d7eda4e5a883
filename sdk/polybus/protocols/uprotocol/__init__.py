"""uProtocol: CloudEvents messages with their rules.

On the wire is one CloudEvent 1.0.2 a frame, in JSON or protobuf; `docs/reference/uprotocol.md` describes it in full.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .adapter import UProtocol
from .ids import IdFactory, id_time_ms

if TYPE_CHECKING:
    from cloudevents.core.base import BaseCloudEvent

    from ...message import Message
    from .codec import UProtocolCodec

__all__ = ["IdFactory", "UProtocol", "from_cloudevent", "id_time_ms", "to_cloudevent"]


def to_cloudevent(message: Message, *, entity: str = "/polybus/1") -> BaseCloudEvent:
    """See `Message.to_cloudevent`.

    Raises:
        EncodeError, LocalProtocolError, Unsupported: As it does.
    """
    from .cloudevents import cloudevent

    return cloudevent.to_cloudevent(message, _codec(), entity=entity)


def from_cloudevent(event: BaseCloudEvent, *, mode: str = "strict") -> Message:
    """See `Message.from_cloudevent`.

    Raises:
        RemoteProtocolError: As it does.
    """
    from .cloudevents import cloudevent

    return cloudevent.from_cloudevent(event, mode=mode)


def _codec() -> UProtocolCodec:
    # An entity without authority of its own: local addresses may be written.
    return UProtocol(entity="/local/1").codec()
