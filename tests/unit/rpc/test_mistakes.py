"""The usual mistakes with what is awaited, entered and iterated over, each answered in words."""

import gc
import logging
from collections.abc import Callable
from typing import Any

import pytest

from polybus import Bus, connect
from polybus.testing import pair
from tests.refusal import refused

ENTER = "this is an async context manager, enter it: `async with "


@pytest.mark.parametrize(
    ("make", "example"),
    [
        (lambda: connect("ubre+memory://nowhere"), "connect(url) as bus"),
        (lambda: Bus().connect("ubre+memory://nowhere"), "connect(url) as bus"),
        (lambda: Bus().serve("ubre+memory://mistakes"), "bus.serve(url) as listener"),
        (lambda: Bus().stream("x"), "bus.stream(subject) as items:`, `async with bus.channel(subject) as channel"),
    ],
)
async def test_what_is_to_be_entered_says_so(make: Callable[[], Any], example: str) -> None:
    with pytest.raises(TypeError, match="enter it") as caught:
        await make()
    assert str(caught.value) == f"{ENTER}{example}:`"
    with pytest.raises(TypeError, match="enter it"):
        async for _ in make():
            pass
    with pytest.raises(TypeError, match="enter it"), make():
        pass
    with pytest.raises(AttributeError, match="'request' is available only inside the block: .*enter it"):
        make().request("x")
    assert not hasattr(make(), "_polybus_nothing")


async def test_a_subscription_that_is_awaited_or_entered_without_async_says_how_it_is_entered() -> None:
    subscription: Any = Bus().subscribe("news")
    says = r"enter it: `async with bus\.subscribe\(pattern\) as messages:`"
    with pytest.raises(TypeError, match=says), subscription:
        pass
    with pytest.raises(TypeError, match=says):
        await subscription


async def test_the_failure_of_a_request_that_nobody_awaits_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    bus = Bus()
    bus.handle("fine", inline=True)(lambda: 1)
    with caplog.at_level(logging.ERROR, "polybus"):
        async with pair(bus) as client:
            _ = client.request("nope")
            _ = client.request("fine")
            cancelled = client.request("nope")
            cancelled.cancel()
            awaited = client.request("nope")
            with pytest.raises(Exception, match="no handler for"):
                await awaited
            _ = bus.request("local.nope")
            del _
            assert await client.request("fine") == 1
            del cancelled, awaited
        gc.collect()
    said = [record.getMessage() for record in caplog.records]
    # What earlier tests have left may be told meanwhile.
    own = [text for text in said if text.split("'")[1] in {"nope", "local.nope", "fine"}]
    assert sorted(text.split("'")[1] for text in own) == ["local.nope", "nope"]
    assert all("was never awaited, and failed: NoHandler" in text for text in own)


async def test_a_reply_that_is_used_as_the_answer_says_that_it_is_to_be_awaited() -> None:
    bus = Bus()
    bus.handle("work", inline=True)(lambda: {"id": 7})
    says = r"await it for the answer; reply\.wait\(\) gives a coroutine"
    async with pair(bus) as client:
        reply: Any = client.request("work")
        uses: list[Callable[[], Any]] = [
            *(lambda: reply["id"], lambda: list(reply), lambda: "id" in reply, lambda: len(reply)),
            *(lambda: "in" if reply else "out", lambda: not reply, lambda: reply + 1, lambda: 1 + reply, lambda: reply > 1),
            *(lambda: reply.name, lambda: reply.add_done_callback(print)),
        ]
        for use in uses:
            with pytest.raises((TypeError, AttributeError), match=says):
                use()
        with pytest.raises(TypeError, match=says):
            async for _ in reply:
                pass
        await refused(reply, TypeError, says)
        assert repr(reply) == "<Reply 'work' pending: await it; a task takes reply.wait()>"
        assert not hasattr(reply, "_polybus_nothing")
        assert await reply == {"id": 7}
