"""Subjects that an application may use: checked once, and remembered."""

from __future__ import annotations

from ..subjects import check_subject

_REMEMBERED = 4096


class CheckedSubjects:
    """Checks subjects against the rules and `Limits.subject`.

    Attributes:
        known: Subjects that have passed.
    """

    __slots__ = ("_limit", "known")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.known: set[str | int] = set()

    def check(self, subject: str | int) -> None:
        """
        Raises:
            LocalProtocolError: No subject, or one that is too long.
            ReservedSubject: It begins with ``_polybus.``.
        """
        try:
            known = subject in self.known
        except TypeError:  # not hashable, so certainly no subject
            known = False
        if not known:
            check_subject(subject, self._limit)
            if len(self.known) >= _REMEMBERED:
                self.known.clear()
            self.known.add(subject)
