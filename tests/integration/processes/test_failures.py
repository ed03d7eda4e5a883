"""What the caller sees when something goes wrong at the other end, which is a process of its own."""

from __future__ import annotations

from functools import partial
from typing import Any

import anyio
import pytest

from polybus import (
    BadRequest,
    Bus,
    BusError,
    Code,
    Conflict,
    ConnectFailed,
    DeadlineExceeded,
    Disconnected,
    NoHandler,
    NotFound,
    RemoteError,
    connect,
)
from tests.support import free_port

from .processes import BOUND, Process, control, eventually, loop_of, running

pytestmark = pytest.mark.anyio


async def test_a_request_that_nobody_handles_fails_at_once(server: Process) -> None:
    async with connect(server.url) as bus:
        with anyio.fail_after(BOUND / 4), pytest.raises(NoHandler, match=r"nobody\.here"):
            await bus.request("nobody.here")


async def test_a_handler_that_raises_fails_the_request_at_once_and_tells_no_secrets(server: Process) -> None:
    async with connect(server.url) as bus:
        with anyio.fail_after(BOUND / 4), pytest.raises(RemoteError) as raised:
            await bus.request("fail")
    assert raised.value.code is Code.INTERNAL
    assert "secret" not in repr(raised.value) + str(raised.value)
    error_id = raised.value.text.split()[-1]
    assert f"[{error_id}]" in server.log(), "the error id is what finds the traceback in the log"


async def test_an_error_that_the_handler_chose_arrives_as_it_was_raised(server: Process) -> None:
    async with connect(server.url) as bus:
        with pytest.raises(NotFound, match="no such thing") as raised:
            await bus.request("fail.not_found")
    assert raised.value.detail == {"looked": "everywhere"}


@pytest.mark.parametrize("body", [None, 7, {}, {"id": "seven"}, [1]])
async def test_a_wrong_argument_fails_the_request_at_once(server: Process, body: Any) -> None:
    async with connect(server.url) as bus:
        with anyio.fail_after(BOUND / 4), pytest.raises(BadRequest):
            await bus.request("user.get", body)
        assert await bus.request("user.get", {"id": 7}) == {"id": 7, "name": "Ann"}


async def test_a_deadline_ends_the_request_and_stops_the_remote_handler(server: Process) -> None:
    async with connect(server.url) as bus:
        before = (await control(bus))["counted"]
        for seconds in (1.0, 8.0, 30.0):  # on a busy machine the first may pass before the handler has begun
            with pytest.raises(DeadlineExceeded) as raised:
                await bus.request("sleep", 60, timeout=seconds)
            assert isinstance(raised.value, TimeoutError)
            assert raised.value.subject == "sleep"
            assert raised.value.where in ("local", "remote")
            if (await control(bus))["counted"]["started"] > before["started"]:
                break

        async def stopped() -> bool:
            now = await control(bus)
            return bool(now["counted"]["cancelled"] == before["cancelled"] + 1 and now["stats"]["running"] == 1)

        await eventually(stopped)
        assert bus.stats().pending == 0


async def test_a_cancelled_request_stops_the_remote_handler(server: Process) -> None:
    async with connect(server.url) as bus:
        before = (await control(bus))["counted"]

        async def counted(name: str) -> bool:
            return bool((await control(bus))["counted"][name] == before[name] + 1)

        async with anyio.create_task_group() as group:
            group.start_soon(bus.request("sleep", 60).wait)
            await eventually(partial(counted, "started"))
            group.cancel_scope.cancel()
        await eventually(partial(counted, "cancelled"))
        assert bus.stats().pending == 0


async def test_requests_in_flight_fail_at_once_when_the_server_is_killed(anyio_backend: Any) -> None:
    for _ in range(3):
        async with running(**loop_of(anyio_backend)) as server, connect(server.url) as bus:
            replies = [bus.request("sleep", 60, timeout=60) for _ in range(100)]
            # On the same link the question itself would wait behind the 64 that run.
            async with connect(server.url) as other:
                await _has_taken(other, 100)
            server.kill()
            errors = []
            with anyio.fail_after(BOUND):
                for reply in replies:
                    with pytest.raises(Disconnected) as raised:
                        await reply
                    errors.append(raised.value)
            assert [error.sent for error in errors] == [True] * 100
            assert all(isinstance(error, ConnectionError) for error in errors)
            assert bus.stats().pending == 0


async def _has_taken(bus: Bus, requests: int) -> None:
    """Wait until so many requests run or wait at the other end, besides our own."""

    async def taken() -> bool:
        stats = (await control(bus))["stats"]
        return bool(stats["running"] + stats["waiting"] == requests + 1)

    await eventually(taken)


async def test_the_first_connect_to_nothing_fails_at_once_and_names_the_address() -> None:
    port = free_port()
    with anyio.fail_after(BOUND / 4), pytest.raises(ConnectFailed) as raised:
        async with connect(f"ubre+tcp://127.0.0.1:{port}"):
            pass
    assert f"127.0.0.1:{port}" in str(raised.value)
    assert "refused" in str(raised.value)


async def test_the_error_of_a_nested_call_is_not_the_error_of_the_call(server: Process) -> None:
    client = Bus()

    @client.handle("mine")
    async def mine() -> None:
        raise Conflict("between us two")

    async with connect(server.url, bus=client):
        with pytest.raises(RemoteError) as raised:
            await client.request("ask.back", {"subject": "mine"}, timeout=BOUND)
        assert raised.value.code is Code.INTERNAL
        assert "between us" not in str(raised.value)
        with pytest.raises(Conflict, match="between us two"):
            await client.request("ask.back", {"subject": "mine", "relay": True}, timeout=BOUND)


async def test_what_follows_a_failure_on_the_same_link_is_not_touched_by_it(server: Process) -> None:
    async with connect(server.url) as bus:
        replies: list[Any] = []
        for number in range(50):
            replies += [bus.request("echo", number), bus.request("fail"), bus.request("nobody.here")]
        outcomes = []
        with anyio.fail_after(BOUND):
            for reply in replies:
                try:
                    outcomes.append(await reply)
                except BusError as error:
                    outcomes.append(type(error))
        assert outcomes == [outcome for number in range(50) for outcome in (number, RemoteError, NoHandler)]
