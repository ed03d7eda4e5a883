"""Keys of the parts of a document: of letters that a reference to them can have, and each of them once."""

from __future__ import annotations

import re
from typing import Final

_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]+")


class Keys:
    """The keys of one kind of parts."""

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._last: dict[str, int] = {}

    def free(self, name: str) -> str:
        """Take a key that is like a name, with a number where another part has it."""
        clean = key = _UNSAFE.sub("_", name).strip("_") or "empty"
        number = self._last.get(clean, 1)
        while key in self._taken:
            number += 1
            key = f"{clean}_{number}"
        self._last[clean] = number
        self._taken.add(key)
        return key
