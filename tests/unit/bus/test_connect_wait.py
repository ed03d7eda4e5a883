"""connect(wait=...)"""

import pytest

from polybus import Backoff, Bus, ConnectFailed, connect
from polybus.events import LinkRetrying


@pytest.mark.anyio
async def test_a_pause_longer_than_the_wait_is_cut_to_what_is_left_of_it() -> None:
    bus = Bus()
    events = bus.events()
    patient = Backoff(initial=100, maximum=100, jitter=False)
    with pytest.raises(ConnectFailed):
        async with connect("ubre+memory://nobody", bus=bus, wait=0.01, backoff=patient):
            pass
    retry = await anext(events)
    assert isinstance(retry, LinkRetrying)
    assert retry.delay < 1
