"""What the in-process ports have beyond the table: shuffled delivery, messages that cannot be read, refusals."""

import random
from typing import Any

import pytest

from polybus import Bus, Disconnected, connect
from polybus.transports.postmessage import ClonedError, DataCloneError, MessageChannel, PortTransport, Unreadable
from tests.support import eventually
from tests.unit.transports.postmessage.table import settle


async def shuffled(seed: int | None) -> list[tuple[int, int]]:
    """In which order the messages of three channels arrive that were posted in turns."""
    shuffle = None if seed is None else random.Random(seed)
    heard: list[tuple[int, int]] = []
    channels = [MessageChannel(shuffle=shuffle) for _ in range(3)]
    for channel in channels:
        channel.port2.on_message(lambda data: heard.append(tuple(data)))
    for number in range(20):
        for place, channel in enumerate(channels):
            channel.port1.post([place, number])
    await eventually(lambda: len(heard) == 60)
    return heard


async def test_shuffled_ports_overtake_each_other_and_keep_their_own_order() -> None:
    plain = await shuffled(None)
    seen = [await shuffled(seed) for seed in range(5)]
    for heard in seen:
        assert heard != plain
        for place in range(3):
            assert [number for each, number in heard if each == place] == list(range(20))
    assert len({tuple(heard) for heard in seen}) == 5
    assert await shuffled(3) == seen[3], "the same seed gives the same order"


async def test_a_message_that_cannot_be_read_ends_the_connection_and_says_why() -> None:
    """A frame is lost, and nobody can tell whose: so that nobody waits for it."""
    channel = MessageChannel()
    bus = Bus()
    async with bus.serve(PortTransport(channel.port2), protocol="ubre") as listener:
        async with connect(PortTransport(channel.port1), protocol="ubre") as client:
            asked = client.request("nobody")
            channel.port1.post(Unreadable())
            with pytest.raises(Exception, match="nobody"):
                await asked  # it came before
            lost = client.request("nobody")
            with pytest.raises(Disconnected, match="a message came that cannot be read here"):
                await lost
        await eventually(lambda: not listener.peers)


async def test_what_an_exception_or_a_set_hides_is_no_surprise() -> None:
    class Silent(Exception):
        def __str__(self) -> str:
            raise RuntimeError("not even its text")

    channel = MessageChannel()
    heard: list[Any] = []
    channel.port2.on_message(heard.append)
    with pytest.raises(DataCloneError, match="a tuple in a set"):
        channel.port1.post([{(1, 2)}])
    channel.port1.post(Silent())
    await settle()
    assert heard == [ClonedError("Silent", "")]
