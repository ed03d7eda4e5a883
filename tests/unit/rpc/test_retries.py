"""Requests that are asked again: what is repeated, for how long, and what is told at the end. In virtual time."""

import math
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import anyio.lowlevel
import pytest

import polybus.sync
from polybus import (
    Backoff,
    BadReply,
    Bus,
    Code,
    Conflict,
    DeadlineExceeded,
    Disconnected,
    Limits,
    Message,
    NoHandler,
    QueueFull,
    RequestCancelled,
    RequestError,
    Retry,
    Subject,
    TooLarge,
    TooManyRequests,
    Unavailable,
)
from polybus.retry import pause_after
from polybus.testing import pair
from tests.loops import virtual_time  # noqa: F401
from tests.support import eventually

QUICK = Backoff(initial=0.01, maximum=0.01, jitter=False)


def failing(
    times: int, *errors: Exception, then: Callable[[], Awaitable[Any]] = anyio.lowlevel.checkpoint
) -> tuple[Bus, list[float | None]]:
    """A bus whose handler fails at first, and the time that its requests had."""
    bus, seen = Bus(), list[float | None]()

    @bus.handle("work")
    async def work(message: Message) -> str:
        seen.append(message.ttl)
        if len(seen) <= times:
            raise errors[(len(seen) - 1) % len(errors)]
        await then()
        return "done"

    return bus, seen


@pytest.mark.parametrize("protocol", ["ubre", "uprotocol", "csb", "jrep"])
async def test_it_is_asked_again_with_the_time_that_is_left(protocol: str) -> None:
    bus, seen = failing(3, Unavailable("not yet"), TooManyRequests("busy"))
    async with pair(bus, protocol=protocol) as client:
        assert await client.request("work", timeout=20, retry=Retry(backoff=(1, 2, 4))) == "done"
    assert [round(20 - ttl) for ttl in seen if ttl is not None] == [0, 1, 3, 7]


@pytest.mark.parametrize("error", [Conflict("taken"), TooLarge("no"), NoHandler("elsewhere"), RequestError(Code.ABORTED)])
async def test_an_answer_that_will_not_change_is_raised_at_once(error: RequestError) -> None:
    bus, seen = failing(1, error)
    async with pair(bus) as client:
        with pytest.raises(type(error)) as caught:
            await client.request("work", retry=Retry(backoff=QUICK))
    assert len(seen) == caught.value.attempts == 1
    assert "asked" not in str(caught.value)


async def test_other_answers_are_repeated_where_their_codes_are_named() -> None:
    bus, seen = failing(1, RequestError(Code.ABORTED, "somebody else has written"))
    async with pair(bus) as client:
        assert await client.request("work", retry=Retry(backoff=QUICK, codes=[Code.ABORTED])) == "done"
    assert len(seen) == 2


async def test_the_last_error_says_how_often_was_asked() -> None:
    bus, seen = failing(1000, Unavailable("never"))
    async with pair(bus) as client:
        with pytest.raises(Unavailable, match=r"^UNAVAILABLE \('work'\): never \(after 3 attempts\)$") as caught:
            await client.request("work", retry=Retry(3, QUICK))
    assert caught.value.attempts == len(seen) == 3


async def test_no_attempt_is_begun_for_which_there_is_no_time_and_the_last_error_is_told_at_once() -> None:
    bus, seen = failing(1000, Unavailable("never"))
    async with pair(bus) as client:
        begun = anyio.current_time()
        with pytest.raises(Unavailable, match="after 2 attempts"):
            await client.request("work", timeout=10, retry=Retry(backoff=(4, 60)))
        assert anyio.current_time() - begun < 5
    assert len(seen) == 2


