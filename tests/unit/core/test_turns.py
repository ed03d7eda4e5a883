"""Handlers that keep the event loop busy: who asks for much waits for itself."""

from typing import Any

import anyio
import pytest
from attrs import frozen

from polybus import Bus, connect
from polybus._core.runtime.workers import in_turn
from tests.loops import both_backends  # noqa: F401
from tests.support import bounded
from tests.unit.core.test_stall_warnings import Clock

pytestmark = pytest.mark.anyio


@frozen
class Asked:
    party: tuple[str, str]
    number: int = 0


def turns(text: str) -> str:
    """Order in which jobs run. Each is a link, the first letter of which is its address."""
    jobs: list[Any] = [Asked((link[0], link), number) for number, link in enumerate(text.split())]
    ordered: list[Any] = in_turn(jobs)
    for link in set(text.split()):
        numbers = [job.number for job in ordered if job.party[1] == link]
        assert numbers == sorted(numbers), "those of one link keep their order"
    return " ".join(job.party[1] for job in ordered)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("a1 a1 a1 b1", "a1 b1 a1 a1"),
        ("a1 a1 a2 a2 b1 b1", "a1 b1 a2 b1 a1 a2"),
        ("a1 a1 a1 a2 a3 b1", "a1 b1 a2 a3 a1 a1"),
        ("b1 a1 b1 a1", "b1 a1 b1 a1"),
        ("a1", "a1"),
    ],
)
def test_addresses_take_turns_and_so_do_the_links_of_each(given: str, expected: str) -> None:
    assert turns(given) == expected


@pytest.mark.parametrize("waits", [False, True], ids=["without a wait", "that wait at their end"])
@bounded
async def test_a_request_is_not_behind_all_that_another_peer_has_asked_before(waits: bool) -> None:
    bus, clock, begun = Bus(), Clock(), list[str]()

    @bus.handle("work")
    async def work(body: str) -> None:
        begun.append(body)
        clock.block(0.02)
        if waits:
            await anyio.lowlevel.checkpoint()

    async with bus.serve("ubre+memory://busy") as listener, connect(listener.url) as greedy, connect(listener.url) as modest:
        bus._services.running.workers.stalls.clock = clock
        replies = [greedy.request("work", "greedy") for _ in range(60)]
        await anyio.lowlevel.checkpoint()
        await modest.request("work", "modest")
        for reply in replies:
            await reply
    assert len(begun) == 61
    assert begun.index("modest") < 20
