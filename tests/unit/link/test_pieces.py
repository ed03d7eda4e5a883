"""Frames of very many messages: others have their turns while one is handled, and nothing of it is lost or comes late."""

import json
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import Mock

import anyio
import anyio.abc
import anyio.lowlevel
import pytest

from polybus import Bus
from polybus._core.link.receiver import ConnectionReceiver
from tests.support import BOUND, eventually

COUNT = 10_000
ASSOCIATE = [{"ToSubject": "ServerBus", "CommandType": "Associate", "RemoteServices": "ClientBus"}]


def framed(payload: bytes) -> bytes:
    return struct.pack(">I", len(payload)) + payload


def payload(messages: list[dict[str, Any]]) -> bytes:
    return framed(json.dumps(messages).encode())


LONG = payload([{"ToSubject": "news", "Value": n} for n in range(COUNT)])


def together(size: int) -> bytes:
    """64 KiB of frames with bodies of that size."""
    return payload([{"ToSubject": "news", "Value": "x" * size}]) * (64 * 1024 // size)


@asynccontextmanager
async def stranger(url: str) -> AsyncIterator[anyio.abc.SocketStream]:
    """Somebody who has associated."""
    port = int(url.rpartition(":")[2])
    with anyio.fail_after(BOUND):
        async with await anyio.connect_tcp("127.0.0.1", port) as stream:
            await stream.send(payload(ASSOCIATE))
            await stream.receive()
            yield stream


@pytest.mark.parametrize(
    ("frames", "count", "most"),
    [
        (LONG, COUNT, COUNT // 10),
        (together(10), 64 * 1024 // 10, 32 * 1024 // 42),
        (together(2000), 64 * 1024 // 2000, 32 * 1024 // 2032),
    ],
    ids=["a frame of very many messages", "many small frames", "many large frames"],
)
async def test_others_run_while_what_came_together_is_handled(
    frames: bytes, count: int, most: int, anyio_backend_name: str
) -> None:
    bus, turns, seen = Bus(), 0, list[int]()

    @bus.on("news", queue=COUNT, inline=True)
    def on_news(body: int | str) -> None:
        seen.append(turns)

    async def take_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await anyio.lowlevel.checkpoint()

    async with (
        bus.serve("jrep+tcp://127.0.0.1:0") as server,
        stranger(server.url) as stream,
        anyio.create_task_group() as group,
    ):
        group.start_soon(take_turns)
        await stream.send(frames)
        await eventually(lambda: len(seen) == count)
        group.cancel_scope.cancel()
    if frames is LONG or anyio_backend_name == "asyncio":
        assert max(seen.count(turn) for turn in set(seen)) <= most
    else:  # trio may give several turns to one
        assert len(set(seen)) > 1


async def test_a_long_frame_is_handled_to_its_end_in_order_also_when_its_sender_leaves_at_once() -> None:
    bus, seen = Bus(), list[int]()

    @bus.on("news", queue=COUNT)
    async def on_news(body: int) -> None:
        seen.append(body)

    many = [{"ToSubject": "news", "Value": n} for n in range(COUNT)]
    async with bus.serve("jrep+tcp://127.0.0.1:0") as server:
        async with stranger(server.url) as stream:
            await stream.send(payload(many[:6000]) + payload(many[6000:6001]) + payload(many[6001:]))
        await eventually(lambda: len(seen) == COUNT)
    assert seen == list(range(COUNT))


async def test_of_a_long_frame_no_more_is_read_than_ends_the_link() -> None:
    bus = Bus()
    async with bus.serve("jrep+tcp://127.0.0.1:0") as server, stranger(server.url) as stream:
        bad = b"[" + b",".join([b'{"ToSubject":"x","Value":NaN}'] * COUNT) + b"]"
        await stream.send(framed(bad))
        await eventually(lambda: not bus.peers)
    assert bus.stats().malformed == bus.limits.bad_messages + 1


def test_what_comes_over_a_transport_that_cannot_pause_waits_up_to_a_mebibyte_and_is_handled_at_once_beyond() -> None:
    link = Mock(ending=False)
    halves = Mock(pieces=lambda frame: [frame[:20_000], frame[20_000:]])
    receiver = ConnectionReceiver(link, Mock(spec=["send", "close"]), halves)
    sent = [b"long" * 20_000]
    receiver.frames_received(sent)  # its second half waits for a turn
    while sum(map(len, sent[1:])) <= 1024 * 1024:
        assert link.frames_received.call_count == 1
        sent.append(b"x" * 100_000)
        receiver.frames_received(sent[-1:])
    assert b"".join(frame for (frames,), _ in link.frames_received.call_args_list for frame in frames) == b"".join(sent)
