"""Server-sent events, as far as Errai uses them (HTML Standard, section 9.2.6): the data of each event, and the retry time."""

from __future__ import annotations

import re
from typing import Final

_LINE_END: Final = re.compile(rb"\r\n|\n|\r")
_BOM: Final = b"\xef\xbb\xbf"


class EventTooLarge(Exception):
    """An event, or a line, is longer than the limit."""


class EventReader:
    """Bytes in, data of events out."""

    def __init__(self, limit: int) -> None:
        self.retry: float = 0.5
        """Seconds after which to come back, as the server last said."""
        self._limit = limit
        self._rest = b""
        self._data: list[bytes] = []
        self._size = 0
        self._begun = False
        self._after_cr = False
        """True where an LF that comes next belongs to a line that has ended."""

    def feed(self, chunk: bytes) -> list[bytes]:
        """The data of the events that are complete now. May raise `EventTooLarge`: the rest is longer than the limit."""
        events: list[bytes] = []
        if self._after_cr and chunk:
            chunk, self._after_cr = chunk.removeprefix(b"\n"), False
        self._rest += chunk
        if not self._begun:
            if len(self._rest) < len(_BOM) and _BOM.startswith(self._rest):
                return events
            self._begun, self._rest = True, self._rest.removeprefix(_BOM)
        self._after_cr = self._after_cr or self._rest.endswith(b"\r")
        *lines, self._rest = _LINE_END.split(self._rest)
        for line in lines:
            if line:
                self._line(line)
            elif self._data:
                events.append(b"\n".join(self._data))
                self._data, self._size = [], 0
        if len(self._rest) + self._size > self._limit:
            raise EventTooLarge(f"an event of more than {self._limit} bytes")
        return events

    def _line(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
            self._size += len(value)
        elif name == b"retry" and value.isdigit() and len(value) < 8:
            self.retry = int(value) / 1000
