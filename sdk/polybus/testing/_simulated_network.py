"""Connections of a simulation: over memory, with frames that take a while, cuts, pauses, and ends that learn of a cut late."""

from __future__ import annotations

import asyncio
import random
import struct
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from ..plugins import Closed, DialOptions, Receiver, Transport, TransportFeatures
from ..transports.memory import Memory

if TYPE_CHECKING:
    from ..plugins import Connector

_HIGH: Final = 64 * 1024
"""Bytes on their way in one direction, from which on its sender is asked to pause."""


_SECONDS: Final = struct.Struct("<d")
_KEPT: Final = 30
"""Last events of a run that are shown when it fails."""


class Network:
    """All connections of a simulation, and the log of what has happened on them.

    Args:
        seed: Chooses how long each frame takes.
        delay: Seconds that a frame takes at most.
        loop: Keeps the time.
    """

    def __init__(self, seed: int, delay: float, loop: asyncio.AbstractEventLoop) -> None:
        self.loop: asyncio.AbstractEventLoop = loop
        self.connections: list[SimulatedConnection] = []
        self.recent: deque[str] = deque(maxlen=_KEPT)
        """The last faults and notes."""
        self._delay = delay
        self._random = random.Random(f"{seed}/latency").random
        self._later: dict[Callable[[], None], asyncio.TimerHandle] = {}
        self._hash = blake2b(digest_size=16)

    @property
    def trace(self) -> str:
        """A hash of all that has happened."""
        return self._hash.hexdigest()

    def latency(self) -> float:
        """Seconds that the next frame takes."""
        return self._random() * self._delay

    def note(self, *what: object) -> None:
        """Write something into the log."""
        text = f"{self.loop.time():10.4f} {' '.join(map(str, what))}"
        self.recent.append(text)
        self._hash.update(text.encode())

    def carried(self, label: bytes, frame: bytes) -> None:
        """A frame has arrived."""
        self._hash.update(_SECONDS.pack(self.loop.time()) + label + frame)

    def later(self, seconds: float, act: Callable[[], None]) -> None:
        """Do something so many seconds later, or when the faults end."""

        def due() -> None:
            if self._later.pop(act, None) is not None:
                act()

        self._later[act] = self.loop.call_later(seconds, due)

    def calm(self) -> None:
        """End all pauses, and tell of each cut."""
        for connection in self.connections:
            connection.pause(0.0)
        for act, timer in list(self._later.items()):
            timer.cancel()
            del self._later[act]
            act()


class SimulatedConnector:
    """Dials an address in memory through the network of a simulation."""

    reconnects = True

    def __init__(self, network: Network, url: str, label: str) -> None:
        self._network = network
        self._inner: Connector = Memory().connector(url)
        self._label = label
        self.url: str = url

    async def connect(self, options: DialOptions) -> Transport:
        """Make one attempt.

        Raises:
            ConnectFailed: There is no server of that name.
            Unauthorized: The server refuses who we are.
            Forbidden: The server does not let us in.
        """
        return SimulatedConnection(self._network, await self._inner.connect(options), self._label)


