"""The two drivers of byte connections, each alone, and the accept loop."""

import errno
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import anyio
import pytest
from anyio.abc import ByteStream, SocketStream
from anyio.streams.stapled import StapledByteStream

from polybus.plugins import Closed
from polybus.transports import sockets
from polybus.transports._stream.dial import open_wire
from polybus.transports._stream.pump_wire import PumpWire
from polybus.transports._stream.wire import BURST, GATHERED, LEAST, RATION, Rations
from polybus.transports.tcp import TcpTransport
from tests.loops import every_loop  # noqa: F401  # a fixture
from tests.support import BOUND

from .support import Host, Raw, Receiver, dial, raw_peer, running, serving


@asynccontextmanager
async def pumped(host: Host) -> AsyncIterator[tuple[Receiver, Raw]]:
    """A transport over a pump, on any event loop, and the bare other end."""
    left, right = tcp_pair()
    here, there = await SocketStream.from_socket(left), await SocketStream.from_socket(right)
    async with there:
        yield attached(host, here), Raw(there)


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        left = socket.create_connection(listener.getsockname())
        right, _ = listener.accept()
    for sock in (left, right):
        sock.setblocking(False)
    return left, right


def attached(host: Host, stream: ByteStream) -> Receiver:
    wire = PumpWire(stream, host, "somewhere")
    transport = TcpTransport("tcp", wire, host)
    wire.attach(transport)
    receiver = Receiver(transport)
    host.receivers.append(receiver)
    transport.start(receiver)
    return receiver


async def test_a_pump_writes_everything_before_it_hangs_up(anyio_backend: Any) -> None:
    async with running(anyio_backend) as host, pumped(host) as (here, raw):
        here.transport.send(b"x" * 500_000)
        here.transport.close(1001, "bye")
        assert len(await raw.rest()) == 4 + 500_000 + 8 + 3
        await raw.stream.send_eof()
        assert await here.end() == Closed(1001, "bye")


class Failing(StapledByteStream):
    """A stream whose sends break."""

    async def send(self, item: bytes) -> None:
        raise anyio.BrokenResourceError from ConnectionResetError(errno.ECONNRESET, "reset")


async def test_a_pump_whose_write_fails_says_why(anyio_backend: Any) -> None:
    left, right = tcp_pair()
    async with running(anyio_backend) as host:
        stream = await SocketStream.from_socket(left)
        here = attached(host, Failing(stream, stream))
        here.transport.send(b"x")
        assert await here.end() == Closed(1006, "connection reset by the peer", errno=errno.ECONNRESET)
        right.close()


