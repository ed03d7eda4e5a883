"""Connecting where no welcome is said: a refusal is an error of `connect` all the same, and bare peers need say nothing."""

import asyncio
import logging
import ssl
from pathlib import Path
from typing import Any

import anyio
import pytest
import trustme

from polybus import Backoff, Bus, Handshake, Limits, connect
from polybus._core.bus import dialer
from polybus.errors import ConnectFailed, DeadlineExceeded, Forbidden, Unauthorized, Unavailable
from polybus.events import LinkRetrying, LinkUp
from tests.refusal import refused
from tests.support import eventually, next_event
from tests.unit.answering import answering


@pytest.fixture
def urls(tmp_path: Path) -> dict[str, Any]:
    authority = trustme.CA()
    server, client = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), ssl.create_default_context()
    authority.issue_cert("127.0.0.1").configure_cert(server)
    authority.configure_trust(client)
    return {
        "tcp": ("ubre+tcp://127.0.0.1:0", None, None),
        "unix": (f"ubre+unix://{tmp_path}/s", None, None),
        "tls": ("ubre+tls://127.0.0.1:0", server, client),
        "ws": ("ubre+ws://127.0.0.1:0/", None, None),
        "memory": ("ubre+memory://refusals", None, None),
    }


async def nobody(handshake: Handshake) -> None:
    """Takes a while to refuse, as a look into a database does."""
    for _ in range(3):
        await anyio.lowlevel.checkpoint()


@pytest.mark.parametrize("transport", ["tcp", "unix", "tls", "ws", "memory"])
async def test_a_refusal_is_raised_by_connect(transport: str, urls: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialer, "_GRACE", 4.0)  # however slow this machine is; the refusal ends it
    monkeypatch.setattr(dialer, "_LONGEST_GRACE", 4.0)
    url, tls, trust = urls[transport]
    bus = Bus(authenticate=nobody)
    async with bus.serve(url, tls=tls) as listener:
        for wait in (0, 60):  # it is not retried either
            await refused(connect(listener.url, tls=trust, wait=wait), Unauthorized)


async def test_a_subscriber_that_is_refused_late_is_told_by_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialer, "_GRACE", 0.0)
    monkeypatch.setattr(dialer, "_LONGEST_GRACE", 0.0)
    bus, client = Bus(authenticate=nobody), Bus()
    client.on("x", inline=True)(lambda body: None)
    async with bus.serve("ubre+tcp://127.0.0.1:0") as listener, client:
        await refused(client.connect(listener.url), Unauthorized)


@pytest.mark.parametrize("transport", ["tcp", "unix", "tls", "ws", "memory"])
async def test_pauses_grow_while_a_server_tells_a_client_to_come_later(transport: str, urls: dict[str, Any]) -> None:
    """However long it takes to say so: on plain TCP the link is up meanwhile."""
    away = False

    async def later(handshake: Handshake) -> str:
        if away:
            await anyio.lowlevel.checkpoint()
            raise Unavailable("the database is away")
        return "ann"

    url, tls, trust = urls[transport]
    bus, client = Bus(authenticate=later), Bus()
    events = client.events()
    async with bus.serve(url, tls=tls) as listener:
        # So small that any refusal comes later than the pause.
        backoff = Backoff(1e-9, 60, jitter=False)
        async with connect(listener.url, bus=client, tls=trust, backoff=backoff):
            await eventually(lambda: bus.peers)
            away = True
            await bus.peers[0].aclose("a moment")
            attempts = [(await next_event(events, LinkRetrying)).attempt for _ in range(5)]
    assert attempts == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("verb", ["publish", "subscribe", "deliver", "request", "stream"])
