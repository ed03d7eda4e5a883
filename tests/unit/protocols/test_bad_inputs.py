"""What each bad input does to a bus, in memory: the declared effect and no other; the next good request is answered."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from polybus import Bus, Limits
from polybus.events import FrameRefused
from tests.support import next_event
from tests.unit.protocols.by_hand import TABLES, Wire
from tests.unit.transports.support import dial, running
from tests.vectors.bad_inputs import Bad

UNBOUNDED = Limits(message=10_000_000)
"""Of the peer by hand."""
NAMES = itertools.count()


@pytest.mark.parametrize(
    ("spoken", "bad"),
    [pytest.param(one, bad, id=f"{one.__name__}-{name}") for one, table in TABLES.items() for name, bad in table.items()],
)
async def test_a_bad_input_has_its_effect_alone(spoken: Callable[[int | None], Wire], bad: Bad, anyio_backend: Any) -> None:
    wire, bus = spoken(bad.at), Bus()

    @bus.handle("echo")
    async def echo(body: Any) -> Any:
        return body

    async with (
        running(anyio_backend, UNBOUNDED) as host,
        bus.serve(f"{wire.adapter.name}+memory://bad-{next(NAMES)}", protocol=wire.adapter) as listener,
    ):
        events = bus.events()
        peer = await dial(host, listener.url.partition("+")[2])
        for frame in (*wire.greeting, *bad.sent, wire.good):
            peer.transport.send(frame)
        await peer.until(lambda: peer.why is not None or any(wire.answers in frame for frame in peer.frames))
        if bad.closed is None:
            assert peer.why is None
            told = wire.told(peer.frames)
            assert len(told) == (bad.told is not None)
            assert not told or (bad.told in told[0] if isinstance(bad.told, str) else told[0] == bad.told)
        else:
            assert peer.why is not None and peer.why.code == bad.closed
        assert bus.stats().malformed == len(bad.refused)
        assert [(await next_event(events, FrameRefused)).reason for _ in bad.refused] == list(bad.refused)
