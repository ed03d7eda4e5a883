"""The codec: a reader and a writer, with or without a client number in front."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from attrs import field, frozen

from ...body import BodyFormat
from ...errors import LocalProtocolError, RemoteProtocolError, Unsupported
from ...message import Message
from . import wire
from .bodies import FORMATS, refuse
from .reader import CsbReader
from .writer import CsbWriter, choose_format

_BINARY: Final[frozenset[Literal["text", "binary"]]] = frozenset(("binary",))


@frozen(eq=False, kw_only=True)
class CsbCodec:
    """One message per frame.

    `Message.id` is ``action << 16 | message id`` of the request that the message is or belongs to; for items, credits and ends
    from the receiver of the open it is ``~id``. `Message.peer` is the client number, if any.

    Attributes:
        reader: Reads frames without a client number.
        writer: Writes frames without a client number.
        wrapped: True if frames begin with a client number: between a broker and a server.
        chosen: Configured body formats of actions, by number and by name.
    """

    reader: CsbReader
    writer: CsbWriter
    wrapped: bool = False
    chosen: Mapping[int | str, BodyFormat] = field(factory=dict)
    reads: frozenset[Literal["text", "binary"]] = _BINARY
    writes: Literal["text", "binary"] = "binary"
    formats: tuple[BodyFormat, ...] = FORMATS

    def format_for(self, value: Any, subject: str | int) -> BodyFormat:
        if self.chosen:
            own = self.chosen.get(subject)
            if own is not None:
                return own
        return choose_format(value)

    def decode(self, frame: bytes) -> Sequence[Message | RemoteProtocolError]:
        if not self.wrapped:
            return [self.reader.read(frame)]
        client, inner = unwrap(frame)
        message = self.reader.read(inner)
        message.peer = client
        return [message]

    def encode(self, messages: Sequence[Message]) -> bytes:
        if len(messages) != 1:
            raise Unsupported(f"a CSB frame holds one message, not {len(messages)}")
        message = messages[0]
        frame = self.writer.write(message, message.id)
        if not self.wrapped:
            return frame
        client = message.peer
        if type(client) is not int or not 0 <= client <= 0xFFFFFFFF:
            raise LocalProtocolError(f"{client!r} is not a client number: set Message.peer", protocol="csb")
        return wire.CLIENT.pack(client) + frame


def unwrap(frame: bytes) -> tuple[int, bytes]:
    """Split a frame into client number and inner frame. May raise `RemoteProtocolError`: too short."""
    if len(frame) < 4:
        raise refuse(f"{len(frame)} of the 12 bytes of a header", "short_frame")
    return wire.CLIENT.unpack_from(frame)[0], frame[4:]
