"""Simulates unreliable connections that lose, duplicate or delay frames. A seed makes the faults reproducible."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from sys import float_info
from typing import Any

import anyio
from attrs import Attribute, field, frozen

from ..plugins import Closed, Connector, DialOptions, Host, Receiver, Transport
from ..plugins.tools import check_count, shown


def not_negative(_: Any, attribute: Attribute[Any], value: Any, most: float = float_info.max) -> None:
    """attrs validator for a finite number of at least 0."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{attribute.name}={shown(value)} must be a number, not {type(value).__name__}")
    if not 0 <= value <= most:
        raise ValueError(f"{attribute.name}={shown(value)} must be a number from 0 to {most:g}")


_share = partial(not_negative, most=1.0)


def _one_or_more(_: Any, attribute: Attribute[Any], value: Any) -> None:
    if value is not None:
        check_count(value, attribute.name)


@frozen(kw_only=True)
class Faults:
    """Faults on a connection. Equal seeds produce equal faults. Frames in both directions are counted together.

    Frames stay in order within a direction, since no transport reorders them.

    Args:
        seed: Determines which frames are affected.
        drop: Share of frames to lose, from 0 to 1.
        duplicate: Share of frames to deliver twice, from 0 to 1.
        delay: Maximum delay per frame, in seconds on the event loop's clock. The actual delay is random.
        cut_after: Cut each connection after this many frames.

    Raises:
        TypeError: If an argument is not a number, or `cut_after` is not an integer.
        ValueError: If a share is not between 0 and 1, `delay` is negative or infinite, or `cut_after` is less than 1.
    """

    seed: int = 0
    drop: float = field(default=0.0, validator=_share)
    duplicate: float = field(default=0.0, validator=_share)
    delay: float = field(default=0.0, validator=not_negative)
    cut_after: int | None = field(default=None, validator=_one_or_more)

    def around(self, connector: Connector) -> Connector:
        """Return a connector with these faults. Each connection derives its own random numbers from the seed."""
        return _FaultyConnector(self, connector)


class _FaultyConnector:
    def __init__(self, faults: Faults, inner: Connector) -> None:
        self._faults = faults
        self._inner = inner
        self.url, self.reconnects = inner.url, inner.reconnects
        self._connections = 0

    async def connect(self, options: DialOptions) -> Transport:
        transport = await self._inner.connect(options)
        self._connections += 1
        return _FaultyTransport(self._faults, transport, options.host, f"{self._faults.seed}/{self._connections}")


class _FaultyTransport:
    """Sits between a link and its transport: a `Transport` to the link, a `Receiver` to the transport."""

    def __init__(self, faults: Faults, inner: Transport, host: Host, seed: str) -> None:
        self._faults = faults
        self._inner = inner
        self.name, self.address = inner.name, inner.address
        self.max_frame, self.hops = inner.max_frame, inner.hops
        self._carried = 0
        self._cut = False
        self._out = _Direction(faults, host, random.Random(f"{seed}/out"), inner.send)
        self._in = _Direction(faults, host, random.Random(f"{seed}/in"), self._arrive)
        self.tick = inner.tick

    # -- as a transport --------------------------------------------------------------------------------------------------

    def start(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self.pause_writing, self.resume_writing = receiver.pause_writing, receiver.resume_writing
        self._inner.start(self)

    def send(self, frame: bytes) -> None:
        self._carry(self._out, frame)

    def write_backlog(self) -> int:
        return self._inner.write_backlog() + self._out.waiting_bytes

    def close(self, code: int = 1000, reason: str = "") -> None:
        self._out.then(partial(self._inner.close, code, reason))

    def abort(self, why: Closed) -> None:
        self._out.forget()
        self._in.forget()
        self._inner.abort(why)

    # -- as a receiver ---------------------------------------------------------------------------------------------------

    def frames_received(self, frames: Sequence[bytes]) -> None:
        for frame in frames:
            self._carry(self._in, frame)

    def closed(self, why: Closed) -> None:
        self._out.forget()
        self._in.then(partial(self._receiver.closed, why))

    # -- both ------------------------------------------------------------------------------------------------------------

    def _carry(self, direction: _Direction, frame: bytes) -> None:
        if self._cut:
            return
        self._carried += 1
        direction.carry(frame)
        if self._carried == self._faults.cut_after:
            self._cut = True
            self.abort(Closed(1006, f"cut by Faults(cut_after={self._carried})"))

    def _arrive(self, frame: bytes) -> None:
        self._receiver.frames_received([frame])


class _Direction:
    def __init__(self, faults: Faults, host: Host, rng: random.Random, deliver: Callable[[bytes], None]) -> None:
        self._faults = faults
        self._host = host
        self._random = rng.random
        self._deliver = deliver
        self._late: deque[tuple[float, int, Callable[[], None]]] = deque()
        self._busy = False
        self.waiting_bytes = 0

    def carry(self, frame: bytes) -> None:
        # Draw all three for every frame, so that one kind of fault doesn't shift the others.
        lost, doubled, late = self._random(), self._random(), self._random()
        if lost < self._faults.drop:
            return
        for _ in range(2 if doubled < self._faults.duplicate else 1):
            self._add(late * self._faults.delay, len(frame), partial(self._deliver, frame))

    def then(self, act: Callable[[], None]) -> None:
        self._add(0.0, 0, act)

    def forget(self) -> None:
        """Drop all frames in transit."""
        self._late.clear()
        self.waiting_bytes = 0

    def _add(self, delay: float, size: int, act: Callable[[], None]) -> None:
        if not self._late and not self._busy and delay == 0:
            act()
            return
        self._late.append((self._host.time() + delay, size, act))
        self.waiting_bytes += size
        if not self._busy:
            self._busy = True
            self._host.spawn(self._deliver_late)

    async def _deliver_late(self) -> None:
        try:
            while self._late:
                due, size, act = self._late[0]
                if due > self._host.time():
                    await anyio.sleep(max(0.0, due - self._host.time()))
                    continue  # forget() may have run
                self._late.popleft()
                self.waiting_bytes -= size
                act()
        finally:
            self._busy = False
