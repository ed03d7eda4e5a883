"""Connections that `authenticate` is still deciding about when the bus drains, closes or stops to listen."""

from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio
import pytest

from polybus import Bus, ConnectFailed, Handshake, Limits, connect
from polybus._core.bus import dialer
from tests.loops import every_loop  # noqa: F401
from tests.support import BOUND

ENDS: dict[str, Callable[[Bus], Any] | None] = {"aclose": Bus.aclose, "drain": Bus.drain, "leave": None}


@pytest.mark.native
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("transport", ["tcp", "unix", "ws", "http", "memory"])
async def test_a_client_is_refused_at_once_when_the_bus_ends_before_it_is_authenticated(
    transport: str, end: str, tmp_path: Path, anyio_backend_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dialer, "_GRACE", 4.0)  # however slow this machine is; the refusal ends it
    monkeypatch.setattr(dialer, "_LONGEST_GRACE", 4.0)
    asked, cancelled = anyio.Event(), anyio.Event()

    async def authenticate(handshake: Handshake) -> bool:
        asked.set()
        try:
            await anyio.sleep_forever()
        finally:
            cancelled.set()
        return True

    patient = Limits(handshake_timeout=3600)
    bus, failures = Bus(authenticate=authenticate, limits=patient), list[str]()
    urls = {"tcp": "ubre+tcp://127.0.0.1:0", "unix": f"ubre+unix://{tmp_path}/s", "ws": "ubre+ws://127.0.0.1:0/"}
    urls |= {"http": "jrep+http://127.0.0.1:0/", "memory": "ubre+memory://pending"}

    async def client(url: str) -> None:
        with pytest.raises(ConnectFailed) as caught:
            async with connect(url, limits=patient):
                pass
        failures.append(str(caught.value))

    with anyio.fail_after(BOUND):
        async with anyio.create_task_group() as clients:
            async with AsyncExitStack() as stack:
                listener = await stack.enter_async_context(bus.serve(urls[transport]))
                clients.start_soon(client, listener.url)
                await asked.wait()
                if (leave := ENDS[end]) is not None:
                    await leave(bus)
            await cancelled.wait()
    (told,) = failures
    # hypercorn, which serves HTTP on trio, closes its connections without an answer.
    assert "this server accepts no clients" in told or (transport, anyio_backend_name) == ("http", "trio")


async def test_a_connection_is_refused_while_the_address_is_released_and_the_bus_goes_on() -> None:
    asked = anyio.Event()

    async def authenticate(handshake: Handshake) -> bool:
        if handshake.query:
            return True
        asked.set()
        await anyio.sleep_forever()
        return True

    bus = Bus(authenticate=authenticate, limits=Limits(handshake_timeout=3600))

    async def client(url: str) -> None:
        with pytest.raises(ConnectFailed, match="this server accepts no clients"):
            async with connect(url):
                pass

    with anyio.fail_after(BOUND):
        async with bus.serve("ubre+memory://stays") as stays, anyio.create_task_group() as clients:
            async with bus.serve("ubre+ws://127.0.0.1:0/") as listener:
                clients.start_soon(client, listener.url)
                await asked.wait()
            async with connect(f"{stays.url}?in=1"):
                assert bus.ready
