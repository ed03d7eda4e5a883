"""Log records: their fields, tracebacks on indented lines, and limits for warnings that a peer can cause again and again."""

from __future__ import annotations

import logging
import math
import re
import textwrap
import time
import traceback
from collections.abc import Callable, Hashable, Mapping
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

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


_MINUTE: Final = 60.0
_LINES: Final = 3
"""Lines of one kind per minute before they are only counted."""
_KINDS: Final = 256
"""Kinds with the same template to distinguish: a peer may choose them."""

_COUNTED: Final = " (others like it are summarised within a minute)"


class _Kind(Struct, eq=False):
    """Warnings of one kind in a minute, which begins with the first."""

    logger: logging.Logger | None
    level: int
    text: str
    since: float
    count: int = 0
    untold: int = 0
    last: tuple[object, ...] = ()
    """Arguments of the last one that was not logged."""
    fields: Mapping[str, object] | None = None


class Warnings(Struct, eq=False):
    """Warnings that a peer can cause: one that reconnects again and again must not fill the log.

    Args:
        clock: Monotonic time in seconds.
        watch: ``watch(self, when)`` arranges a call of `_expire` soon after that time. Without it the next warning of the
            kind logs the count.
    """

    _clock: Callable[[], float] = time.monotonic
    _watch: Callable[[Warnings, float], None] | None = None
    _kinds: dict[tuple[str, Hashable], _Kind] = {}

    def warn(
        self,
        logger: logging.Logger,
        text: str,
        *args: object,
        error: BaseException | None = None,
        about: Hashable = None,
        lines: int = _LINES,
        level: int = logging.WARNING,
        extra: Mapping[str, object] | None = None,
    ) -> None:
        """Log a line, or count it after too many of its kind in this minute.

        Args:
            logger: The logger.
            text: Template, which identifies the kind.
            args: Its arguments. Control characters are escaped, since texts may come from peers.
            error: A fault of the application that a peer can repeat: logged as an error, with its traceback.
            about: Distinguishes kinds with the same template.
            lines: Lines per minute.
            level: Level of the lines without `error`.
            extra: Fields of the record, from `log_fields`.
        """
        level = level if error is None else logging.ERROR
        kind = self._kind(logger, level, text, about)
        kind.count += 1
        if kind.count > lines:
            kind.last, kind.fields, kind.untold = args, extra, kind.untold + 1
            if kind.untold == 1 and self._watch is not None:
                self._watch(self, kind.since + _MINUTE)
            return
        if kind.count == lines > 1:
            text += _COUNTED
        logger.log(level, text, *map(_escaped, args), exc_info=error, extra=extra)

    def allows(self, text: str) -> bool:
        """Count a line logged elsewhere; False after too many of its kind in this minute."""
        kind = self._kind(None, logging.WARNING, text, None)
        kind.count += 1
        return kind.count <= _LINES

    def tell(self) -> None:
        """Log the counts so far, at the end of the bus."""
        now = self._clock()
        for kind in self._kinds.values():
            _tell(kind, now)
        self._kinds.clear()

    def _kind(self, logger: logging.Logger | None, level: int, text: str, about: Hashable) -> _Kind:
        now = self._clock()
        if (text, about) not in self._kinds and len(self._kinds) >= _KINDS:
            self._expire(now)
            if len(self._kinds) >= _KINDS:
                about = None
        kind = self._kinds.get((text, about))
        if kind is not None and now - kind.since > _MINUTE:
            _tell(kind, now)
            kind = None
        if kind is None:
            kind = self._kinds[text, about] = _Kind(logger, level, text, now)
        return kind

    def _expire(self, now: float) -> float:
        """Log and forget entries older than a minute. Returns the time of the next call by the runtime."""
        nearest = math.inf
        for key, kind in list(self._kinds.items()):
            if now - kind.since >= _MINUTE:
                _tell(kind, now)
                del self._kinds[key]
            elif kind.untold:
                nearest = min(nearest, kind.since + _MINUTE)
        return nearest


def _tell(kind: _Kind, now: float) -> None:
    if kind.untold and kind.logger is not None:
        text = f"%d more within %d s, the last of them: {kind.text}"
        age = math.ceil(now - kind.since)
        kind.logger.log(kind.level, text, kind.untold, age, *map(_escaped, kind.last), extra=kind.fields)


def _escaped(argument: object) -> Any:
    return in_one_line(argument) if isinstance(argument, str) else argument


class ViolationCounter(Struct, eq=False):
    _count: int = 0
    _since: float = 0.0

    def add(self, now: float) -> int:
        """Count one more; returns the number in this minute, which begins with the first."""
        if now - self._since > _MINUTE:
            self._count, self._since = 0, now
        self._count += 1
        return self._count


def too_many(limit: int) -> str:
    """Reason for the end of a connection with more of them."""
    return f"more than {limit} malformed messages in a minute"
