"""The tasks of a bus and what they hold."""

import gc

import anyio
import pytest

from polybus import Bus, Peer, connect
from polybus.testing import World, simulated

pytestmark = pytest.mark.native


@simulated()
async def test_of_links_that_have_been_up_for_a_while_nothing_is_left(world: World) -> None:
    server = Bus()
    async with server.serve("ubre+memory://left"):
        async with connect(world.to("memory://left"), protocol="ubre"):
            await anyio.sleep(5)
            (gone,) = {peer.id for peer in server.peers}
        await anyio.sleep(5)
        gc.collect()
        assert gone not in {peer.id for peer in gc.get_objects() if isinstance(peer, Peer)}
