"""Ports to other processes: standard input and output, pipes of `multiprocessing`."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.to_thread
import pytest
from anyio.abc import ByteStream, Process
from hypothesis import given
from hypothesis import strategies as st

from polybus import Bus, ConnectFailed, Disconnected, Limits, connect
from polybus._util.event_loop import running_loop
from polybus.errors import LocalProtocolError
from polybus.transports.postmessage import PipePort, PortTransport, StdioPort
from polybus.transports.postmessage._stream_port import _Lengths, _Lines
from tests.loops import ASYNCIO, PARAMS, TRIO, both_backends  # noqa: F401
from tests.support import BOUND, eventually
from tests.unit.transports.postmessage import pipe_child

SERVING = "-m", "tests.unit.transports.postmessage.pipe_child"
# Without polybus: JSON, line by line.
BARE = (
    "-c",
    """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    print(json.dumps({"success": asked["id"], "body": 2 * asked["body"]}), flush=True)
""",
)


@asynccontextmanager
async def child(*arguments: str) -> AsyncIterator[Process]:
    process = await anyio.open_process([sys.executable, *arguments], stderr=None)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        with anyio.CancelScope(shield=True):
            await process.wait()
            await process.aclose()


@pytest.mark.anyio
@pytest.mark.native
@pytest.mark.parametrize(("framing", "dies"), [("length", False), ("lines", True)])
async def test_a_bus_in_a_child_process_over_its_standard_streams(framing: Any, dies: bool, anyio_backend_name: str) -> None:
    with anyio.fail_after(BOUND):
        async with child(*SERVING, anyio_backend_name, framing) as process:
            port = StdioPort(process, framing=framing)
            async with connect(PortTransport(port), protocol="ubre", limits=Limits(handshake_timeout=BOUND)) as bus:
                await doubles_and_echoes(bus)
                if dies:
                    with pytest.raises(Disconnected) as caught:
                        await bus.request("die")
                    assert caught.value.reason == "the other end has closed its side"
            assert await process.wait() == (7 if dies else 0), "it has seen that we are gone"


async def doubles_and_echoes(bus: Bus) -> None:
    replies = [bus.request("double", number) for number in range(50)]
    assert [await reply for reply in replies] == [2 * number for number in range(50)]
    large = "x\u00fc\U0001f600" * 60_000
    assert await bus.request("echo", large) == large


@pytest.mark.anyio
@pytest.mark.native
async def test_a_bare_child_that_speaks_line_by_line() -> None:
    with anyio.fail_after(BOUND):
        async with child(*BARE) as process:
            port = StdioPort(process, framing="lines")
            async with connect(PortTransport(port, bare=True), protocol="ubre") as bus:
                assert await bus.request("double", 21) == 42
            assert await process.wait() == 0


@pytest.mark.anyio
@pytest.mark.native
async def test_a_child_that_does_not_start_is_connect_failed() -> None:
    with anyio.fail_after(BOUND):
        async with child("-c", "raise SystemExit(3)") as process:
            with pytest.raises(ConnectFailed, match="closed its side"):
                async with connect(PortTransport(StdioPort(process)), protocol="ubre", limits=Limits(handshake_timeout=BOUND)):
                    raise AssertionError("connected")


@pytest.mark.anyio
@pytest.mark.native
async def test_lines_carry_no_binary_protocol() -> None:
    port = StdioPort(_stream(), framing="lines")
    with pytest.raises(LocalProtocolError, match="framing='length'"):
        port.post(b"\x12\0\0\0")
    with pytest.raises(LocalProtocolError, match="without line breaks"):
        port.post("two\nlines")


@pytest.mark.anyio
@pytest.mark.native
async def test_a_peer_that_does_not_read_ends_the_port() -> None:
    port = StdioPort(_stream())
    ends: list[str] = []
    port.on_close(ends.append)
    for _ in range(10):
        port.post("x" * 1024 * 1024)
    assert len(ends) == 1
    assert "does not read" in ends[0]


class Pipe(ByteStream):
    """Takes the first bytes, and the rest when it is let; nothing ever comes."""

    def __init__(self) -> None:
        self.written = b""
        self.gate = anyio.Event()

    async def send(self, item: bytes) -> None:
        self.written += item[:10]
        await self.gate.wait()
        self.written += item[10:]

    async def receive(self, max_bytes: int = 65536) -> bytes:
        await anyio.sleep_forever()
        raise AssertionError

    async def send_eof(self) -> None:
        raise AssertionError

    async def aclose(self) -> None:
        pass


@asynccontextmanager
async def writing(pipe: Pipe) -> AsyncIterator[StdioPort]:
    """A port that is in the middle of a message when the block is left, and is cancelled then."""
    port = StdioPort(pipe)
    with anyio.fail_after(BOUND):
        async with anyio.create_task_group() as group:
            group.start_soon(port.run)
            port.post("x" * 100)
            await eventually(lambda: pipe.written)
            yield port
            group.cancel_scope.cancel()


@pytest.mark.anyio
@pytest.mark.native
@pytest.mark.parametrize("closes", [True, False])
async def test_a_message_leaves_whole_though_the_bus_is_left(closes: bool) -> None:
    pipe = Pipe()
    async with writing(pipe) as port:
        port.post("y" * 100)
        if closes:
            port.close()
        running_loop().call_soon(lambda: running_loop().call_soon(pipe.gate.set))
    assert _Lengths(1000).feed(pipe.written) == ["x" * 100, "y" * 100]


@pytest.mark.anyio
@pytest.mark.native
@pytest.mark.parametrize("closes", [True, False])
async def test_nothing_follows_a_message_that_was_cut(closes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polybus.transports.postmessage._stream_port._LAST_WORDS", 0.01)
    pipe = Pipe()
    async with writing(pipe) as port:
        port.post("y" * 100)
        if closes:
            port.close()
    assert len(pipe.written) == 10


def _stream() -> Any:
    from anyio.streams.stapled import StapledByteStream

    return StapledByteStream(None, None)  # type: ignore[arg-type]  # never run


def test_what_is_neither_process_nor_stream_is_refused() -> None:
    with pytest.raises(TypeError, match="open_process"):
        StdioPort(object())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="'length' or 'lines'"):
        StdioPort(_stream(), framing="words")  # type: ignore[arg-type]


@given(st.lists(st.one_of(st.text(), st.binary()), max_size=8), st.lists(st.integers(0, 400), max_size=20))
def test_lengths_give_back_what_was_framed_however_it_is_cut(messages: list[Any], cuts: list[int]) -> None:
    framing = _Lengths(1000)
    data = b"".join(framing.frame(message) for message in messages)
    edges = sorted({0, len(data), *(min(cut, len(data)) for cut in cuts)})
    found: list[Any] = []
    for start, end in zip(edges, edges[1:], strict=False):
        found += framing.feed(data[start:end])
    assert found == messages


@given(st.binary())
def test_any_bytes_are_messages_or_a_value_error(data: bytes) -> None:
    for framing in (_Lengths(1000), _Lines(1000)):
        try:
            framing.feed(data)
        except ValueError as error:
            assert "limit is 1000" in str(error)


def test_too_large_is_refused_from_the_head() -> None:
    with pytest.raises(ValueError, match="1001 bytes, the limit is 1000"):
        _Lengths(1000).feed((1001).to_bytes(4, "big"))
    with pytest.raises(ValueError, match="more than 1000 bytes"):
        _Lines(1000).feed(b"x" * 1001)
    assert _Lines(1000).feed(b"one\r\n\ntwo\n\xff\nre") == ["one", "two", b"\xff"]


# -- pipes ---------------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def other_process(target: Any) -> AsyncIterator[tuple[Any, Any]]:
    """A process and our end of the pipe to it."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=target, args=(theirs,), daemon=True)
    await anyio.to_thread.run_sync(process.start)
    theirs.close()
    try:
        yield process, ours
    finally:
        with anyio.CancelScope(shield=True):
            process.kill()
            await anyio.to_thread.run_sync(process.join)
            process.close()


