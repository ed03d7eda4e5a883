"""Framings: how the frames of a protocol lie in a stream of bytes, where the protocol itself says so.

Without one, a transport over a byte stream writes a length before each frame, and a WebSocket carries each frame as a message.
A protocol that has had a form of its own on TCP before, by line ends or lengths in its text, brings it along: its adapter has
an attribute ``framing`` (see `ProtocolFeatures`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ..errors import RemoteProtocolError
from ..limits import Limits


class FrameCutter(Protocol):
    """One direction of one connection: cuts what comes in into frames, without I/O."""

    @property
    def partial(self) -> str:
        """Arrived part of the frame that has begun, for people; empty between two frames."""
        ...

    @property
    def arrived(self) -> int:
        """The same in bytes; 0 between two frames."""
        ...

    @property
    def broken(self) -> RemoteProtocolError | None:
        """Why nothing more is cut: what came is not of this protocol. Its `close_code` ends the connection."""
        ...

    def feed(self, data: bytes) -> Sequence[bytes]:
        """The frames that this chunk completes. Never raises: see `broken`."""
        ...


class Framing(Protocol):
    """Form in which a protocol's frames lie in a stream of bytes.

    On ``tcp``, ``tls`` and ``unix`` the stream is the connection; on ``ws`` and ``wss`` it comes in binary messages, each a
    chunk of any size. In memory frames stay as they are.
    """

    def cutter(self, limits: Limits, transport: str) -> FrameCutter:
        """Make the cutter of one connection, which keeps to `Limits.message`.

        Args:
            limits: Of the bus.
            transport: Its word in the URL: ``tcp``, ``tls``, ``ws``...
        """
        ...

    def pack(self, frame: bytes, /) -> bytes:
        """The bytes of a frame in the stream."""
        ...

    def plain_preface(self, data: bytes) -> int | None:
        """Length of a server's first words, which come in plain before the TLS handshake on ``tls``.

        Args:
            data: What has come so far.

        Returns:
            0 as long as more of them must come; None where TLS begins at once.

        Raises:
            RemoteProtocolError: The server does not speak this protocol, or without TLS alone.
        """
        ...