async def test_the_deadline_of_all_attempts_is_the_one_timeout() -> None:
    bus, _ = failing(1, Unavailable("not yet"), then=anyio.sleep_forever)
    async with pair(bus) as client:
        begun = anyio.current_time()
        with pytest.raises(DeadlineExceeded, match=r"after 5\.\d+ s.*\(after 2 attempts\)") as caught:
            await client.request("work", timeout=5, retry=Retry(backoff=(3,)))
        assert [anyio.current_time() - begun, caught.value.elapsed] == pytest.approx([5, 5], abs=0.1)
    assert isinstance(caught.value.__cause__, Unavailable)


async def test_a_scope_around_the_call_bounds_every_attempt() -> None:
    bus, seen = failing(2, Unavailable("not yet"))
    async with pair(bus) as client:
        with anyio.fail_after(10):
            assert await client.request("work", retry=Retry(backoff=(2,))) == "done"
    assert [round(ttl) for ttl in seen if ttl is not None] == [10, 8, 6]


def hiccup() -> tuple[Bus, list[int]]:
    """A bus whose first request breaks the link while its handler runs."""
    bus, calls = Bus(), list[int]()

    @bus.handle("work")
    async def work() -> str:
        calls.append(1)
        if len(calls) == 1:
            await bus.peers[0].aclose("a hiccup")
            await anyio.sleep_forever()
        return "done"

    return bus, calls


async def test_what_a_handler_may_have_seen_is_repeated_only_where_it_is_idempotent() -> None:
    bus, calls = hiccup()
    async with pair(bus, reconnect=True) as client:
        with pytest.raises(Disconnected) as caught:
            await client.request("work", retry=Retry(backoff=QUICK))
        assert caught.value.sent
        assert len(calls) == caught.value.attempts == 1
    bus, calls = hiccup()
    async with pair(bus, reconnect=True) as client:
        assert await client.request("work", retry=Retry(backoff=QUICK, idempotent=True)) == "done"
        assert len(calls) == 2


async def test_what_was_never_sent_is_asked_again() -> None:
    """There is no link at first; the next attempt goes the way that there is then."""
    server, client = Bus(), Bus()
    server.handle("work", inline=True)(lambda: "done")
    async with client, server.serve("ubre+memory://retried"):
        async with client.connect("ubre+memory://retried"):
            pass
        reply = client.request("work", timeout=20, retry=Retry(backoff=(5,), codes=[Code.UNIMPLEMENTED]))
        await anyio.sleep(1)
        assert not reply.done()
        async with client.connect("ubre+memory://retried"):
            assert await reply == "done"


async def test_a_full_outbox_is_asked_again() -> None:
    bus, client = Bus(), Bus(limits=Limits(outbox=1))
    bus.handle("work", inline=True)(lambda number: number)
    slowly = Backoff(initial=5, maximum=5, jitter=False)
    async with bus.serve("ubre+memory://full") as listener, client.connect(listener.url, backoff=slowly):
        await bus.peers[0].aclose("a hiccup")
        await eventually(lambda: not client.peers[0].connected)
        first = client.request("work", 1)
        with pytest.raises(QueueFull):
            await client.request("work", 2)
        second = client.request("work", 2, retry=Retry(backoff=(20,)))
        assert [await first, await second] == [1, 2]


async def test_a_cancelled_reply_is_not_asked_again_and_its_handler_stops() -> None:
    stopped = anyio.Event()

    async def work_on() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            stopped.set()

    bus, seen = failing(1, Unavailable("not yet"), then=work_on)
    async with pair(bus) as client:
        reply = client.request("work", retry=Retry(backoff=QUICK))
        await eventually(lambda: len(seen) == 2)
        assert reply.cancel()
        with pytest.raises(RequestCancelled):
            await reply
        await stopped.wait()
        paused = client.request("work", retry=Retry(backoff=(100,)))
        with anyio.move_on_after(1):
            await paused
        assert paused.done()


async def test_a_bus_that_is_left_ends_what_waits_to_be_asked_again() -> None:
    bus, _ = failing(1000, Unavailable("never"))
    async with pair(bus) as client:
        reply = client.request("work", timeout=1000, retry=Retry(backoff=(500,)))
        await anyio.sleep(1)
    with pytest.raises(Unavailable, match="never"):
        await reply


