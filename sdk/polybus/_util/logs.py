"""Log records with structured fields and indented tracebacks, and rate limits for warnings that peers can trigger."""

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
    """Return the ``extra`` of a log record. Empty fields are left out, and control characters are escaped.

    `peer` (by default the message's) adds ``peer``, ``address`` and ``protocol``. `message` adds ``subject`` and
    ``request_id``. `more` are additional fields such as ``error_id``.
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
    """Render a record's traceback with indentation, so that only the first line of a record starts in column 0."""
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
"""Maximum number of log lines of one kind per minute. Additional lines are only counted."""
_KINDS: Final = 256
"""Maximum number of kinds, because peers can create new kinds."""

_COUNTED: Final = " (others like it are summarised within a minute)"


class _Kind(Struct, eq=False):
    logger: logging.Logger | None
    level: int
    text: str
    since: float
    count: int = 0
    untold: int = 0
    last: tuple[object, ...] = ()
    """Arguments of the last warning that was not logged."""
    fields: Mapping[str, object] | None = None


class Warnings(Struct, eq=False):
    """Logs warnings that peers can trigger, with a rate limit.

    ``watch(self, when)`` schedules a call of `expire`. By default, the next warning of a kind logs how many were suppressed.
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
        """Log a warning. If there were more than `lines` of the same kind in the last minute, only count it.

        The template `text` and `about` identify the kind. Control characters in `args` are escaped. An `error` is an exception
        in the application that a peer can trigger repeatedly. It is logged at ERROR with its traceback.
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
        """Count a line that the caller logs. Returns False if there were too many lines of that kind in the last minute."""
        kind = self._kind(None, logging.WARNING, text, None)
        kind.count += 1
        return kind.count <= _LINES

    def tell(self) -> None:
        """Log how many warnings were suppressed. Called when the bus stops."""
        now = self._clock()
        for kind in self._kinds.values():
            _tell(kind, now)
        self._kinds.clear()

    def _kind(self, logger: logging.Logger | None, level: int, text: str, about: Hashable) -> _Kind:
        now = self._clock()
        if (text, about) not in self._kinds and len(self._kinds) >= _KINDS:
            self.expire(now)
            if len(self._kinds) >= _KINDS:
                about = None
        kind = self._kinds.get((text, about))
        if kind is not None and now - kind.since > _MINUTE:
            _tell(kind, now)
            kind = None
        if kind is None:
            kind = self._kinds[text, about] = _Kind(logger, level, text, now)
        return kind

    def expire(self, now: float) -> float:
        """Log and forget kinds that are older than a minute. Returns the time of the next call."""
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
        """Count a violation, and return how many there were in the current minute. The first violation starts a minute."""
        if now - self._since > _MINUTE:
            self._count, self._since = 0, now
        self._count += 1
        return self._count


def too_many(limit: int) -> str:
    """Return the close reason for a peer that sent more malformed messages than `limit`."""
    return f"more than {limit} malformed messages in a minute"
