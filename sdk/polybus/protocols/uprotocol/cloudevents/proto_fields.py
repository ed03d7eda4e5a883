"""The fields of events in protobuf: those that come again and again are known by their bytes."""

from __future__ import annotations

from typing import Any, Final

from ....body import BodyFormat
from ....limits import Limits
from ..bodies import ANY
from ..rules.checks import MAX_INTEGER, refuse
from ..rules.payloads import format_of, from_text
from .envelope import LEVELS
from .generated import cloud_event_classes
from .wire import read_varint

__all__ = ["REQID", "ProtoFields"]

_NAMES: Final = frozenset({"sink", "priority", "ttl", "datacontenttype", "dataschema", "token", "plevel"})
REQID: Final = b"\n\x05reqid\x12&\x1a$"
"""The beginning of an entry with the id of a request."""
_KNOWN: Final = 2048


class ProtoFields:
    """Remembers fields."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        # Attributes, and the texts of source and type, by their bytes. Bounded.
        self._known: dict[bytes, tuple[str, Any]] = {}
        self._texts: dict[bytes, str] = {}

    def _text(self, part: bytes) -> str:
        text = str(part, "utf-8")
        if len(self._texts) >= _KNOWN:
            self._texts.clear()
        if len(part) <= self._limits.subject:
            self._texts[part] = text
        return text

    def _attribute(self, part: bytes) -> tuple[str, Any]:
        """Name and value of an entry; ids are not remembered, for they do not come again.

        Raises:
            ValueError: It is not a usual one.
        """
        if part.startswith(REQID) and len(part) == len(REQID) + 36:
            return "reqid", str(part[len(REQID) :], "ascii")
        name_end = part[1] + 2
        value = part[name_end + 2 :]
        name = str(part[2:name_end], "ascii")
        if part[0] != 10 or part[name_end] != 0x12 or part[name_end + 1] != len(value) or name not in _NAMES:
            raise ValueError
        found: Any
        if value[0] in (0x1A, 0x32) and value[1] == len(value) - 2 < 128:  # ce_string, ce_uri_ref
            found = str(value[2:], "utf-8")
            if name in ("ttl", "plevel") or (name == "priority" and found not in LEVELS):
                raise ValueError
        elif value[0] == 0x10 and name in ("ttl", "plevel"):  # ce_integer
            found, end = read_varint(value, 1)
            if end != len(value) or found > MAX_INTEGER:
                raise ValueError
        else:
            raise ValueError
        if len(self._known) >= _KNOWN:
            self._known.clear()
        if name != "token":
            self._known[part] = name, found
        return name, found

    def parts(self, frame: bytes) -> tuple[dict[str, Any], bytes | None, BodyFormat]:
        """The attributes of an event and its data, not examined.

        Raises:
            RemoteProtocolError: It is no event.
        """
        from google.protobuf.message import DecodeError

        try:
            event = cloud_event_classes()[0].FromString(frame)
        except DecodeError as error:
            raise refuse(f"not an io.cloudevents.v1.CloudEvent: {error}") from error
        attributes: dict[str, Any] = {name: _value(value) for name, value in event.attributes.items()}
        for name, own in (("id", "id"), ("source", "source"), ("type", "type"), ("specversion", "spec_version")):
            if name in attributes:
                raise refuse(f"{name} stands among the attributes and has a field of its own", "ambiguous")
            attributes[name] = getattr(event, own) or None
        where = event.WhichOneof("data")
        content = attributes.get("datacontenttype")
        format = format_of(content if isinstance(content, str) else None)
        if where is None:
            return attributes, None, ANY
        if where == "proto_data":
            if format is not ANY:
                raise refuse(f"proto_data, and the content type is {content!r}", "ambiguous")
            return attributes, event.proto_data.SerializeToString(), ANY
        data = event.binary_data if where == "binary_data" else event.text_data.encode()
        return attributes, from_text(data, format, self._limits.depth), format


def _value(value: Any) -> Any:
    kind = value.WhichOneof("attr")
    if kind is None:
        return None
    found = getattr(value, kind)
    return found.ToJsonString() if kind == "ce_timestamp" else found
