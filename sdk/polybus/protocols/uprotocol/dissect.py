"""Lists the fields of a protobuf event for people, from bytes that may be malformed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ...plugins import FrameField
from ...plugins.protobuf import read_fields, walk_fields

# By number, from 1.
_FIELDS: Final = dict(enumerate("id source spec_version type attribute binary_data text_data proto_data".split(), 1))
_VALUES: Final = dict(enumerate("ce_boolean ce_integer ce_string ce_bytes ce_uri ce_uri_ref ce_timestamp".split(), 1))
_SECRET: Final = "token"
_SHOWN: Final = 200


def dissect(frame: bytes) -> Iterator[FrameField]:
    for start, end, number, value, part, note in walk_fields(frame, 0, len(frame)):
        if part is None or isinstance(value, int):
            shown = value.hex(" ") if isinstance(value, bytes) else str(value)
            name, text, note = f"field {number}" if number else "field", shown, note or "not of a CloudEvent"
        elif number == 5 and not note:
            name, text, note = _attribute(value)
        else:
            name = _FIELDS.get(number, f"field {number}")
            text = _text(value) if number < 5 or number == 7 else value.hex(" ")
        yield FrameField(start, end - start, name, text[:_SHOWN], note)


def _attribute(entry: bytes) -> tuple[str, str, str]:
    """Name, value and kind of an attribute, without the value of a token."""
    try:
        parts = dict(read_fields(entry))
        name, held = parts.get(1, b""), parts.get(2, b"")
        (kind, value), *_ = [*read_fields(held), (0, b"")] if isinstance(held, bytes) else [(0, b"")]
    except ValueError:
        return "attribute", entry.hex(" "), "no entry of a map"
    text = _text(name) if isinstance(name, bytes) else str(name)
    if text == _SECRET:
        return text, "...", "not shown"
    shown = str(value) if isinstance(value, int) else value.hex(" ") if kind in (4, 7) else _text(value)
    return text, shown, _VALUES.get(kind, "of no kind")


def _text(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")
