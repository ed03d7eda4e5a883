"""Tracebacks in the log: the texts of exceptions have what peers have sent, which writes no lines of its own there."""

from __future__ import annotations

import logging
import re
import textwrap
import traceback
from typing import Final

from .._validation import in_one_line

_LOGGERS: Final = ("", ".broker", ".capture", ".cluster", ".link", ".security", ".transports")
_LONGEST: Final = 4000
"""Characters of one text, or frame."""
_LINE: Final = re.compile(r"[^\n\t]+")


def escape_traceback(record: logging.LogRecord) -> bool:
    """Render the traceback of a record for formatters, which take what is there: indented, as no line of the log begins."""
    error = record.exc_info[1] if record.exc_info else None
    if error is not None and not record.exc_text:
        parts = traceback.TracebackException(type(error), error, error.__traceback__, compact=True).format()
        text = "".join(part if len(part) <= _LONGEST else f"{part[:_LONGEST]}...\n" for part in parts)
        record.exc_text = textwrap.indent(_LINE.sub(lambda line: in_one_line(line[0]), text).rstrip("\n"), "  ")
    return True


for name in _LOGGERS:
    logging.getLogger(f"polybus{name}").addFilter(escape_traceback)
