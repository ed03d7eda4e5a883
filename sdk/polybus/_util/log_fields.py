"""Fields of log records, for formats and for structlog: the same names everywhere, and texts of peers on one line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from .._validation import in_one_line
from . import tracebacks as tracebacks  # before anything is logged

if TYPE_CHECKING:
    from ..message import Message

_LONGEST: Final = 200


def log_fields(peer: Any = None, *, message: Message | None = None, **more: object) -> dict[str, object]:
    """Make the ``extra`` of a record; what is not known is left out.

    Args:
        peer: Gives ``peer``, ``address`` and ``protocol``; that of the message where there is one.
        message: Gives ``subject`` and, where the wire has one, ``request_id``.
        more: Further fields: ``address protocol subject error_id handler path worker pid``.
    """
    fields = {name: _plain(value) for name, value in more.items() if value is not None and value != ""}
    if message is not None:
        fields.setdefault("subject", _plain(message.subject))
        if isinstance(message.id, (str, int, bytes)):
            fields["request_id"] = _plain(message.id)
        peer = message.peer if peer is None else peer
    if peer is not None:
        fields["peer"] = _plain(peer.id)
        fields.setdefault("address", _plain(peer.address))
        fields.setdefault("protocol", peer.protocol)
    return fields


def _plain(value: object) -> object:
    if isinstance(value, bytes):
        value = value.hex()
    return in_one_line(value[:_LONGEST]) if isinstance(value, str) else value
