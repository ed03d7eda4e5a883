"""The codec: a reader and a writer, chosen by the adapter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal

from attrs import frozen

from ...body import JSON, OCTETS, BodyFormat
from ...errors import RemoteProtocolError, Unsupported
from ...message import Message


@frozen(eq=False, kw_only=True)
class UbreCodec:
    """One message per frame. The session uses `read` and `write`; `decode` and `encode` implement the plugin.

    Attributes:
        read: Reads the message of a frame. Raises only `RemoteProtocolError`.
        write: Writes a message under an id (ignores `Message.id`). Raises as `encode`.
        reads: Kinds of frames that it reads.
        writes: Kind of frames that it writes.
        ask: Writes a request, given subject, id, body and time-out in seconds; None if not available.
        tell: Writes an answer, given id and body; None if not available.
        formats: Body formats on this wire. The first is for ordinary bodies; items and opens may use both.
    """

    read: Callable[[bytes], Message]
    write: Callable[[Message, Any], bytes]
    reads: frozenset[Literal["text", "binary"]]
    writes: Literal["text", "binary"]
    ask: Callable[[Any, Any, bytes | None, float], bytes] | None = None
    tell: Callable[[Any, bytes | None], bytes] | None = None
    formats: tuple[BodyFormat, ...] = (JSON, OCTETS)
    one_format: ClassVar[bool] = True

    def format_for(self, value: Any, subject: str | int) -> BodyFormat:
        return self.formats[0]

    def decode(self, frame: bytes) -> Sequence[Message | RemoteProtocolError]:
        return [self.read(frame)]

    def encode(self, messages: Sequence[Message]) -> bytes:
        if len(messages) != 1:
            raise Unsupported(f"a UBRE frame holds one message, not {len(messages)}")
        return self.write(messages[0], messages[0].id)