async def test_a_hook_that_awaits_what_somebody_cancels_refuses_and_the_bus_lives(verb: str) -> None:
    class Mine(BaseException):
        pass

    async def authorize(peer: Any, asked: str, subject: Any) -> bool:
        if asked == verb:
            if anyio.get_cancelled_exc_class() is asyncio.CancelledError:
                lookup = asyncio.get_running_loop().create_future()
                lookup.cancel()
                await lookup
            raise Mine
        return True

    bus = answering(authorize=authorize)
    async with bus.serve("ubre+tcp://127.0.0.1:0") as listener, connect(listener.url) as client:
        if verb == "subscribe":
            await refused(client.subscribe("news.*"), Forbidden)
        elif verb == "stream":
            with pytest.raises(Forbidden):
                async with client.stream("echo") as items:
                    await anext(items)
        elif verb == "request":
            with pytest.raises(Forbidden):
                await client.request("echo", 1)
        else:
            async with client.subscribe("news"):
                await client.publish("news", 1)
                await bus.publish("news", 1)
        verb = ""
        assert await client.request("echo", 2) == 2
        assert await bus.request("echo", 3) == 3


async def test_whatever_a_task_of_the_bus_ends_with_the_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    class Mine(BaseException):
        pass

    async def fails() -> None:
        raise Mine

    async with answering() as bus:
        bus._services.running.spawn(fails)
        with pytest.raises(DeadlineExceeded):
            await bus.request("endless", timeout=0.05)  # the timer lives
    assert "a background task failed" in caplog.text


async def test_headers_that_do_not_come_are_cancelled_or_refuse_end_the_attempt() -> None:
    async def never() -> dict[str, str]:
        await anyio.sleep_forever()
        return {}

    def cancelled() -> dict[str, str]:
        raise asyncio.CancelledError

    def unauthorized() -> dict[str, str]:
        raise Unauthorized("the token service does not know us")

    async with Bus().serve("ubre+ws://127.0.0.1:0/") as listener:
        for headers, error, text, limits, wait in (
            (never, ConnectFailed, "Limits.connect_timeout", Limits(connect_timeout=0.05), 0),
            (cancelled, ConnectFailed, "CancelledError", Limits(), 0),
            (unauthorized, Unauthorized, "the token service", Limits(), 5),  # and no attempt follows
        ):
            await refused(connect(listener.url, headers=headers, limits=limits, wait=wait), error, match=text)


async def test_what_headers_raise_is_a_failed_attempt_that_names_it_and_is_made_again_where_one_waits() -> None:
    tries = 0

    async def fetch_token() -> dict[str, str]:
        nonlocal tries
        tries += 1
        if tries < 4:
            raise LookupError("the token service is not up yet")  # as httpx.ConnectError would be
        return {"authorization": "Bearer t"}

    async with Bus().serve("ubre+ws://127.0.0.1:0/") as listener:
        with pytest.raises(ConnectFailed, match=r"headers\(\) raised LookupError: the token service is not up yet") as caught:
            async with connect(listener.url, headers=fetch_token):
                pass
        assert isinstance(caught.value.__cause__, LookupError)
        async with connect(listener.url, headers=fetch_token, wait=5, backoff=Backoff(initial=0.01)):
            assert tries == 4


async def test_headers_that_fail_while_a_link_comes_back_are_logged_and_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    tries = 0

    def fetch_token() -> dict[str, str]:
        nonlocal tries
        tries += 1
        if 2 <= tries <= 5:
            raise LookupError("the token service is away")
        return {}

    caplog.set_level(logging.INFO, "polybus.link")
    async with Bus().serve("ubre+ws://127.0.0.1:0/") as listener:
        async with connect(listener.url, headers=fetch_token, backoff=Backoff(initial=0.001, maximum=0.01)) as bus:
            await listener.peers[0].aclose()
            assert (await next_event(bus.events(), LinkUp)).again
    assert tries == 6
    told = [record for record in caplog.records if "the token service is away" in record.getMessage()]
    assert [bool(record.exc_info) for record in told] == [True, False, False], "a traceback, then attempts 2 and 4"
