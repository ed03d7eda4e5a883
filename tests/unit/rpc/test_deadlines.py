"""Every request ends by its deadline, whatever becomes of its link meanwhile."""

import asyncio
import gc
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import anyio
import pytest

from polybus import Backoff, Bus, Code, Context, DeadlineExceeded, Disconnected, RequestError, Retry, connect
from polybus._core.link.state import State
from polybus.plugins import Closed, Frames
from polybus.plugins.extensions import core_of
from polybus.protocols.ubre import session as ubre
from polybus.testing import pair
from polybus.testing.virtual_time import VirtualLoop
from tests.loops import virtual_time  # noqa: F401
from tests.support import eventually
from tests.unit.answering import answering


@pytest.mark.parametrize("cut", [False, True])
async def test_requests_that_wait_to_be_sent_end_by_their_deadlines(cut: bool) -> None:
    bus = answering()
    url, late = "ubre+memory://unsent", Backoff(initial=60, maximum=60, jitter=False)
    async with bus.serve(url), connect(url, backoff=late) as client:
        link = core_of(client.peers[0]).link
        served: Any = next(iter(bus._services.running.links)).transport
        served.pause_reading()
        while link.flowing:
            client.publish_nowait("news", bytes(10_000))
        began = anyio.current_time()
        replies = {after: client.request("endless", timeout=after) for after in (3, 1, 2)}
        if cut:
            link.abort(Closed(1006, "cut"), comes_back=True)
        for after in (1, 2, 3):
            with pytest.raises(Disconnected if cut else DeadlineExceeded):
                await replies[after]
            assert anyio.current_time() - began == pytest.approx(after, abs=0.02)


async def test_a_link_that_is_cut_again_to_protect_this_process_comes_back_once() -> None:
    async with pair(Bus(), reconnect=True) as client:
        link, sessions = core_of(client.peers[0]).link, set()
        for _ in range(2):
            link.abort(Closed(1013, "too slow"), comes_back=True)
        while link.state is not State.DOWN:  # for some turns only
            await anyio.lowlevel.checkpoint()
        link.abort(Closed(1013, "too slow"), comes_back=True)
        await eventually(lambda: client.peers[0].connected)
        for _ in range(100):
            sessions.add(id(link.session))
            await anyio.sleep(0.001)
        assert len(sessions) == 1
        assert client.stats().reconnects == 1


async def test_deadlines_are_kept_although_a_session_fails_when_one_has_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    bus, client = Bus(), Bus()
    async with pair(bus, client=client), pair(bus, client=client):
        first, second = client.peers
        failing = core_of(first).link.session

        def fails(self: Any, key: Any, now: float) -> Frames:
            if self is failing:
                raise RuntimeError("a mistake in a plugin")
            return ()

        monkeypatch.setattr(ubre.UbreSession, "forget", fails)
        for link in bus._services.running.links:
            transport: Any = link.transport
            transport.pause_reading()  # so that nobody else says that the time is over
        replies = [peer.request("never", timeout=0.01 * number) for number in (1, 2, 10) for peer in (first, second)]
        for reply in replies[::2]:
            with pytest.raises((DeadlineExceeded, Disconnected)):
                await reply
        assert not first.connected
        for reply in replies[1::2]:
            with pytest.raises(DeadlineExceeded):
                await reply


async def test_deadlines_are_kept_although_another_of_the_bus_cannot_be(caplog: pytest.LogCaptureFixture) -> None:
    class Failing:
        failed = 0

        def expire(self, now: float) -> float:
            self.failed += 1
            if self.failed < 3:
                raise RuntimeError("a mistake of ours")
            return math.inf

    async with answering() as bus:
        runtime, failing = bus._services.running, Failing()
        runtime.deadlines.watch(failing, runtime.time())
        with pytest.raises(DeadlineExceeded):
            await bus.request("endless", timeout=0.01)
        await eventually(lambda: failing not in runtime.deadlines.watched)
        assert failing.failed == 3
    assert "it is tried again" in caplog.text


async def early(ctx: Context) -> None:
    assert ctx.deadline is not None
    await anyio.sleep_until(ctx.deadline - 0.02)
    raise RequestError(Code.DEADLINE_EXCEEDED, "no time left")


