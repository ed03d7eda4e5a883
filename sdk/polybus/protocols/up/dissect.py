"""Lists the fields of a message for people, from bytes that may be malformed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from ...errors import Code
from ...plugins import FrameField
from ...plugins.protobuf import walk_fields
from .attributes import FORMAT_NAMES, LAST_PRIORITY, TYPE_NAMES, id_ms, is_v7, priority_name, uuid_text
from .wire import read_uuid, read_uuri

_SHOWN: Final = 200
_ATTRIBUTES: Final = 1
_PAYLOAD: Final = 2


def dissect(frame: bytes) -> Iterator[FrameField]:
    for start, end, number, value, part, note in walk_fields(frame, 0, len(frame)):
        if part is None or number not in (_ATTRIBUTES, _PAYLOAD):
            shown = value.hex(" ") if isinstance(value, bytes) else str(value)
            yield FrameField(
                start, end - start, f"field {number}" if number else "field", shown[:_SHOWN], note or "of no UMessage"
            )
        elif number == _PAYLOAD:
            yield FrameField(start, end - start, "payload", _text(frame[part:end]), note)
        else:
            yield FrameField(start, part - start, "attributes", f"{end - part} bytes", note)
            yield from _attributes(frame, part, end)


def _attributes(frame: bytes, at: int, end: int) -> Iterator[FrameField]:
    for start, stop, number, value, _, note in walk_fields(frame, at, end):
        name, show = _NAMES.get(number, (f"field {number}" if number else "field", None))
        shown, seen = _shown(value, show)
        yield FrameField(start, stop - start, name, shown[:_SHOWN], note or seen)


def _shown(value: int | bytes, show: Callable[[int | bytes], tuple[str, str]] | None) -> tuple[str, str]:
    if show is not None:
        try:
            return show(value)
        except ValueError as error:
            return value.hex(" ") if isinstance(value, bytes) else str(value), f"not that: {error}"
    return value.hex(" ") if isinstance(value, bytes) else str(value), "of a later release"


def _id(value: int | bytes) -> tuple[str, str]:
    if isinstance(value, int):
        raise ValueError("an id is bytes")
    id = read_uuid(value)
    return uuid_text(id), f"made {id_ms(id)} ms after 1970" if is_v7(id) else "no UUID of version 7"


def _address(value: int | bytes) -> tuple[str, str]:
    if isinstance(value, int):
        raise ValueError("an address is bytes")
    uri = read_uuri(value)
    resource = "a topic" if uri.is_topic else "a method" if uri.is_method else "an entity" if not uri.resource else ""
    return str(uri), "a pattern" if uri.is_pattern else resource


def _type(value: int | bytes) -> tuple[str, str]:
    names = {int(type): name for type, name in TYPE_NAMES.items()}
    return str(value), names.get(value, "of no type") if isinstance(value, int) else "of no type"


def _priority(value: int | bytes) -> tuple[str, str]:
    return str(value), priority_name(value) if isinstance(value, int) and value <= LAST_PRIORITY else "of no class"


def _code(value: int | bytes) -> tuple[str, str]:
    return str(value), next((code.name for code in Code if code == value), "of no code" if value else "OK")


def _format(value: int | bytes) -> tuple[str, str]:
    return str(value), FORMAT_NAMES[value] if isinstance(value, int) and value < len(FORMAT_NAMES) else "of no format"


def _milliseconds(value: int | bytes) -> tuple[str, str]:
    return str(value), "ms" if value else "for ever"


def _number(value: int | bytes) -> tuple[str, str]:
    return str(value), ""


def _secret(value: int | bytes) -> tuple[str, str]:
    return "...", "not shown"


def _words(value: int | bytes) -> tuple[str, str]:
    return (_text(value), "") if isinstance(value, bytes) else (str(value), "not text")


_NAMES: Final[Mapping[int, tuple[str, Callable[[int | bytes], tuple[str, str]]]]] = {
    1: ("id", _id),
    2: ("type", _type),
    3: ("source", _address),
    4: ("sink", _address),
    5: ("priority", _priority),
    6: ("ttl", _milliseconds),
    7: ("permission_level", _number),
    8: ("commstatus", _code),
    9: ("reqid", _id),
    10: ("token", _secret),
    11: ("traceparent", _words),
    12: ("payload_format", _format),
}


def _text(data: bytes) -> str:
    more = f" ... {len(data)} bytes" if len(data) > _SHOWN else ""
    text = data[:_SHOWN].decode("utf-8", "backslashreplace")
    return (text if text.isprintable() else repr(text)) + more
