"""Handlers in a browser, where a hop of the event loop costs more than a request, and where there are no threads."""

import asyncio
from typing import Any, cast

import pytest

from polybus import Bus, CallNext, Context, Forbidden, Message, NotFound, RemoteError
from polybus.testing import pair
from tests.support import eventually


@pytest.fixture(autouse=True)
def in_a_browser(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polybus._core.runtime.runtime._IN_A_BROWSER", True)
    monkeypatch.setattr("polybus._core.runtime.executor._NO_THREADS", True)


def answering_plainly(**options: Any) -> Bus:
    bus = Bus(**options)

    @bus.handle("at once")
    def at_once() -> bool:
        return asyncio.current_task() is None

    @bus.handle("missing")
    def missing() -> None:
        raise NotFound("no such thing")

    @bus.handle("broken")
    def broken() -> None:
        raise LookupError("a secret")

    @bus.handle("odd")
    def odd() -> int:
        return cast("int", "no number")

    @bus.handle("left")
    async def left(message: Message) -> float | None:
        return message.ttl

    @bus.handle("pass on")
    def pass_on() -> Any:
        return bus.request("left")

    return bus


async def test_a_plain_function_runs_in_the_event_that_brings_its_request() -> None:
    bus = answering_plainly(check_answers=True)
    async with pair(bus) as client:
        assert await client.request("at once") is True
        for subject, error in (("missing", NotFound), ("broken", RemoteError), ("odd", RemoteError)):
            with pytest.raises(error) as caught:
                await client.request(subject)
            assert "secret" not in str(caught.value)
        assert 0 < await client.request("pass on", timeout=5) <= 5
        failed = bus.stats().failed
        for subject in ("at once", "broken"):
            await client.notify(subject)
        await eventually(lambda: bus.stats().failed == failed + 1)
        assert bus.stats().running == client.stats().pending == 0


async def test_a_plain_function_waits_for_what_is_asked_first_and_for_what_came_before() -> None:
    seen, bus = list[str](), answering_plainly(authorize=lambda peer, verb, subject: subject != "missing")

    async def note(message: Message, ctx: Context, call_next: CallNext) -> Any:
        seen.append(str(message.subject))
        return await call_next(message)

    async with pair(bus) as client:
        assert await client.request("at once") is False
        with pytest.raises(Forbidden):
            await client.request("missing")
    bus = answering_plainly()
    bus.use(note)
    async with pair(bus) as client:
        assert await client.request("at once") is False
        await client.notify("left")
        await client.notify("at once")
        await eventually(lambda: seen == ["at once", "left", "at once"])