class SimulatedConnection:
    """One connection of a simulation, as `World.connections` has it."""

    # A `Transport` to the link that has dialled, and a `Receiver` to the transport in memory.

    def __init__(self, network: Network, inner: Transport, label: str) -> None:
        self.label: str = label
        """The label given to `World.to`."""
        self._network = network
        self._inner = inner
        self._receiver: Receiver | None = None
        self._told = False
        """True when the side that has dialled knows of the end."""
        self._ours = 0.0
        """Seconds after which that side learns of a cut."""
        self._full = False
        self._peer_full = False
        features = TransportFeatures.of(inner)
        self._hold_peer, self._release_peer = features.pause_reading, features.resume_reading
        self._out = _FrameFlow(network, f"{label} >", self._leave)
        self._in = _FrameFlow(network, f"{label} <", self._arrive)

    # -- faults ----------------------------------------------------------------------------------------------------------

    def cut(self, *, ours: float = 0.0, theirs: float = 0.0) -> None:
        """Cut it; what is on its way is lost.

        Args:
            ours: Seconds after which the side that has dialled learns of it.
            theirs: Seconds after which the side that serves learns of it. Until then what was on its way to it arrives still,
                and it has two connections of that peer when that has dialled anew. With it, `ours` is 0.
        """
        self._network.note(self.label, f"cut, which its client learns after {ours:g} s, its server after {theirs:g} s")
        why = Closed(1006, "cut by the simulation")
        if theirs > 0:
            self._in.forget()
            self._end(why)
            self._network.later(theirs, partial(self._inner.abort, why))
        else:
            self._ours = ours
            self.abort(why)

    def pause(self, seconds: float) -> None:
        """Hold back what is on its way, in both directions, for so long; 0 ends a pause."""
        self._network.note(self.label, f"paused for {seconds:g} s")
        self._out.hold(seconds)
        self._in.hold(seconds)

    # -- as a transport --------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The transport's word in a URL."""
        return self._inner.name

    @property
    def max_frame(self) -> int:
        """Largest frame in bytes."""
        return self._inner.max_frame

    @property
    def hops(self) -> int:
        """Tunnels on its way: none."""
        return self._inner.hops

    @property
    def address(self) -> str:
        """Address of the server."""
        return self._inner.address

    def start(self, receiver: Receiver) -> None:
        """Deliver from now on."""
        self._receiver = receiver
        self._network.connections.append(self)
        self._inner.start(self)

    def send(self, frame: bytes) -> None:
        """Hand over a frame without waiting.

        Raises:
            TooLarge: The frame is over `Limits.message`.
        """
        if self._told:
            return
        if len(frame) > self._inner.max_frame:
            self._inner.send(frame)  # raises
        self._out.carry(frame)
        self._check_room()

    def write_backlog(self) -> int:
        """Bytes that the server has not taken yet."""
        return self._inner.write_backlog() + self._out.bytes

    def close(self, code: int = 1000, reason: str = "") -> None:
        """End in order, behind all that was sent."""
        self._out.then(partial(self._inner.close, code, reason))

    def abort(self, why: Closed) -> None:
        """Cut at once."""
        self._out.forget()
        self._in.forget()
        self._inner.abort(why)

    def tick(self, now: float) -> None:
        """Pass on the time."""
        self._inner.tick(now)

    # -- as a receiver ---------------------------------------------------------------------------------------------------

    def frames_received(self, frames: Sequence[bytes]) -> None:
        """Frames have left the server."""
        if not self._told:
            for frame in frames:
                self._in.carry(frame)
            if self._in.bytes > _HIGH:
                self._hold_peer()

    def closed(self, why: Closed) -> None:
        """The server's end is over."""
        self._out.forget()
        if self._ours > 0:
            self._network.later(self._ours, partial(self._end, why))
        else:
            self._in.then(partial(self._end, why))

    def pause_writing(self) -> None:
        """The server does not take what has come to it."""
        self._peer_full = True
        self._check_room()

    def resume_writing(self) -> None:
        """The server takes more."""
        self._peer_full = False
        self._check_room()

    # -- both ------------------------------------------------------------------------------------------------------------

    def _leave(self, frames: list[bytes]) -> None:
        for frame in frames:
            self._inner.send(frame)
        self._check_room()

    def _arrive(self, frames: list[bytes]) -> None:
        assert self._receiver is not None
        self._receiver.frames_received(frames)
        if self._in.bytes <= _HIGH:
            self._release_peer()

    def _check_room(self) -> None:
        full = self._peer_full or self._out.bytes > _HIGH
        if full is not self._full and not self._told:
            self._full = full
            assert self._receiver is not None
            if full:
                self._receiver.pause_writing()
            else:
                self._receiver.resume_writing()

    def _end(self, why: Closed) -> None:
        if not self._told:
            self._told = True
            self._network.connections.remove(self)
            assert self._receiver is not None
            self._receiver.closed(why)


class _FrameFlow:
    """Frames on their way, in order."""

    def __init__(self, network: Network, label: str, deliver: Callable[[list[bytes]], None]) -> None:
        self._network = network
        self._label = label.encode()
        self._deliver = deliver
        self._waiting: deque[tuple[float, bytes | Callable[[], None]]] = deque()
        self._last = 0.0
        self._held_until = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.bytes = 0

    def carry(self, frame: bytes) -> None:
        """Deliver a frame, a while later."""
        self.bytes += len(frame)
        self._add(frame, self._network.latency())

    def then(self, act: Callable[[], None]) -> None:
        """Do something after all frames."""
        self._add(act, 0.0)

    def hold(self, seconds: float) -> None:
        """Deliver nothing for so long."""
        self._held_until = self._network.loop.time() + seconds
        self._arm()

    def forget(self) -> None:
        """Lose the frames on their way; what is to be done after them follows at once, and is not held back."""
        self._waiting = deque((0.0, what) for _, what in self._waiting if callable(what))
        self.bytes = 0
        self._held_until = 0.0
        self._arm()

    def _add(self, what: bytes | Callable[[], None], delay: float) -> None:
        self._last = max(self._network.loop.time() + delay, self._last)
        self._waiting.append((self._last, what))
        if self._timer is None:
            self._arm()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._waiting:
            self._timer = self._network.loop.call_at(max(self._waiting[0][0], self._held_until), self._deliver_due)

    def _deliver_due(self) -> None:
        self._timer = None
        now, waiting = self._network.loop.time(), self._waiting
        frames: list[bytes] = []
        while waiting and waiting[0][0] <= now:
            what = waiting[0][1]
            if callable(what):
                if frames:
                    break  # in the next round
                waiting.popleft()
                what()
            else:
                waiting.popleft()
                self.bytes -= len(what)
                self._network.carried(self._label, what)
                frames.append(what)
        if frames:
            self._deliver(frames)
        if self._timer is None:
            self._arm()
