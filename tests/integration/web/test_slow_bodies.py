"""Bodies that come slowly, as a server of ASGI hands them over; in virtual time."""

from typing import Any

import anyio
import pytest

from polybus import Bus, Limits
from polybus.bindings.http.server import HttpRequest
from polybus.transports.asgi import HandshakeRejected
from tests.loops import virtual_time  # noqa: F401  # pytest finds the fixture by its name here

from .support import POST, listen_options

PART = 20_000


def dripping(bus: Bus, parts: int, pause: float, slow: set[HttpRequest]) -> HttpRequest:
    """A request whose body comes in so many parts, with pauses of so many seconds."""
    left = parts

    async def receive() -> dict[str, Any]:
        nonlocal left
        await anyio.sleep(pause)
        left -= 1
        return {"type": "http.request", "body": b" " * PART, "more_body": left > 0}

    return HttpRequest(listen_options(bus), POST, receive, slow)


async def test_a_body_that_comes_slowly_but_steadily_is_waited_for() -> None:
    async with Bus(limits=Limits(frame_timeout=2.0)) as bus:
        begun = anyio.current_time()
        body = await dripping(bus, 10, 1.0, set()).body()
        assert len(body or b"") == 10 * PART
        assert anyio.current_time() - begun == pytest.approx(10.0)


async def test_what_is_done_for_a_client_goes_on_while_its_unread_body_comes() -> None:
    async def work() -> str:
        await anyio.sleep(20)
        return "done"

    async with Bus() as bus:
        assert await dripping(bus, 10, 1.0, set()).while_there(work()) == "done"


async def test_a_body_that_stalls_is_refused() -> None:
    async with Bus(limits=Limits(frame_timeout=2.0)) as bus:
        with pytest.raises(HandshakeRejected, match="the body stalled after 0 bytes"):
            await dripping(bus, 10, 3.0, set()).body()


async def test_so_many_slow_bodies_and_no_more_are_kept() -> None:
    slow = set[HttpRequest]()
    async with Bus(limits=Limits(frame_timeout=2.0, handshakes=1)) as bus, anyio.create_task_group() as group:
        group.start_soon(dripping(bus, 10, 1.0, slow).body)
        await anyio.sleep(0.5)
        with pytest.raises(HandshakeRejected, match="the body arrives slowly, and so do 1 others"):
            await dripping(bus, 10, 1.0, slow).body()
