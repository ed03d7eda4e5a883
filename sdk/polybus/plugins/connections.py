"""Building blocks for transports: connection states, water marks, a minimum transfer rate, and a timer."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable
from http.cookies import CookieError, SimpleCookie
from typing import Final

import anyio

from ..errors import BusError
from .transports import Admission, Closed, Gate, Handshake, Host

HIGH_WATER: Final = 32 * 1024
"""Number of unsent bytes above which a transport calls `Receiver.pause_writing`."""
LOW_WATER: Final = 8 * 1024
"""Number of unsent bytes below which it calls `Receiver.resume_writing`."""

SLOWEST: Final = 512
"""Minimum bytes per second, averaged over `Limits.frame_timeout`: half the rate of a GPRS line (8 kbit/s). Without a minimum, a
client could make a server buffer partial frames at almost no cost to itself."""


class TransportState(enum.Enum):
    """State of a connection."""

    OPEN = 1
    CLOSING = 2
    """The close message has been sent, and further input is discarded."""
    LOST = 3


class Pace:
    """Checks that a frame or body of any size arrives at the minimum rate.

    Args:
        now: Time at which the first bytes arrived.
        arrived: Number of bytes received by then.
    """

    __slots__ = ("_arrived", "_since", "began")

    def __init__(self, now: float, arrived: int) -> None:
        self.began: float = now
        self._since = now
        self._arrived = arrived

    def deadline(self, now: float, arrived: int, seconds: float) -> float:
        """Return the time at which the sender is too slow unless more bytes arrive.

        It is `seconds` after the last time that another ``SLOWEST * seconds`` bytes were complete.
        """
        if arrived < self._arrived:
            self.began = self._since = now
            self._arrived = arrived
        elif arrived - self._arrived >= SLOWEST * seconds:
            self._since = now
            self._arrived = arrived
        return self._since + seconds


def write_stalled(seconds: float, backlog: int) -> Closed:
    """Return the `Closed` for a connection that has not accepted any data for `seconds`, with `backlog` bytes still unsent."""
    text = f"write stalled: the peer accepted no data for {seconds:g} s, {backlog} bytes are waiting"
    return Closed(1006, text, stalled=True)


def call_later(host: Host, delay: float, function: Callable[[], None]) -> Callable[[], None]:
    """Call a function after `delay` seconds. Returns a function that cancels the call."""
    if host.backend == "asyncio":
        return asyncio.get_running_loop().call_later(delay, function).cancel
    scope = anyio.CancelScope()

    async def call() -> None:
        with scope:
            await anyio.sleep(delay)
            function()

    host.spawn(call)
    return scope.cancel


async def decision(gate: Gate, handshake: Handshake) -> Admission | BusError:
    """Authenticate a client with `Gate.admit`, and return the result. If the task is cancelled, so is the authentication."""
    decided, outcome = anyio.Event(), list[Admission | BusError]()

    def decide(result: Admission | BusError) -> None:
        outcome.append(result)
        decided.set()

    withdraw = gate.admit(handshake, decide)
    try:
        await decided.wait()
    except BaseException:
        if withdraw is not None:
            withdraw()
        raise
    return outcome[0]


def cookies_of(text: str) -> dict[str, str]:
    """Parse a ``Cookie`` header for `Handshake.cookies`. Returns an empty dictionary if the header is malformed."""
    try:
        return {name: morsel.value for name, morsel in SimpleCookie(text).items()}
    except CookieError:
        return {}