async def test_accepting_pauses_without_file_descriptors_and_goes_on(
    anyio_backend: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real = sockets._accept
    failures = [errno.EMFILE, errno.EMFILE, errno.ECONNABORTED, errno.ENFILE]
    monkeypatch.setattr(sockets, "_PAUSE", 0.001)

    async def failing(sock: socket.socket) -> tuple[socket.socket, Any]:
        if failures:
            raise OSError(failures.pop(0), "out of files")
        return await real(sock)

    monkeypatch.setattr(sockets, "_accept", failing)
    async with running(anyio_backend) as host, serving(host, "tcp://127.0.0.1:0", echo=True) as server:
        here = await dial(host, server.url)
        here.transport.send(b"x")
        assert await here.received(1) == [b"x"]
    assert failures == []
    assert [record.message for record in caplog.records].count(
        f"{server.url}: accepting pauses: too many open files in this process"
    ) == 1


@pytest.mark.parametrize("anyio_backend", [("asyncio", {"use_uvloop": False})], ids=["asyncio"])
async def test_a_peer_that_cuts_its_connection_fills_no_log(anyio_backend: Any, caplog: pytest.LogCaptureFixture) -> None:
    left, right = tcp_pair()
    async with running(anyio_backend) as host:
        wire = await open_wire(left, "somewhere", host, None)
        right.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        right.close()
        for turn in range(20):  # all before the event loop tells of it
            wire.write(bytes(BURST))
            wire.write_first(bytes(BURST), turn)
        receiver = Lost()
        wire.attach(receiver)
        with anyio.fail_after(BOUND):
            await receiver.lost.wait()
    assert not [record for record in caplog.records if record.name == "asyncio"]


async def test_what_is_made_in_a_turn_leaves_together_where_the_peer_only_passes_it_on(anyio_backend: Any) -> None:
    left, right = tcp_pair()
    async with running(anyio_backend) as host:
        wire = await open_wire(left, "somewhere", host, None)
        wire.burst = GATHERED
        with right:
            right.setblocking(False)
            for _ in range(50):
                wire.write(bytes(GATHERED // 64))
            with pytest.raises(BlockingIOError):
                right.recv(1)
            await anyio.wait_readable(right)
            assert len(right.recv(GATHERED)) == 50 * (GATHERED // 64)
        wire.abort()


class Lost:
    """A user of a wire that only waits for its end."""

    def __init__(self) -> None:
        self.lost = anyio.Event()

    def wire_lost(self, error: Exception | None) -> None:
        self.lost.set()

    def data_received(self, data: bytes) -> None: ...
    def eof_received(self) -> None: ...
    def pause_writing(self) -> None: ...
    def resume_writing(self) -> None: ...


async def test_who_may_not_write_any_more_is_told_before_the_end_is(anyio_backend: Any) -> None:
    async with running(anyio_backend) as host, pumped(host) as (here, raw):
        await raw.stream.aclose()
        await here.end()
        assert here.pauses == 1


async def test_leaving_the_bus_ends_those_who_are_still_in_their_handshake(anyio_backend: Any) -> None:
    async with running(anyio_backend) as outer:
        async with running(anyio_backend) as host:
            async with serving(host, "ws://127.0.0.1:0/") as server:
                raw = Raw(await anyio.connect_tcp("127.0.0.1", server.port))
                await raw.send(b"GET / HTTP/1.1\r\n")
                await server.gate.until(lambda: server.gate.knocks == 1)
        assert await raw.rest() == b""
        await raw.stream.aclose()
        assert outer.tasks == 0


async def test_those_that_send_as_fast_as_they_can_share_what_is_read_in_one_turn(anyio_backend: Any) -> None:
    many, each = 24, 100_000
    async with running(anyio_backend) as host, serving(host, "tcp://127.0.0.1:0") as server, AsyncExitStack() as stack:
        receivers: list[Receiver] = []
        transports: list[Any] = []
        for number in range(many):
            raw = await stack.enter_async_context(raw_peer(server))
            receivers.append(await server.gate.peer(number))
            transports.append(receivers[-1].transport)
            transports[-1].pause_reading()
            await raw.send(struct.pack("!I", 96) + b"x" * 96)
            await raw.send((struct.pack("!I", 96) + b"x" * 96) * (each // 100))
        for transport in transports:
            transport.resume_reading()
        seen, most = 0, 0
        with anyio.fail_after(BOUND):
            while seen < many * (each // 100 + 1):
                await anyio.lowlevel.checkpoint()
                now = sum(len(receiver.frames) for receiver in receivers)
                seen, most = now, max(most, now - seen)
        assert most * 100 <= 2 * (RATION + many * LEAST), "trio takes two of its turns for one of ours"


async def test_one_that_is_alone_again_gets_all_of_the_ration() -> None:
    turns: list[Callable[[], None]] = []
    rations = Rations(turns.append)
    for hungry, expected in ((4, RATION // 4), (1000, LEAST), (1, RATION)):
        for _ in range(hungry):
            rations.filled(rations.size)
            assert rations.size >= LEAST
        (turn,) = turns
        turns.clear()
        turn()
        assert rations.size == expected
    rations.filled(RATION // 2)
    rations.filled(RATION // 2, again=True)
    assert rations.enough(RATION)
    turns.pop()()
    assert rations.size == RATION, "it was one"
    rations.filled(RATION, again=True)
    turns.pop()()
    assert rations.size == RATION


@pytest.mark.parametrize("anyio_backend", [("asyncio", {"use_uvloop": False})], ids=["asyncio"])
async def test_a_frame_that_may_go_first_goes_at_once_unless_one_went_in_this_turn_or_others_wait(anyio_backend: Any) -> None:
    left, right = tcp_pair()
    async with running(anyio_backend) as host:
        wire = await open_wire(left, "somewhere", host, None)
        with right:
            right.setblocking(False)
            wire.write_first(b"1", 7)
            assert right.recv(9) == b"1"
            wire.write_first(b"2", 7)  # the second one of its turn leaves with the others
            wire.write_first(b"3", 8)  # and none overtakes it
            wire.write(b"4")
            with pytest.raises(BlockingIOError):
                right.recv(1)
            await anyio.wait_readable(right)
            assert right.recv(9) == b"234"
            wire.shut = True
            wire.write_first(b"5", 9)
            await anyio.lowlevel.checkpoint()
            with pytest.raises(BlockingIOError):
                right.recv(1)
        receiver = Lost()
        wire.attach(receiver)
        wire.abort()
        with anyio.fail_after(BOUND):
            await receiver.lost.wait()
