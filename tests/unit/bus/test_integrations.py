"""What a bus tells integrations beyond its verbs: its state, what it can be asked, and what may be added to it."""

import threading
from typing import Annotated

import anyio
import anyio.to_thread
import pytest
from fast_depends import Depends

from polybus import Bus, LocalProtocolError, connect
from polybus.integrations import (
    call_in_loop,
    host_of,
    is_entered,
    links_of,
    overriding,
)
from tests.loops import both_backends  # noqa: F401


async def test_a_bus_is_entered_and_has_a_host_and_its_links_while_its_block_lasts() -> None:
    server, client = Bus(), Bus()
    with pytest.raises(LocalProtocolError, match="not running"):
        host_of(client)
    async with server.serve("ubre+memory://seen"), connect("ubre+memory://seen", bus=client):
        assert is_entered(client)
        assert host_of(client).limits is client.limits
        assert [link.url for link in links_of(client)] == ["ubre+memory://seen"]
        assert not links_of(server)
    assert not is_entered(client)
    assert not links_of(client)


async def test_a_host_is_for_the_event_loop_of_its_bus() -> None:
    async with Bus() as bus:
        with pytest.raises(LocalProtocolError, match="another event loop"):
            await anyio.to_thread.run_sync(host_of, bus)


async def test_another_thread_has_a_function_called_in_the_event_loop_and_hears_what_it_raises() -> None:
    def fail() -> None:
        raise KeyError("no such figure")

    bus, here = Bus(), threading.get_ident()
    assert call_in_loop(bus, threading.get_ident, 1) == here, "where the bus is not entered"
    async with bus:
        assert await anyio.to_thread.run_sync(call_in_loop, bus, threading.get_ident, 5) == here
        with pytest.raises(KeyError):
            await anyio.to_thread.run_sync(call_in_loop, bus, fail, 5)


async def test_what_a_framework_puts_in_place_of_a_function_is_called_while_its_block_lasts() -> None:
    bus = Bus()

    def database() -> str:
        return "real"

    @bus.handle("which")
    async def which(name: Annotated[str, Depends(database)]) -> str:
        return name

    async with bus:
        with overriding(bus, {database: lambda: "fake"}.get, "dependency_overrides"):
            assert await bus.request("which") == "fake"
        assert await bus.request("which") == "real"
