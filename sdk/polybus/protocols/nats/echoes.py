"""The copies of its own publications that the server brings a connection back.

The server must bring them back, or a group could never give a publication to the side that made it. The bus itself gives it to
its subscriptions without a group, so the copy for those is left out. It is known by a mark, a header with a number. Marks come
back in order. A mark that comes twice is from a program that copies the headers of what it hears: its message counts.
"""

from __future__ import annotations

import random
import string
from typing import Final

from .headers import ECHO
from .subscriptions import NatsSubscriptions

_LENGTH: Final = 8
_DIGITS: Final = 18


class Echoes:
    """The marks of one connection."""

    __slots__ = ("_heard", "_marked", "_other", "_subscriptions", "key")

    def __init__(self, subscriptions: NatsSubscriptions, rng: random.Random) -> None:
        self._subscriptions = subscriptions
        self.key: str = "".join(rng.choices(string.ascii_letters + string.digits, k=_LENGTH))
        self._other = ""
        self._marked = 0
        self._heard = 0

    def mark(self, subject: str) -> list[tuple[str, str]]:
        """Make the field of what is published to a subject; none where it does not come back, or to members of groups alone."""
        if not self._subscriptions.alone.match(subject):
            return []
        self._marked += 1
        return [(ECHO, f"{self.key}.{self._marked}")]

    def know(self, key: str) -> None:
        """Take the marks of another connection of the same bus for own ones, too."""
        self._other = key

    def is_own(self, mark: str) -> bool:
        """Tell whether a mark is of this connection, and comes for the first time."""
        key, _, digits = mark.partition(".")
        if key == self._other:
            return True
        if key != self.key or len(digits) > _DIGITS or not (digits.isascii() and digits.isdigit()):
            return False
        number = int(digits)
        if not self._heard < number <= self._marked:
            return False
        self._heard = number
        return True
