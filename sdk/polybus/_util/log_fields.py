"""Fields of log records, for formats and for structlog, with the same names everywhere. Texts of peers, and tracebacks, stay
on one line."""

from __future__ import annotations

import logging
import re
import textwrap
import traceback
from typing import TYPE_CHECKING, Any, Final

from .._validation import in_one_line

if TYPE_CHECKING:
    from ..message import Message

_LONGEST: Final = 200


def log_fields(peer: Any = None, *, message: Message | None = None, **more: object) -> dict[str, object]:
    """Create the ``extra`` of a record, without unknown fields.

    Args:
        peer: Source of ``peer``, ``address`` and ``protocol``; default: the peer of the message.
        message: Source of ``subject`` and, on wires with ids, ``request_id``.
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


_LOGGERS: Final = ("", ".broker", ".capture", ".cluster", ".link", ".security", ".transports")
_LONGEST_PART: Final = 4000
_LINE: Final = re.compile(r"[^\n\t]+")


def escape_traceback(record: logging.LogRecord) -> bool:
    """Render a record's traceback for formatters, which use an existing one: indented, unlike the first line of a record."""
    error = record.exc_info[1] if record.exc_info else None
    if error is not None and not record.exc_text:
        parts = traceback.TracebackException(type(error), error, error.__traceback__, compact=True).format()
        text = "".join(part if len(part) <= _LONGEST_PART else f"{part[:_LONGEST_PART]}...\n" for part in parts)
        record.exc_text = textwrap.indent(_LINE.sub(lambda line: in_one_line(line[0]), text).rstrip("\n"), "  ")
    return True


for name in _LOGGERS:
    logging.getLogger(f"polybus{name}").addFilter(escape_traceback)
