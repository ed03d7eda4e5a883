"""The shape of a usual event, and a message that stands on one."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
from attrs import define
from msgspec import Meta, Struct

from ...message import Message

__all__ = ["Event", "EventMessage", "event_of"]


Integer: TypeAlias = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class Event(Struct, gc=False, forbid_unknown_fields=True):
    """The usual attributes of an event, with types and ranges as far as a decoder can check them. All are plain values."""

    specversion: Literal["1.0"]
    id: str
    source: str
    type: str
    sink: str | None = None
    priority: Literal["CS0", "CS1", "CS2", "CS3", "CS4", "CS5", "CS6"] | None = None
    ttl: Integer | None = None
    reqid: str | None = None
    datacontenttype: Literal["application/protobuf", "application/x-protobuf", "application/octet-stream"] | None = None
    dataschema: str | None = None
    token: str | None = None
    plevel: Integer | None = None
    data_base64: bytes | None = None


_NO_ATTRIBUTES: Final = ("specversion", "data_base64")


@define(eq=False, slots=True, repr=False)
class EventMessage(Message):
    """A message whose attributes become a dict when somebody asks for them: few handlers do."""

    event: Any = None

    @property
    def attributes(self) -> dict[str, Any]:
        """The attributes of the event."""
        if self._attributes is None:
            given = msgspec.structs.asdict(self.event) if self.event is not None else {}
            self._attributes = {k: v for k, v in given.items() if v is not None and k not in _NO_ATTRIBUTES}
        return self._attributes


_FIELDS: Final = frozenset(Event.__struct_fields__) - frozenset(_NO_ATTRIBUTES)


def event_of(attributes: dict[str, Any]) -> Event:
    """The usual attributes among all of a message."""
    return Event("1.0", **{name: value for name, value in attributes.items() if name in _FIELDS})
