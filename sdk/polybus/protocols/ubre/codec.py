"""A codec: a reader and a writer. The adapter chooses which."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal

from attrs import frozen

from ...body import JSON, OCTETS, BodyFormat
from ...errors import RemoteProtocolError, Unsupported
from ...message import Message


@frozen(eq=False, kw_only=True)
class UbreCodec:
    """One message a frame. `read` and `write` are what the session uses; `decode` and `encode` are the plugin's interface.

    Attributes:
        read: The message of a frame. Raises `RemoteProtocolError`, nothing else.
        write: The frame of a message under an id (`Message.id` is not looked at). Raises as `encode`.
        reads: Kinds of frames that are read.
        writes: The kind of frames that are written.
        ask: The frame of a request to a subject under an id, with a body and seconds. None where there is no short way.
        tell: The same of an answer, without the first and the last.
        formats: Body formats on this wire. The first is that of ordinary bodies; items and opens carry both.
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
        """The format in which a value is written to a subject: always the first."""
        return self.formats[0]

    def decode(self, frame: bytes) -> Sequence[Message | RemoteProtocolError]:
        """The one message of a frame."""
        return [self.read(frame)]

    def encode(self, messages: Sequence[Message]) -> bytes:
        """The frame of one message."""
        if len(messages) != 1:
            raise Unsupported(f"a UBRE frame holds one message, not {len(messages)}")
        return self.write(messages[0], messages[0].id)