async def test_misuse_is_raised_by_the_call() -> None:
    bus, seen = failing(0)
    async with pair(bus) as client:
        with pytest.raises(TypeError, match=r"retry=3 must be Retry, not int; for example Retry\(attempts=3\)"):
            await client.request("work", retry=3)  # type: ignore[call-overload]
        with pytest.raises(polybus.EncodeError):
            await client.request("work", object(), retry=Retry())
        with pytest.raises(TypeError, match="returns"):
            await client.request("work", returns="int", retry=Retry())
    with pytest.raises(polybus.LocalProtocolError, match="not running"):
        await client.request("work", retry=Retry())
    assert seen == []


async def test_every_party_can_be_asked_again_and_the_answer_is_typed() -> None:
    bus, times = Bus(authenticate=lambda handshake: polybus.Identity("ann", key="ann")), dict[str, int]()
    ask = Subject("ask", str, int)

    @bus.handle(ask)
    async def answer(who: str) -> int:
        times[who] = times.get(who, 0) + 1
        if times[who] == 1:
            raise Unavailable("not yet")
        return times[who]

    client = Bus()
    client.handle(ask)(answer)
    retry = Retry(backoff=QUICK)
    async with pair(bus, client=client):
        assert await client.peers[0].request(ask, "peer", retry=retry) == 2
        assert await bus.user("ann").request(ask, "user", retry=retry) == 2
        assert await bus.as_("ann").request(ask, "caller", retry=retry) == 2
        assert await bus.request("ask", "to", to=bus.peers[0], returns=int, retry=retry) == 2
        reply = client.request(ask, "own", retry=retry)
        assert await reply == 2
        assert reply.message is not None
        assert reply.message.body == 2
        with pytest.raises(BadReply):
            await client.request("ask", "bad", returns=str, retry=retry)


def test_pauses_of_a_backoff_stay_within_their_bound() -> None:
    backoff = Backoff(initial=0.5, maximum=4)
    assert [backoff.delay(attempt, lambda: 1.0) for attempt in range(6)] == [0.5, 1, 2, 4, 4, 4]
    assert (backoff.delay(3, lambda: 0.0), backoff.delay(10_000, lambda: 1.0)) == (0, 4)
    assert [Backoff(factor=factor).bound(10_000) for factor in (1e9, 10**9, math.inf)] == [30.0] * 3


def test_pauses_grow_are_spread_and_end_with_the_last_that_is_named() -> None:
    assert [pause_after(Retry(backoff=(1, 5, 30)), failed) for failed in (1, 2, 3, 4)] == [1, 5, 30, 30]
    assert Retry(backoff=3).backoff == (3,)
    growing = Retry(backoff=Backoff(initial=1, maximum=3))
    assert [pause_after(growing, failed, lambda: 0.5) for failed in (1, 2, 3)] == [0.5, 1, 1.5]


@pytest.mark.parametrize(
    ("wrong", "error", "text"),
    [
        ({"attempts": 0}, ValueError, "attempts=0 must be at least 1"),
        ({"attempts": None}, TypeError, "attempts=None must be an integer"),
        ({"backoff": ()}, ValueError, "at least one pause"),
        ({"backoff": (1, -1)}, ValueError, "backoff=-1"),
        ({"backoff": "fast"}, TypeError, r"backoff='fast' must be a Backoff or a list of seconds"),
        ({"idempotent": "yes"}, TypeError, "idempotent='yes' must be bool, not str"),
        ({"codes": Code.ABORTED}, TypeError, "a list of polybus.Code"),
        ({"codes": ["SOON"]}, ValueError, "not a google.rpc.Code"),
    ],
)
def test_a_retry_that_cannot_be_is_refused(wrong: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        Retry(**wrong)
