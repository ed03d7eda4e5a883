"""Asking again while there is time, and dead letters as publications."""

from typing import Any

import anyio
import pytest

from polybus import Backoff, Bus, Code, Conflict, DeadlineExceeded, Forbidden, Message, Unavailable
from polybus.delivery import Retry, publish_dead_letters
from polybus.protocols import UProtocol
from polybus.testing import pair
from tests.support import BOUND

pytestmark = pytest.mark.anyio
QUICK = Backoff(initial=0.001, maximum=0.002)


def failing(times: int, error: Exception) -> tuple[Bus, list[float | None]]:
    """A bus whose handler fails at first, and the time that its requests had."""
    bus, seen = Bus(), list[float | None]()

    @bus.handle("work")
    async def work(message: Message) -> str:
        seen.append(message.ttl)
        if len(seen) <= times:
            raise error
        return "done"

    return bus, seen


@pytest.mark.parametrize("protocol", ["ubre", "uprotocol"])
async def test_it_is_asked_again_with_the_time_that_is_left(protocol: str) -> None:
    bus, seen = failing(3, Unavailable("not yet"))
    with anyio.fail_after(BOUND):
        async with pair(bus, protocol=protocol) as client:
            # Pauses of more than the millisecond in which the wire, and the clock of uvloop, count.
            paused = Retry(backoff=Backoff(initial=0.01, maximum=0.01, jitter=False))
            assert await paused.request(client, "work", timeout=20) == "done"
    assert len(seen) == 4
    assert all(ttl is not None and ttl <= 20 for ttl in seen)
    assert sorted(seen, reverse=True) == seen  # type: ignore[type-var]


async def test_what_will_not_change_is_raised_at_once() -> None:
    bus, seen = failing(1, Conflict("taken"))
    with anyio.fail_after(BOUND):
        async with pair(bus) as client:
            with pytest.raises(Conflict):
                await Retry(backoff=QUICK).request(client, "work")
    assert len(seen) == 1


async def test_attempts_end_with_the_last_answer_and_time_with_deadline_exceeded() -> None:
    bus, seen = failing(1000, Unavailable("never"))
    with anyio.fail_after(BOUND):
        async with pair(bus) as client:
            with pytest.raises(Unavailable):
                await Retry(attempts=3, backoff=QUICK).request(client, "work")
            assert len(seen) == 3
            with pytest.raises(DeadlineExceeded) as caught:
                await Retry(backoff=Backoff(initial=10, maximum=10, jitter=False)).request(client, "work", timeout=1)
            assert isinstance(caught.value.__cause__, Unavailable)
    with pytest.raises(ValueError, match="at least 1"):
        Retry(attempts=0)


async def test_a_broken_link_is_asked_over_again() -> None:
    bus = Bus()
    calls: list[int] = []

    @bus.handle("work")
    async def work() -> str:
        calls.append(1)
        if len(calls) == 1:
            await bus.peers[0].aclose("a hiccup")
            await anyio.sleep_forever()
        return "done"

    with anyio.fail_after(BOUND):
        async with pair(bus, reconnect=True) as client:
            assert await Retry(backoff=QUICK).request(client, "work") == "done"


async def test_dead_letters_are_published_with_code_and_header_and_without_secrets() -> None:
    bus = Bus()

    def nobody(peer: Any, verb: str, subject: Any) -> bool:
        return bool(subject != "secret")

    bus = Bus(authorize=nobody)

    @bus.handle("secret")
    async def secret() -> None:
        pass

    with anyio.fail_after(BOUND):
        async with pair(bus, protocol=UProtocol(token="s3cret")) as client:
            async with bus.subscribe("dead.letters") as letters, anyio.create_task_group() as group:
                group.start_soon(publish_dead_letters, bus)
                await anyio.wait_all_tasks_blocked()
                with pytest.raises(Forbidden):
                    await client.request("secret", {"a": 1})
                letter = (await anext(letters)).body
                group.cancel_scope.cancel()
    assert letter["subject"] == "secret"
    assert (letter["kind"], letter["code"]) == ("request", Code.PERMISSION_DENIED)
    assert letter["attributes"]["priority"] == "CS4"
    assert "s3cret" not in repr(letter)
