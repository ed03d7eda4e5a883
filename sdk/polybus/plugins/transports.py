"""Interfaces of an established connection: the transport, the receiver that it calls, and the host that the bus is for it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal, Protocol

from attrs import frozen

from ..errors import BusError
from ..limits import Limits


@frozen
class Closed:
    """Why a connection ended."""

    code: int = 1006
    """A WebSocket close code: 1000 orderly, 1001 going away, 1006 without a word, 4401 unauthorized, 4403 forbidden..."""
    reason: str = ""
    error: BusError | None = None
    """Error for waiting callers where it is more than a `Disconnected`: `Unauthorized`, `Forbidden`, ..."""
    stalled: bool = False
    """True where this side has cut a connection whose peer took nothing: a server logs that."""


class Receiver(Protocol):
    """The user of a transport. All methods are synchronous, are called on the event loop, and never raise.

    It may offer more: see `ReceiverFeatures`.
    """

    def frames_received(self, frames: Sequence[bytes]) -> None:
        """Whole frames, in order, as many as one read gave."""

    def closed(self, why: Closed) -> None:
        """The last call: nothing is sent or received any more."""

    def pause_writing(self) -> None:
        """The peer is slow: send nothing more until `resume_writing`. (A frame sent all the same is kept.)"""

    def resume_writing(self) -> None:
        """There is room again."""


class Transport(Protocol):
    """One established connection that carries whole frames.

    Frames are handed on as they are, in both directions. So a session and a transport that know each other may mark them: a
    subclass of ``bytes`` can say in which exchange a frame came, and in which one its answer leaves.

    It may offer more: see `TransportFeatures`.
    """

    @property
    def name(self) -> str:
        """The word in the URL: ``tcp``, ``ws``, ..."""
        ...

    @property
    def max_frame(self) -> int:
        """The largest frame in bytes that `send` takes."""
        ...

    @property
    def hops(self) -> int:
        """Number of tunnels that this connection already runs through: 0 on a network."""
        ...

    @property
    def address(self) -> str:
        """Of the other end, for people and logs."""
        ...

    def start(self, receiver: Receiver) -> None:
        """Deliver from now on, first what has already come in. Called once."""

    def send(self, frame: bytes) -> None:
        """Hand over a frame without waiting; those of one turn of the event loop leave in one write. After the end: ignored.

        Raises:
            TooLarge: The frame is over `max_frame`, which is `Limits.message`.
        """

    def write_backlog(self) -> int:
        """Bytes handed over that the operating system has not taken yet."""
        ...

    def close(self, code: int = 1000, reason: str = "") -> None:
        """Write what was sent, tell the peer, close; after `Limits.close_timeout` cut. `Receiver.closed` follows."""

    def abort(self, why: Closed) -> None:
        """Cut at once. `Receiver.closed` follows with this reason."""

    def tick(self, now: float) -> None:
        """About once a second: pings, frame and write deadlines, close timeout."""


class Reservation(Protocol):
    """Bytes that are kept for a client before it has a connection: within `Limits.total_bytes` and the share of its address."""

    def hold(self, size: int) -> bool:
        """Keep so much more. False, and nothing more is kept, if there is no room."""
        ...

    def release(self) -> None:
        """Keep nothing any more. To be called once, at the end."""


class Host(Protocol):
    """Services of a bus for a transport."""

    @property
    def backend(self) -> Literal["asyncio", "trio"]: ...

    @property
    def limits(self) -> Limits: ...

    def time(self) -> float:
        """Monotonic seconds: the clock of all `now` arguments."""
        ...

    def reserve(self, address: str) -> Reservation:
        """Bytes for a client whom the bus has not let in.

        Args:
            address: Where it comes from, with its port.
        """
        ...

    def call_soon(self, function: Callable[[], None]) -> None:
        """Call in the next turn of the event loop. The function must not raise."""

    def spawn(self, function: Callable[..., Awaitable[Any]], *args: Any) -> None:
        """Run a coroutine function as a task of the bus, cancelled when the bus is left. What it raises is logged."""
