"""What the codecs of this protocol have in common, and the one that reads both formats."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Literal

from ...body import BodyFormat
from ...errors import EncodeError, LocalProtocolError, RemoteProtocolError, Unsupported
from ...limits import Limits
from ...message import Message
from .checks import fault_in_subject

__all__ = ["AnyCodec", "UbreCodec"]


class UbreCodec(ABC):
    """One message a frame. `read` and `write` are what the session uses; `decode` and `encode` are the plugin's interface."""

    reads: frozenset[Literal["text", "binary"]]
    writes: Literal["text", "binary"]
    formats: tuple[BodyFormat, ...]
    limits: Limits

    @abstractmethod
    def read(self, frame: bytes) -> Message:
        """The message of a frame.

        Raises:
            RemoteProtocolError: It is none, or a bad one.
        """

    @abstractmethod
    def write(self, message: Message, id: Any) -> bytes:
        """The frame of a message, under this id (`Message.id` is not looked at).

        Raises:
            EncodeError: A body does not fit the wire.
            Unsupported: The wire has no form for this kind of message.
            LocalProtocolError: A subject, a header or the id does not fit the wire.
        """

    def format_for(self, value: Any, subject: str | int) -> BodyFormat:
        """The format in which a value is written to a subject: always the first."""
        return self.formats[0]

    def decode(self, frame: bytes) -> Sequence[Message | RemoteProtocolError]:
        """The one message of a frame.

        Raises:
            RemoteProtocolError: It is none, or a bad one.
        """
        return [self.read(frame)]

    def encode(self, messages: Sequence[Message]) -> bytes:
        """The frame of one message.

        Raises:
            EncodeError: A body does not fit the wire.
            Unsupported: The wire has no form for this kind of message, or there is not exactly one message.
            LocalProtocolError: A subject, a header or the id does not fit the wire.
        """
        if len(messages) != 1:
            raise Unsupported(f"a UBRE frame holds one message, not {len(messages)}")
        return self.write(messages[0], messages[0].id)


class AnyCodec(UbreCodec):
    """``format=any``: reads both formats, told apart by the first byte, and writes JSON."""

    reads = frozenset(("text", "binary"))
    writes: Literal["text", "binary"] = "text"

    def __init__(self, json: UbreCodec, binary: UbreCodec) -> None:
        self.limits = json.limits
        self.formats = json.formats
        self._write_json = json.write
        self._read_json = json.read
        self._read_binary = binary.read

    def read(self, frame: bytes) -> Message:
        return self._read_json(frame) if frame[:1] in b"{ \t\r\n" else self._read_binary(frame)

    def write(self, message: Message, id: Any) -> bytes:
        return self._write_json(message, id)


def check_local_subject(value: Any, limit: int) -> str:
    """A subject that goes out; it may be empty.

    Raises:
        LocalProtocolError: It does not fit the wire.
    """
    fault = fault_in_subject(value, limit)
    if fault is not None:
        raise LocalProtocolError(fault, protocol="ubre")
    return str(value)


def unencodable(error: UnicodeEncodeError) -> EncodeError:
    """The error for text that is no Unicode."""
    return EncodeError(f"lone surrogate at character {error.start} of {error.object[:40]!r}")
