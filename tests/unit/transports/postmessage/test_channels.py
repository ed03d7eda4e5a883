"""What the in-process ports have beyond the table: shuffled delivery, failing callbacks, unreadable messages."""

import random
from typing import Any

import pytest

from polybus import Bus, Disconnected, connect
from polybus.transports.postmessage import MessageChannel, PortTransport
from tests.support import eventually


async def shuffled(seed: int | None) -> list[tuple[str, int]]:
    """In which order the messages of three channels arrive that were posted in turns."""
    shuffle = None if seed is None else random.Random(seed)
    heard: list[tuple[str, int]] = []
    channels = {place: MessageChannel(shuffle=shuffle) for place in "abc"}
    for channel in channels.values():
        channel.port2.on_message(lambda data: heard.append((data[0], int(data[1:]))))
    for number in range(20):
        for place, channel in channels.items():
            channel.port1.post(f"{place}{number}")
    await eventually(lambda: len(heard) == 60)
    return heard


async def test_shuffled_ports_overtake_each_other_and_keep_their_own_order() -> None:
    plain = await shuffled(None)
    seen = [await shuffled(seed) for seed in range(5)]
    for heard in seen:
        assert heard != plain
        for place in "abc":
            assert [number for each, number in heard if each == place] == list(range(20))
    assert len({tuple(heard) for heard in seen}) == 5
    assert await shuffled(3) == seen[3], "the same seed gives the same order"


async def test_a_callback_that_fails_is_a_line_in_the_log_and_the_next_message_is_delivered(
    caplog: pytest.LogCaptureFixture,
) -> None:
    channel, heard = MessageChannel(), list[str]()

    def take(data: str) -> None:
        heard.append(data)
        raise ValueError("of the application")

    channel.port2.on_message(take)
    for data in ("one", "two"):
        channel.port1.post(data)
    await eventually(lambda: heard == ["one", "two"])
    assert caplog.text.count("a port's callback has failed; the next message is delivered") == 2


async def test_a_message_that_cannot_be_read_ends_the_connection_and_says_why() -> None:
    """A frame is lost, and nobody can tell whose: so that nobody waits for it."""
    channel, tell = MessageChannel(), list[Any]()
    there: Any = channel.port2
    there.on_message_error = tell.append  # as a browser's port has it
    bus = Bus()
    async with bus.serve(PortTransport(there), protocol="ubre") as listener:
        async with connect(PortTransport(channel.port1), protocol="ubre") as client:
            with pytest.raises(Exception, match="nobody"):
                await client.request("nobody")
            lost = client.request("nobody")
            tell[0]()
            with pytest.raises(Disconnected, match="a message came that cannot be read here"):
                await lost
        await eventually(lambda: not listener.peers)
