"""Cases in which an early version lost an answer, a link or a whole bus."""

import asyncio
import contextvars
import datetime
import time
from collections.abc import AsyncIterator
from typing import Any

import anyio
import anyio.to_thread
import pytest
import websockets.sync.client as raw

from polybus import Bus, Channel, DeadlineExceeded, Forbidden, Identity, Peer, connect
from polybus._util.cancel_scopes import let_scope_fire
from polybus.errors import NoHandler, NotFound, QueueFull, RemoteError, RequestError, Unauthorized
from polybus.plugins.extensions import core_of
from polybus.testing import pair
from tests.loops import every_loop  # noqa: F401  # a fixture
from tests.refusal import refused
from tests.support import BOUND, eventually
from tests.unit.answering import answering, noting, publish_each


class Incomparable:
    """Like an array: equal to nothing, and not to be asked."""

    def __eq__(self, other: object) -> bool:
        raise ValueError("the truth value is ambiguous")

    __hash__ = None  # type: ignore[assignment]  # as an array


VALUE: contextvars.ContextVar[Any] = contextvars.ContextVar("VALUE")


@pytest.mark.parametrize(
    "error", [NotFound("gone", detail="y" * 2_000_000), NotFound("lone \ud800")], ids=["large", "surrogate"]
)
async def test_an_error_that_cannot_be_written_whole_is_answered_all_the_same(error: Exception) -> None:
    bus = Bus()

    @bus.handle("fails")
    async def fails() -> None:
        raise error

    async with pair(answering(bus)) as client:
        with pytest.raises(NotFound):
            await client.request("fails")
        assert await client.request("echo", 1) == 1


async def test_a_context_variable_that_cannot_be_compared_stops_no_worker() -> None:
    bus = Bus()

    @bus.handle("sets")
    async def sets() -> None:
        VALUE.set(Incomparable())

    VALUE.set(Incomparable())
    async with pair(bus) as client:
        for _ in range(3):
            assert await client.request("sets") is None


async def test_who_may_not_subscribe_any_more_may_still_leave() -> None:
    allowed = True
    bus = Bus(authorize=lambda peer, verb, subject: verb != "subscribe" or allowed)
    async with pair(bus) as client:
        async with client.subscribe("news"):
            assert core_of(bus.peers[0]).patterns
            allowed = False
        await eventually(lambda: not core_of(bus.peers[0]).patterns)


async def test_a_publisher_that_gave_up_leaves_its_place_to_the_next() -> None:
    bus = Bus()
    async with bus, bus.subscribe("news", queue=1, when_full="block") as news, anyio.create_task_group() as group:
        await bus.publish("news", 1)
        with pytest.raises(QueueFull):
            await bus.publish("news", 2, timeout=0.01)
        group.start_soon(bus.publish, "news", 3)
        await anyio.wait_all_tasks_blocked()
        assert [(await anext(news)).body, (await anext(news)).body] == [1, 3]


async def test_an_open_may_not_use_the_id_of_a_running_request() -> None:
    bus, running = Bus(), [0]

    @bus.handle("slow")
    async def slow() -> None:
        running[0] += 1
        await anyio.sleep_forever()

    @bus.handle("numbers")
    async def numbers() -> AsyncIterator[int]:
        running[0] += 1
        yield 1

    async with bus.serve("ubre+ws://127.0.0.1:0/bus") as listener:

        def speak() -> str:
            with raw.connect(listener.url.removeprefix("ubre+"), proxy=None) as peer:
                peer.send('{"request":"slow","id":"a"}')
                peer.send('{"open":"a","subject":"numbers","mode":"stream","n":1,"hops":0}')
                return str(peer.recv(timeout=BOUND))

        answer = await anyio.to_thread.run_sync(speak)
    assert '"end":"a"' in answer
    assert running == [1]


