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
        self._rest = bytearray()
        """The line that has begun; at the start of the stream what may be a byte order mark."""
        self._data: bytearray | None = None
        self._begun = False
        self._after_cr = False
        """True where an LF that comes next belongs to a line that has ended."""

    def feed(self, chunk: bytes) -> list[bytes]:
        """The data of the events that are complete now. May raise `EventTooLarge`: the rest is longer than the limit."""
        events: list[bytes] = []
        if not self._begun:
            chunk = bytes(self._rest) + chunk
            self._rest.clear()
            if len(chunk) < len(_BOM) and _BOM.startswith(chunk):
                self._rest += chunk
                return events
            self._begun, chunk = True, chunk.removeprefix(_BOM)
        if self._after_cr and chunk:
            chunk, self._after_cr = chunk.removeprefix(b"\n"), False
        self._after_cr = self._after_cr or chunk.endswith(b"\r")
        first, *others = _LINE_END.split(chunk)
        self._rest += first
        for following in others:
            self._line(bytes(self._rest), events)
            self._rest[:] = following
        if len(self._rest) + len(self._data or b"") > self._limit:
            raise EventTooLarge(f"an event of more than {self._limit} bytes")
        return events

    def _line(self, line: bytes, events: list[bytes]) -> None:
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if not line and self._data is not None:
            events.append(bytes(self._data))
            self._data = None
        elif name == b"data":
            if self._data is None:
                self._data = bytearray(value)
            else:
                self._data += b"\n" + value
        elif name == b"retry" and value.isdigit() and len(value) < 8:
            self.retry = int(value) / 1000