@pytest.mark.anyio
@pytest.mark.native
async def test_a_bus_in_another_process_over_a_pipe() -> None:
    with anyio.fail_after(BOUND):
        async with other_process(pipe_child.serve) as (process, ours):
            port = PipePort(ours)
            async with connect(PortTransport(port), protocol="ubre", limits=Limits(handshake_timeout=BOUND)) as bus:
                await doubles_and_echoes(bus)
            await anyio.to_thread.run_sync(process.join, BOUND)
            assert process.exitcode == 0
        assert ours.closed


@pytest.mark.anyio
@pytest.mark.native
@pytest.mark.parametrize("anyio_backend", [PARAMS[ASYNCIO], PARAMS[TRIO]])
async def test_a_process_that_dies_fails_what_is_pending_on_its_pipe() -> None:
    with anyio.fail_after(BOUND):
        async with other_process(pipe_child.serve) as (_, ours):
            async with connect(PortTransport(PipePort(ours)), protocol="ubre", limits=Limits(handshake_timeout=BOUND)) as bus:
                with pytest.raises(Disconnected) as caught:
                    await bus.request("die")
                assert caught.value.reason.startswith(("the other end has closed", "the pipe is broken"))


@pytest.mark.anyio
@pytest.mark.native
async def test_both_ends_of_a_pipe_in_one_process() -> None:
    ours, theirs = multiprocessing.Pipe()
    server = Bus()

    @server.handle("add")
    async def add(body: int) -> int:
        return body + 1

    with anyio.fail_after(BOUND):
        async with (
            server.serve(PortTransport(PipePort(theirs)), protocol="ubre"),
            connect(PortTransport(PipePort(ours)), protocol="ubre") as bus,
        ):
            assert await bus.request("add", 1) == 2
        assert ours.closed
        assert theirs.closed
