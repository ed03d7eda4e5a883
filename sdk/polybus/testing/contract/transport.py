"""Contract tests for transports."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import anyio
import pytest
from attrs import define, field

from ... import Bus, BusError, ConnectFailed, Forbidden, Handshake, Identity, TooLarge, Unauthorized
from ...integrations import host_of
from ...plugins import Admission, Closed, DialOptions, Host, Listening, ListenOptions, Transport, TransportAdapter
from ._base import Ground, ground_of, suite

_FORM: Any = {"reads": frozenset({"text", "binary"}), "writes": "binary", "subprotocol": "test"}


@define(eq=False)
class FrameReceiver:
    transport: Transport
    frames: list[bytes] = field(factory=list)
    why: Closed | None = None
    paused: bool = False
    pauses: int = 0
    _news: anyio.Event = field(factory=anyio.Event)

    def frames_received(self, frames: Sequence[bytes]) -> None:
        assert self.why is None, "frames after closed()"
        self.frames += frames
        self._tell()

    def closed(self, why: Closed) -> None:
        assert self.why is None, "closed() is called once"
        self.why = why
        self._tell()

    def pause_writing(self) -> None:
        assert not self.paused
        self.paused, self.pauses = True, self.pauses + 1
        self._tell()

    def resume_writing(self) -> None:
        assert self.paused
        self.paused = False
        self._tell()

    def _tell(self) -> None:
        self._news.set()
        self._news = anyio.Event()

    async def until(self, condition: Callable[[], Any]) -> None:
        while not condition():
            await self._news.wait()

    async def received(self, count: int) -> list[bytes]:
        await self.until(lambda: len(self.frames) >= count or self.why is not None)
        assert len(self.frames) >= count, self.why
        return self.frames

    async def ended(self) -> Closed:
        await self.until(lambda: self.why is not None)
        assert self.why is not None
        return self.why


@define(eq=False)
class StubGate:
    refusal: BusError | None = None
    inside: list[FrameReceiver] = field(factory=list)
    _news: anyio.Event = field(factory=anyio.Event)

    def knock(self, address: str) -> BusError | None:
        return None

    def left(self, address: str) -> None:
        pass

    def admit(self, handshake: Handshake, decided: Callable[[Admission | BusError], None]) -> None:
        decided(self.refusal or Admission(Identity("somebody"), handshake))

    def opened(self, transport: Transport, admission: Admission) -> None:
        assert admission.identity.value == "somebody"
        self.inside.append(FrameReceiver(transport))
        transport.start(self.inside[-1])
        self._news.set()

    async def came(self) -> FrameReceiver:
        await self._news.wait()
        return self.inside[0]


class TransportContract:
    make: ClassVar[Any]
    ground: ClassVar[Any]

    @asynccontextmanager
    async def listening(self, door: StubGate) -> AsyncIterator[tuple[Host, Listening]]:
        async with type(self).ground() as address, Bus() as bus:
            host = host_of(bus)
            options = ListenOptions(host=host, gate=door, protocol="test", **_FORM)
            listening = await type(self).make().listen(address, options)
            try:
                yield host, listening
            finally:
                with anyio.CancelScope(shield=True):
                    await listening.aclose()
                    for recorder in door.inside:
                        recorder.transport.abort(Closed(1006, "the test is over"))
                        await recorder.ended()

    async def dial(self, host: Host, listening: Listening) -> FrameReceiver:
        connector = type(self).make().connector(listening.url)
        recorder = FrameReceiver(await connector.connect(DialOptions(host=host, **_FORM)))
        recorder.transport.start(recorder)
        return recorder

    @asynccontextmanager
    async def joined(self) -> AsyncIterator[tuple[FrameReceiver, FrameReceiver]]:
        door = StubGate()
        async with self.listening(door) as (host, listening):
            here = await self.dial(host, listening)
            try:
                yield here, await door.came()
            finally:
                with anyio.CancelScope(shield=True):
                    here.transport.abort(Closed(1006, "the test is over"))
                    await here.ended()

    async def test_frames_of_all_sizes_arrive_whole_and_in_order_both_ways(self) -> None:
        async with self.joined() as (here, there):
            largest = here.transport.max_frame
            frames = [bytes([number]) * size for number, size in enumerate((1, 2, 125, 126, 65_535, 65_536, largest, 3))]
            for one, other in ((here, there), (there, here)):
                for frame in frames:
                    one.transport.send(frame)
                assert await other.received(len(frames)) == frames

    async def test_many_frames_sent_in_one_turn_arrive_in_order(self) -> None:
        async with self.joined() as (here, there):
            frames = [b"%d" % number for number in range(2000)]
            for frame in frames:
                here.transport.send(frame)
            assert await there.received(2000) == frames

    async def test_both_ends_describe_themselves(self) -> None:
        async with self.joined() as (here, there):
            assert here.transport.name == there.transport.name == type(self).make().name
            assert here.transport.address
            assert here.transport.max_frame > 0
            assert here.transport.hops >= 0
            assert here.transport.write_backlog() == 0

    async def test_send_refuses_a_frame_above_the_limit_and_keeps_the_connection(self) -> None:
        async with self.joined() as (here, there):
            with pytest.raises(TooLarge):
                here.transport.send(b"x" * (here.transport.max_frame + 1))
            here.transport.send(b"next")
            assert await there.received(1) == [b"next"]

    async def test_send_and_close_call_no_receiver_before_the_next_turn(self) -> None:
        async with self.joined() as (here, there):
            here.transport.send(b"one")
            assert there.frames == []
            here.transport.close(1000, "")
            assert here.why is None

    async def test_frames_sent_before_close_arrive_before_the_end(self) -> None:
        async with self.joined() as (here, there):
            frames = [b"%d" % number for number in range(100)]
            for frame in frames:
                here.transport.send(frame)
            here.transport.close(1001, "going home")
            here.transport.close(1000, "twice is nothing")
            await there.ended()
            assert there.frames == frames
            assert (await here.ended()).code == 1001
            here.transport.send(b"ignored")

    async def test_abort_ends_both_sides_and_keeps_the_local_reason(self) -> None:
        async with self.joined() as (here, there):
            here.transport.abort(Closed(1006, "enough"))
            assert here.why is None, "the receiver was called from inside abort"
            assert await here.ended() == Closed(1006, "enough")
            assert (await there.ended()).code != 1000

    async def test_a_sender_that_is_too_fast_is_paused_and_resumed(self) -> None:
        async with self.joined() as (here, there):
            block, count = b"x" * 60_000, 0
            while not here.paused and count < 2000:
                here.transport.send(block)
                count += 1
            assert here.paused, "120 MB were taken in one turn"
            assert here.transport.write_backlog() > 0
            here.transport.send(b"what is sent all the same is kept")
            await here.until(lambda: not here.paused)
            assert await there.received(count + 1) == [block] * count + [b"what is sent all the same is kept"]

    async def test_a_refusal_raises_unauthorized_or_forbidden(self) -> None:
        refusals: list[BusError] = [Unauthorized("who are you"), Forbidden("not you")]
        for error in refusals:
            kind, door = type(error), StubGate(refusal=error)
            async with self.listening(door) as (host, listening):
                # Transports without a handshake reject a client by closing the connection.
                with pytest.raises(kind):
                    here = await self.dial(host, listening)
                    raise (await here.ended()).error or AssertionError("closed without an error")
                assert door.inside == []

    async def test_connecting_without_a_listener_raises_connect_failed_with_the_address(self) -> None:
        async with self.listening(StubGate()) as (host, listening):
            url = listening.url
            await listening.aclose()
            with pytest.raises(ConnectFailed) as caught:
                await self.dial(host, listening)
            assert caught.value.url == url
            assert caught.value.reason

    async def test_connections_outlive_their_listener(self) -> None:
        door = StubGate()
        async with self.listening(door) as (host, listening):
            here = await self.dial(host, listening)
            there = await door.came()
            await listening.aclose()
            here.transport.send(b"still here")
            assert await there.received(1) == [b"still here"]
            here.transport.close()
            await here.ended()

    async def test_listening_on_an_address_in_use_raises_os_error(self) -> None:
        async with self.listening(StubGate()) as (host, listening):
            options = ListenOptions(host=host, gate=StubGate(), protocol="test", **_FORM)
            with pytest.raises(OSError, match=r"."):
                await type(self).make().listen(listening.url, options)


def transport_suite(
    make: Callable[[], TransportAdapter], address: str | Ground, *, skip: Mapping[str, str] | None = None
) -> type[Any]:
    """Return the tests for a transport: ``TestMine = transport_suite(MyTransport, "mine://127.0.0.1:0")`` in a test module.

    They are marked ``anyio``, so the ``anyio_backend`` fixture chooses the event loops. Each test has a time limit.

    Args:
        make: The transport's class, or a function that returns the adapter.
        address: Address without the protocol, to listen at repeatedly, or a function that returns an async context manager
            yielding a fresh address.
        skip: Maps names of tests that the transport cannot pass to the reasons.

    Raises:
        ValueError: If `skip` contains an unknown test name.
    """
    ground = ground_of(address) if isinstance(address, str) else address
    members = {"make": staticmethod(make), "ground": staticmethod(ground)}
    return suite("TransportSuite", (TransportContract,), members, None, skip or {})