async def asked(bus: Bus, timeout: float, retry: Retry | None = None) -> None:
    await asyncio.gather(*[bus.request("early", timeout=timeout, retry=retry).wait() for _ in range(3)])


async def asked_with_patience(bus: Bus, timeout: float) -> None:
    await asked(bus, timeout, Retry(attempts=3))


async def asked_in_a_task_group(bus: Bus, timeout: float) -> None:
    async with asyncio.TaskGroup() as group:
        for _ in range(3):
            group.create_task(bus.request("early", timeout=timeout).wait())


async def read_in_a_task(bus: Bus, timeout: float) -> None:
    async with bus.stream("items", timeout=timeout) as items:
        await asyncio.create_task(items.receive())


@pytest.mark.parametrize("ask", [asked, asked_with_patience, asked_in_a_task_group, read_in_a_task])
@pytest.mark.parametrize("near", [False, True], ids=["a peer", "a handler of its own"])
def test_a_scope_around_tasks_of_asyncio_fires_itself_although_the_peer_gives_up_a_moment_early(
    ask: Callable[[Bus, float], Awaitable[None]], near: bool
) -> None:
    bus = Bus()
    bus.handle("early")(early)

    @bus.handle("items")
    async def items(ctx: Context) -> AsyncIterator[int]:
        await early(ctx)
        yield 1

    async def main() -> None:
        async with pair(bus) as client:
            asks = bus if near else client
            with anyio.move_on_after(0.2) as scope:
                await ask(asks, 30)
            assert scope.cancelled_caught
            with anyio.move_on_after(30) as scope, pytest.raises((DeadlineExceeded, ExceptionGroup)):
                await ask(asks, 0.2)
            assert not scope.cancelled_caught
            assert bus.stats().running == 0

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(main())


async def test_a_request_that_its_scope_ends_before_it_is_awaited_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    bus = Bus()
    bus.handle("early")(early)

    async def ask(asks: Bus, scope: float, timeout: float, retry: Retry | None) -> None:
        with anyio.move_on_after(scope):
            _ = asks.request("early", timeout=timeout, retry=retry)
            await anyio.sleep(1)

    async with pair(bus) as client:
        for asks in (bus, client):
            for retry in (None, Retry(attempts=3)):
                for scope, timeout, tells in ((0.2, 30, False), (30, 0.2, True)):
                    await ask(asks, scope, timeout, retry)
                    await anyio.sleep(1)
                    gc.collect()
                    assert ("was never awaited" in caplog.text) is tells, (asks, retry, scope)
                    caplog.clear()


async def test_what_a_handler_leaves_running_has_not_its_deadline() -> None:
    bus, answers = Bus(), list[int]()
    async with pair(bus) as asker, pair(answering()) as client, anyio.create_task_group() as group:

        async def job() -> None:
            await anyio.sleep(5)
            answers.append(await client.request("echo", 1))

        @bus.handle("start")
        async def start() -> None:
            group.start_soon(job)

        await asker.request("start", timeout=1)
    assert answers == [1]


def slow() -> Bus:
    bus = Bus()

    @bus.handle("slow")
    async def slow() -> None:
        await anyio.sleep(60)

    bus.handle("quick", inline=True)(lambda: 1)
    return bus


@pytest.mark.parametrize("url", ["csb+memory://other-words", "ubre+memory://other-words?format=binary"])
@pytest.mark.parametrize("timeout", [0.1, 1, 1.5])
async def test_a_server_that_does_not_understand_is_suspected_to_speak_something_else(url: str, timeout: float) -> None:
    async with slow().serve("ubre+memory://other-words"), connect(url) as client:
        protocol = url.partition("+")[0]
        with pytest.raises(DeadlineExceeded, match=f"nothing has come over this link yet: .* speak {protocol}, in"):
            subject, body = ("quick", None) if protocol == "ubre" else (7, b"")
            await client.request(subject, body, timeout=timeout)


async def test_a_handler_that_is_slow_is_the_one_to_look_at_where_the_server_has_been_heard() -> None:
    async with pair(slow()) as client:
        await client.request("quick")
        with pytest.raises(DeadlineExceeded, match=r"increase timeout=, or check the handler$"):
            await client.request("slow", timeout=1)
