"""Peers that are gone, slow or silent: told apart by what the kernel knows and by what moves, never by how large something is.

A black hole is made with a socket filter that lets nothing through: what arrives is not acknowledged. Times are handed in, but
for what the kernel itself measures.
"""

from __future__ import annotations

import ctypes
import os
import socket
import ssl
import struct
import sys
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from polybus.limits import Limits
from polybus.plugins.connections import SLOWEST, Pace, TransportState
from polybus.transports import sockets
from polybus.transports.sockets import Signs
from tests.loops import every_loop  # noqa: F401  # a fixture
from tests.support import BOUND, eventually

from .support import Raw, Receiver, bare, client_tls, dial, fill, joined, opened, running, serving

if TYPE_CHECKING:
    import trustme

linux = pytest.mark.skipif(sys.platform != "linux", reason="other kernels do not tell it")

TCP, WS = "tcp://127.0.0.1:0", "ws://127.0.0.1:0/bus"
SO_ATTACH_FILTER = 26
NOTHING_PASSES = struct.pack("HBBI", 0x06, 0, 0, 0)
"""One instruction of a classic BPF program: return 0."""


def wire_of(receiver: Receiver) -> Any:
    return receiver.transport._wire  # type: ignore[attr-defined]


def is_open(receiver: Receiver) -> bool:
    return receiver.transport._state is TransportState.OPEN  # type: ignore[attr-defined]


def raw_socket(receiver: Receiver) -> Any:
    """The socket beneath a connection, whoever drives it."""
    wire = wire_of(receiver)
    if hasattr(wire, "_transport"):
        return wire._transport.get_extra_info("socket")
    return wire._stream.extra(anyio.abc.SocketAttribute.raw_socket)


def cut_the_way(*receivers: Receiver) -> None:
    """From now on nothing arrives at these, not even acknowledgements; both ends are this far from each other."""
    program = ctypes.create_string_buffer(NOTHING_PASSES)
    for receiver in receivers:
        with socket.socket(fileno=os.dup(raw_socket(receiver).fileno())) as sock:
            sock.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("HL", 1, ctypes.addressof(program)))


# -- a peer that is gone


@linux
@pytest.mark.parametrize("scheme", ["tcp", "tls"])
@pytest.mark.parametrize("sends", [False, True], ids=["idle", "sends"])
async def test_a_dead_peer_is_found_after_the_interval_and_the_timeout(
    anyio_backend: Any, scheme: str, sends: bool, authority: trustme.CA, server_tls: ssl.SSLContext
) -> None:
    # The kernel alone would take `write_timeout`.
    limits = Limits(ping_interval=0.3, ping_timeout=0.4, write_timeout=2 * BOUND)
    secure = scheme == "tls"
    async with (
        running(anyio_backend, limits) as host,
        serving(host, f"{scheme}://127.0.0.1:0", tls=server_tls if secure else None) as server,
    ):
        here = await dial(host, server.url, tls=client_tls(authority) if secure else None)
        here.transport.send(b"hello")
        there = await server.gate.peer()
        await there.received(1)
        cut_the_way(here, there)

        def found() -> bool:
            for receiver in (here, there):
                if receiver.why is None:
                    receiver.transport.tick(host.time())
                    if sends:
                        receiver.transport.send(b"anybody?")
            return here.why is not None and there.why is not None

        await eventually(found)
        for receiver in (here, there):
            assert (await receiver.end()).reason.startswith("no sign of life for")


