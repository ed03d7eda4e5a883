"""Warnings that a peer can cause as often as it likes: a few are written, the rest is counted, and the count is told."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Final

from attrs import define, field

from .._validation import in_one_line

_MINUTE: Final = 60.0
_LINES: Final = 3
"""Lines of one kind in a minute, before those that are only counted."""
_KINDS: Final = 256
"""Kinds that are told apart by what they are about: a peer may choose that."""

_COUNTED: Final = " (others like it are counted, and told within a minute)"


@define(eq=False)
class _Kind:
    """Warnings of one kind in a minute, which begins with the first."""

    logger: logging.Logger | None
    level: int
    text: str
    since: float
    count: int = 0
    untold: int = 0
    last: tuple[object, ...] = ()
    """Arguments of the last one that was not written."""
    fields: Mapping[str, object] | None = None
    """Fields of that one."""


@define(eq=False)
class Warnings:
    """Warnings that a peer can cause: one that connects again and again must not fill the log with them.

    Args:
        clock: Gives seconds, and is never set.
        watch: ``watch(self, when)`` has `_expire` called soon after that time. Without it a count is told with the next
            warning of its kind.
    """

    _clock: Callable[[], float] = time.monotonic
    _watch: Callable[[Warnings, float], None] | None = None
    _kinds: dict[tuple[str, Hashable], _Kind] = field(factory=dict, init=False)

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
        """Write a line, or count it where there were enough of its kind in this minute.

        Args:
            logger: Where to.
            text: A template, by which lines are counted.
            args: Its arguments. Texts among them may come from peers: their control characters are escaped.
            error: A mistake of the application that a peer can repeat: its traceback is written, as an error.
            about: Something by which kinds with the same template are told apart.
            lines: How many are written.
            level: Of the lines, where there is no `error`.
            extra: Fields of the record, as `log_fields` makes them.
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
        """Count a line that somebody else writes: False where there were enough of its kind in this minute."""
        kind = self._kind(None, logging.WARNING, text, None)
        kind.count += 1
        return kind.count <= _LINES

    def tell(self) -> None:
        """Tell what has been counted so far: the end of the bus."""
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
        """Tell and forget what is more than a minute old. The time at which there is more to be told. Called by the runtime."""
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


@define(eq=False, weakref_slot=False)
class ViolationCounter:
    """Counts the violations of one connection, by the minute."""

    _count: int = 0
    _since: float = 0.0

    def add(self, now: float) -> int:
        """Count one more, and tell how many there are in this minute, which begins with the first."""
        if now - self._since > _MINUTE:
            self._count, self._since = 0, now
        self._count += 1
        return self._count


def too_many(limit: int) -> str:
    """Explain why a connection with more of them ends."""
    return f"more than {limit} malformed messages in a minute"
