"""What a bus tells integrations beyond its verbs: its state, what it can be asked, and what may be added to it."""

import threading
from typing import Annotated, Any

import anyio
import anyio.to_thread
import pytest
from fast_depends import Depends

from polybus import Bus, LocalProtocolError, Subject, connect
from polybus.integrations import (
    call_in_loop,
    host_of,
    is_entered,
    is_guarded,
    links_of,
    middleware_of,
    operations_of,
    overriding,
    unchecked_of,
    until,
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


async def test_a_condition_is_looked_at_when_a_link_goes() -> None:
    server, client = Bus(), Bus()
    async with server, server.serve("ubre+memory://goes"), anyio.create_task_group() as group:
        async with connect("ubre+memory://goes", bus=client):
            (peer,) = server.peers
            group.start_soon(until, server, lambda: peer not in server.peers)


def test_operations_are_what_is_handled_heard_and_published_and_nothing_of_polybus() -> None:
    bus = Bus()

    @bus.handle("user.get", running=3)
    async def get_user(number: int) -> str:
        """Find a user."""
        return str(number)

    @bus.handle("log.read")
    async def read_log() -> Any:
        yield 1

    @bus.on("news.>", group="writers")
    async def hear(text: str) -> None: ...

    bus.publishes(Subject("weather.today", dict))
    found = {operation.subject: operation for operation in operations_of(bus)}
    assert {subject: one.style for subject, one in found.items()} == {
        "user.get": "request",
        "log.read": "stream",
        "news.>": "publication",
        "weather.today": "publication",
    }
    asked = found["user.get"]
    assert (asked.takes, asked.returns, asked.text, asked.running) == (int, str, "Find a user.", 3)
    assert found["news.>"].group == "writers"
    assert found["weather.today"].sent
    assert not is_guarded(bus)
    assert is_guarded(Bus(authorize=lambda peer, verb, subject, message: True))


def test_middleware_is_given_from_the_outermost_on() -> None:
    bus = Bus()

    async def outer(message: Any, ctx: Any, call_next: Any) -> Any: ...

    async def inner(message: Any, ctx: Any, call_next: Any) -> Any: ...

    bus.use(outer)
    bus.use(inner)
    assert list(middleware_of(bus)) == [outer, inner]


def test_handlers_whose_answers_have_no_type_that_can_be_checked_are_named_with_the_reason() -> None:
    class Opaque:
        pass

    bus = Bus()

    @bus.handle("plain")
    async def plain() -> int:
        return 1

    @bus.handle("opaque")
    async def opaque() -> Opaque:
        return Opaque()

    (name,) = unchecked_of(bus)
    assert name.endswith("opaque")


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