async def test_the_arithmetic_of_silence_with_the_usual_limits(anyio_backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found within 25 seconds of the last sign of life, whatever is being sent; a slow acknowledgement is none too late."""
    async with running(anyio_backend) as host, serving(host, TCP) as server:
        here = await dial(host, server.url)
        told: list[Signs | None] = [Signs(0.0, 0, 0, 0)]
        monkeypatch.setattr(type(wire_of(here)), "signs", lambda self: told[0] if self is wire_of(here) else None)
        begin = host.time()

        async def tick(second: float, silence: float, unanswered: int) -> bool:
            told[0] = Signs(silence, unanswered, 0, 4 if unanswered else 0)
            here.transport.tick(begin + second)
            await anyio.wait_all_tasks_blocked()  # what was written leaves
            return is_open(here)

        # Its machine answers each of our keep-alives, and it never says anything: it lives.
        for second in range(1, 100):
            assert await tick(second, second % 15, 0)
        # Two were lost on the way, the third arrived.
        for second in range(100, 116):
            assert await tick(second, min(second - 97, 7), 2)
        assert await tick(116, 0, 0)
        # It reads nothing: its window is closed, and it says so whenever it is asked, which is less and less often.
        for second in range(117, 160):
            assert await tick(second, second - 117, 0)
        # It is gone.
        last = 160
        for second in range(last, last + 26):
            if not await tick(second, second - last, 1):
                break
        assert second - last <= 24
        assert "no sign of life" in (await here.end()).reason


@pytest.mark.parametrize("url", [TCP, WS])
@pytest.mark.parametrize(
    ("limits", "wanted"),
    [
        (Limits(), {"KEEPIDLE": 15, "KEEPINTVL": 2, "KEEPCNT": 4, "USER_TIMEOUT": 23_000}),
        # A user who lets a peer read nothing for a minute is not overruled by the kernel.
        (Limits(write_timeout=60), {"KEEPIDLE": 15, "KEEPINTVL": 2, "KEEPCNT": 4, "USER_TIMEOUT": 60_000}),
        (Limits(ping_interval=0.1, ping_timeout=0.1), {"KEEPIDLE": 1, "KEEPINTVL": 1, "KEEPCNT": 1, "USER_TIMEOUT": 10_000}),
        (
            Limits(ping_interval=1e6, ping_timeout=1e6),
            {"KEEPIDLE": 32_767, "KEEPINTVL": 32_767, "KEEPCNT": 4, "USER_TIMEOUT": 86_400_000},
        ),
    ],
)
async def test_the_kernel_has_the_times_of_the_limits(
    anyio_backend: Any, url: str, limits: Limits, wanted: dict[str, int]
) -> None:
    async with running(anyio_backend, limits) as host, serving(host, url) as server:
        here = await dial(host, server.url)
        for receiver in (here, await server.gate.peer()):
            sock = raw_socket(receiver)
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            for name, value in wanted.items():
                option = getattr(socket, f"TCP_{name}", None)
                if option is not None:
                    assert sock.getsockopt(socket.IPPROTO_TCP, option) == value, name


@linux
def test_of_what_is_no_connection_any_more_nothing_is_told() -> None:
    left, right = socket.socketpair()
    left.send(b"x")
    told = sockets.signs_of(left)
    assert told is not None
    assert told.outstanding > 0
    assert told[:3] == (0.0, 0, 0)
    right.recv(1)
    left.close()
    right.close()
    assert sockets.signs_of(left) is None
    assert sockets.signs_of(None) is None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as no_tcp:
        assert sockets.signs_of(no_tcp) is None


# -- a frame that takes long


def test_the_next_frame_begins_anew() -> None:
    pace = Pace(0.0, 5000)
    assert pace.deadline(9, 100, 10) == 19
    assert pace.began == 9


class Slow:
    """The bare client of a server, which sends one large frame bit by bit, and lets time pass."""

    def __init__(self, raw: Raw, there: Receiver, now: float) -> None:
        self.raw, self.there, self.now, self.sent = raw, there, now, 0

    async def second(self, data: bytes) -> None:
        framer = self.there.transport._framer  # type: ignore[attr-defined]
        before = len(self.there.frames), framer.arrived
        await self.raw.send(data)
        await eventually(lambda: not data or (len(self.there.frames), framer.arrived) != before or self.there.why is not None)
        self.now += 1
        self.there.transport.tick(self.now)
        await anyio.wait_all_tasks_blocked()  # what it has written leaves

    @property
    def open(self) -> bool:
        return is_open(self.there)


def head(url: str, size: int) -> bytes:
    return struct.pack("!I", size) if url == TCP else struct.pack("!BBQ4x", 0x82, 0xFF, size)


@pytest.mark.parametrize("url", [TCP, WS])
async def test_a_large_frame_over_a_slow_line_arrives(anyio_backend: Any, url: str) -> None:
    async with bare(anyio_backend, url) as (host, raw, there):
        slow = Slow(raw, there, host.time())
        await slow.second(head(url, 400_000))
        for _ in range(20):
            assert slow.open
            assert there.frames == []
            await slow.second(b"\0" * 20_000)
        assert await there.received(1) == [b"\0" * 400_000]


@pytest.mark.parametrize("url", [TCP, WS])
@pytest.mark.parametrize(("rate", "before"), [(0, 0), (1, 0), (SLOWEST - 1, 0), (0, 300_000)])
async def test_a_drip_is_cut_however_much_came_before_it(anyio_backend: Any, url: str, rate: int, before: int) -> None:
    async with bare(anyio_backend, url) as (host, raw, there):
        slow = Slow(raw, there, host.time())
        await slow.second(head(url, 400_000) + bytes(before))
        await eventually(lambda: there.transport._framer.arrived >= before)  # type: ignore[attr-defined]
        there.transport.tick(slow.now)
        seconds = 0
        while slow.open:
            assert seconds < 12
            seconds += 1
            await slow.second(bytes(rate))
        assert seconds in (10, 11)
        await raw.rest()
        await raw.stream.aclose()
        assert "less than 5120 bytes came within 10 s" in (await there.end()).reason


async def test_pings_between_fragments_are_no_progress(anyio_backend: Any) -> None:
    async with bare(anyio_backend, WS) as (host, raw, there):
        await raw.send(struct.pack("!BB4x", 0x02, 0x80 | 8) + b"fragment")
        await eventually(lambda: there.transport._framer.arrived == 10)  # type: ignore[attr-defined]
        now = host.time()
        for second in range(11):
            heard = there.transport._framer.empty_frames  # type: ignore[attr-defined]
            for _ in range(60):
                await raw.send(b"\x89\xfd\0\0\0\0" + bytes(125))
            await eventually(lambda heard=heard: there.transport._framer.empty_frames > heard)  # type: ignore[attr-defined,misc]
            there.transport.tick(now + second)
        assert (await raw.rest())[-200:]
        await raw.stream.aclose()
        assert "1 fragments without a last one" in (await there.end()).reason


async def test_whoever_waits_for_the_rest_of_a_frame_says_that_it_is_there(anyio_backend: Any) -> None:
    """Behind a large frame on a slow line our own ping would be answered too late."""
    async with bare(anyio_backend, WS) as (host, raw, there):
        slow = Slow(raw, there, host.time())
        await slow.second(head(WS, 1_000_000))
        for _ in range(3):
            await slow.second(bytes(10_000))
        for _ in range(3):
            await slow.second(bytes(10_000))
            assert await raw.exactly(2) == b"\x8a\0"
            assert raw.seen == b"", "none before the fourth second"


# -- a peer that reads slowly


async def read_until_it_is_noticed(raw: Raw, here: Receiver) -> None:
    """As little as lets our kernel see that something was taken; not enough for it to take more from us."""
    before = wire_of(here).signs()
    with anyio.fail_after(BOUND):
        while wire_of(here).signs() == before or wire_of(here).signs().acknowledged == before.acknowledged:
            await raw.stream.receive(65536)


@linux
@pytest.mark.parametrize("url", [TCP, WS])
async def test_slow_progress_in_writing_is_progress(anyio_backend: Any, url: str) -> None:
    """The kernel takes more only when a third of its 4 MiB is free: at 20 kB/s that is a minute."""
    async with (
        running(anyio_backend, Limits(message=2_000_000)) as host,
        serving(host, url) as server,
        opened(server) as (raw, here),
    ):
        await fill(here)
        here.transport.send(bytes(2_000_000))
        now = host.time()
        here.transport.tick(now)
        for _ in range(4):
            await read_until_it_is_noticed(raw, here)
            now += 7
            here.transport.tick(now)
            assert here.why is None
            if not wire_of(here).backlog():  # uvloop takes all of it as soon as there is room
                await fill(here)


async def test_a_ping_that_has_arrived_is_waited_for_no_longer_whatever_is_written_after_it(
    anyio_backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel of a process that hangs goes on to acknowledge."""
    async with joined(anyio_backend, WS) as (host, here, there):
        there.transport.pause_reading()  # type: ignore[attr-defined]
        wire = wire_of(here)
        told = Signs(0.1, 0, 0, 0)
        monkeypatch.setattr(type(wire), "signs", lambda self: told)
        now = host.time()
        for second in range(40):
            told = Signs(0.0, 0, 1000 * second, 5000)
            here.transport.tick(now + second)
            await anyio.wait_all_tasks_blocked()  # what was written leaves
            if not is_open(here):
                break
        # Pinged at 15; five seconds for what is before it, then eight.
        assert second == 28
        assert (await here.end()).reason == "no answer to ping within 8 s"