@pytest.mark.parametrize("mode", ["stream", "channel"])
async def test_a_peer_that_ends_its_half_twice_or_has_none_still_gets_the_rest(mode: str) -> None:
    bus = Bus()

    @bus.handle("stream")
    async def stream() -> AsyncIterator[int]:
        yield 1
        yield 2

    @bus.handle("channel")
    async def channel(numbers: Channel[int, int]) -> None:
        async for _ in numbers:
            pass
        await numbers.send(1)
        await numbers.send(2)

    async with bus.serve("ubre+ws://127.0.0.1:0/bus") as listener:

        def speak() -> list[str]:
            with raw.connect(listener.url.removeprefix("ubre+"), proxy=None) as peer:
                peer.send(f'{{"open":"a","subject":"{mode}","mode":"{mode}","n":1,"hops":0}}')
                peer.send('{"end":"a"}')
                peer.send('{"end":"a"}')
                received = list[str]()
                while not received or '"item"' not in received[-1]:
                    received.append(str(peer.recv(timeout=BOUND)))
                peer.send('{"credit":"a","n":1}')
                while not received[-1].startswith('{"end"'):
                    received.append(str(peer.recv(timeout=BOUND)))
                return received

        received = await anyio.to_thread.run_sync(speak)
    assert received[-3:] == ['{"item":"a","body":1}', '{"item":"a","body":2}', '{"end":"a"}']
    assert bus.stats().failed == 0


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_handler_whose_task_is_cancelled_from_outside_is_answered() -> None:
    bus, jobs = Bus(), list[Any]()

    @bus.handle("waits")
    async def waits() -> None:
        jobs.append(asyncio.current_task())
        await anyio.sleep_forever()

    async with pair(bus) as client:
        for wait in (False, True, False):
            reply = client.request("waits")
            await eventually(lambda: jobs)
            job = jobs.pop()
            job.cancel()
            with pytest.raises(RemoteError):
                await reply
            if wait:  # until what was cancelled has come to its end
                await eventually(job.done)
        with pytest.raises(DeadlineExceeded):  # there is a clock, too
            await client.request("waits", timeout=0.05)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("cancelled", ["news.0", "news.3"], ids=["the first", "one asked about ahead"])
async def test_each_message_that_an_authorize_which_cancels_its_own_task_costs_is_counted(cancelled: str) -> None:
    asked = list[Any]()

    async def authorize(peer: Peer, verb: str, subject: str | int) -> bool:
        if verb == "publish":
            asked.append(subject)
            await eventually(lambda: len(asked) > 30)
            if subject == cancelled:
                job = asyncio.current_task()
                assert job is not None
                job.cancel()
                await anyio.lowlevel.checkpoint()
        return True

    bus = Bus(authorize=authorize)
    heard = noting(bus, "news.*")
    async with pair(bus) as client:
        for number in range(40):
            await client.publish(f"news.{number}", number)
        await eventually(lambda: bus.stats().refused and len(heard) + bus.stats().refused + bus.stats().dropped == 40)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_handler_of_publications_that_cancels_its_own_task_costs_that_publication_alone() -> None:
    bus, heard, jobs = Bus(), list[int](), list[Any]()

    @bus.on("news")
    async def news(body: int) -> None:
        heard.append(body)
        if body == 1:
            jobs.append(asyncio.current_task())
            jobs[0].cancel()
            await anyio.lowlevel.checkpoint()

    async with pair(answering(bus)) as client:
        await publish_each(client, "news", (1, 2))
        await eventually(lambda: heard == [1, 2])
        await client.publish("news", 3)
        await eventually(lambda: heard == [1, 2, 3])
        assert bus.stats().failed == 1
        with pytest.raises(DeadlineExceeded):
            await client.request("endless", timeout=0.05)
        await eventually(lambda: bus.stats().running == 0)


async def test_an_identity_that_has_expired_is_not_let_in() -> None:
    past = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=3)
    async with Bus(authenticate=lambda handshake: Identity("v", expires_at=past)).serve(
        "ubre+ws://127.0.0.1:0/bus"
    ) as listener:
        await refused(connect(listener.url), Unauthorized)


def seen(error: RequestError, subject: str) -> tuple[str, str, str | None]:
    return type(error).__name__, error.text.replace(repr(subject), "it"), error.reason


async def test_a_scope_whose_time_is_over_fires_also_when_the_event_loop_was_busy(anyio_backend: Any) -> None:
    with anyio.move_on_after(0.0004) as scope:
        if anyio_backend[0] == "asyncio":  # until all that waits for a time is due at once: uvloop does the later first
            asyncio.get_running_loop().call_soon(time.sleep, 0.1)
        await let_scope_fire()
        pytest.fail("the scope has not fired")
    assert scope.cancelled_caught


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_who_may_not_ask_does_not_learn_which_handlers_there_are(asynchronous: bool) -> None:
    async def refuse_later(peer: Peer, verb: str, subject: str | int) -> bool:
        await anyio.lowlevel.checkpoint()
        return subject == "open"

    bus = Bus(authorize=refuse_later if asynchronous else lambda peer, verb, subject: subject == "open")
    bus.handle("there")(lambda: None)

    @bus.handle("flow")
    async def flow() -> AsyncIterator[int]:
        yield 1

    async with pair(bus) as client:
        requests, streams = set(), set()
        for subject in ("there", "nowhere", "flow"):
            with pytest.raises(Forbidden) as caught:
                await client.request(subject)
            requests.add(seen(caught.value, subject))
            with pytest.raises(Forbidden) as caught:
                async with client.stream(subject) as items:
                    await anext(items)
            streams.add(seen(caught.value, subject))
        assert len(requests) == len(streams) == 1
        assert bus.stats().refused == 6
        with pytest.raises(NoHandler):
            await client.request("open")
        await eventually(lambda: bus.stats().running == 0)
        assert bus.stats().refused == 7
