"""A link that is left while it is being made anew."""

import anyio

from polybus import Backoff, Bus
from polybus.plugins import Closed, DialOptions, Transport
from tests.support import BOUND

from .numbered import Numbered
from .wires import End


class SlowPlace:
    """The first attempt succeeds at once, the second when it may."""

    url = "slow://"
    reconnects = True

    def __init__(self) -> None:
        self.ends: list[End] = []
        self.ended: list[Closed] = []
        self.dialled, self.go_on, self.over = anyio.Event(), anyio.Event(), anyio.Event()

    async def connect(self, options: DialOptions) -> Transport:
        if self.ends:
            self.dialled.set()
            await self.go_on.wait()
        end = End(options.host, lambda frame: None, self._gone)
        self.ends.append(end)
        return end

    def _gone(self, why: Closed) -> None:
        self.ended.append(why)
        self.over.set()


async def test_a_connection_that_comes_after_its_link_was_left_is_closed() -> None:
    place = SlowPlace()
    with anyio.fail_after(BOUND):
        async with Bus() as bus:
            async with bus.connect(place, protocol=Numbered(), backoff=Backoff(initial=0.001)):
                place.ends[0].lost(Closed(1006, "cut"))
                await place.dialled.wait()
            place.go_on.set()
            await place.over.wait()
            assert bus.stats().links == 0
            assert bus.peers == []
    assert [why.reason for why in place.ended] == ["the link was closed"]
