"""Clients over HTTP that ask and do not read: what is made for them stays small, whatever the number of connections."""

import json
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from polybus import Bus, Limits
from polybus.bindings.cloudevents_server import EventsEndpoint
from polybus.bindings.http import server as _http_server
from polybus.bindings.http.server import Application
from polybus.bindings.jrep_http.server import ErraiEndpoint
from polybus.plugins import Closed
from polybus.plugins.extensions import core_of
from polybus.protocols.uprotocol import IdFactory
from tests.support import eventually

MIB = 1024 * 1024
ANSWER = 600_000
IDS = IdFactory()
ASSOCIATE = [{"ToSubject": "ServerBus", "CommandType": "Associate", "PriorityProcessing": "1", "RemoteServices": "ClientBus"}]
TYPES = {"jrep": "application/json", "uprotocol": "application/cloudevents-batch+json"}


class Page:
    """A client that asks on as many connections as it likes: its requests as a server of ASGI hands them over."""

    def __init__(self, application: Application, protocol: str) -> None:
        self.answered: list[int] = []
        self._application = application
        self._protocol = protocol
        self._cookie = b""

    async def ask(self, path: str, query: str, body: Any, *, reads: int = 10 * MIB) -> bytes:
        """Post, and read so many bytes of the answer and then nothing more."""
        content, answer = [json.dumps(body).encode()], b""

        async def receive() -> dict[str, Any]:
            if content:
                return {"type": "http.request", "body": content.pop(), "more_body": False}
            await anyio.sleep_forever()
            raise AssertionError

        async def send(message: dict[str, Any]) -> None:
            nonlocal answer
            if message["type"] == "http.response.start":
                self.answered.append(message["status"])
                cookies = [value for name, value in message["headers"] if name == b"set-cookie"]
                self._cookie = cookies[0].partition(b";")[0] if cookies else self._cookie
            elif len(answer) >= reads:
                await anyio.sleep_forever()
            answer += message.get("body", b"")

        headers = [(b"host", b"127.0.0.1"), (b"content-type", TYPES[self._protocol].encode()), (b"cookie", self._cookie)]
        scope = {"type": "http", "method": "POST", "path": path, "query_string": query.encode(), "headers": headers}
        await self._application({**scope, "server": ("127.0.0.1", 1), "client": ("127.0.0.9", 1)}, receive, send)  # type: ignore[arg-type]
        return answer


class Library:
    """A handler with large answers, and how many bytes it has made."""

    def __init__(self, bus: Bus) -> None:
        self.made = 0
        bus.handle("large")(self.large)

    async def large(self) -> str:
        self.made += ANSWER
        return "x" * ANSWER


@asynccontextmanager
async def serving(bus: Bus, protocol: str) -> AsyncIterator[Page]:
    endpoint = ErraiEndpoint("/") if protocol == "jrep" else EventsEndpoint("/")
    async with bus.serve(endpoint, protocol=protocol):
        yield Page(Application("/", endpoint.routes()), protocol)


def event(method: str = "large", vehicle: int = 7) -> dict[str, Any]:
    names = {"source": f"//hu.veh{vehicle}/hmi.app/1/rpc.response", "sink": f"/polybus/1/rpc.{method}"}
    return {**names, "specversion": "1.0", "id": IDS.next(), "type": "req.v1", "priority": "CS4", "ttl": 600_000}


async def ask(page: Page, protocol: str, how: str, number: int, reads: int) -> bytes:
    if protocol == "uprotocol":
        return await page.ask("/", "", [event()], reads=reads)
    asked = [{"ToSubject": "large", "ReplyTo": f"large:{number}-{each}:RespondTo:RPC"} for each in range(3)]
    return await page.ask("/in.1.erraiBus", f"clientId=1&{how}=1", asked, reads=reads)


@pytest.mark.parametrize(("protocol", "how"), [("jrep", "wait"), ("jrep", "sse"), ("uprotocol", "")])
async def test_however_many_connections_read_no_answer_no_more_than_8_mib_are_made(protocol: str, how: str) -> None:
    bus = Bus(limits=Limits(close_timeout=0.1, write_timeout=1000.0))
    library = Library(bus)
    async with serving(bus, protocol) as page, anyio.create_task_group() as group:
        if protocol == "jrep":
            await page.ask("/in.1.erraiBus", "clientId=1&phase=connection", ASSOCIATE)
        for number in range(40):
            group.start_soon(ask, page, protocol, how, number, 1)
            await anyio.wait_all_tasks_blocked()
        assert 2 * ANSWER < library.made <= 8 * MIB
        assert ANSWER < bus._services.running.buffered <= 8 * MIB
        for peer in bus.peers:  # no answer is waited for when the bus is left
            core_of(peer).link.abort(Closed(1006, "the test is over"))
        group.cancel_scope.cancel()


async def test_a_session_whose_client_takes_nothing_of_an_answer_ends_at_the_write_timeout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_http_server, "_UNSEEN", 0.0)
    bus = Bus(limits=Limits(close_timeout=0.1, write_timeout=0.1))
    Library(bus)
    async with serving(bus, "jrep") as page, anyio.create_task_group() as group:
        await page.ask("/in.1.erraiBus", "clientId=1&phase=connection", ASSOCIATE)
        assert len(bus.peers) == 1
        group.start_soon(ask, page, "jrep", "wait", 1, 1)
        await eventually(lambda: not bus.peers)
        await eventually(lambda: bus._services.running.buffered == 0)
        group.cancel_scope.cancel()


@pytest.mark.parametrize("protocol", ["jrep", "uprotocol"])
async def test_one_that_reads_gets_all(protocol: str) -> None:
    bus, got = Bus(limits=Limits(close_timeout=0.1)), list[bytes]()
    Library(bus)
    async with serving(bus, protocol) as page, anyio.create_task_group() as group:
        if protocol == "jrep":
            await page.ask("/in.1.erraiBus", "clientId=1&phase=connection", ASSOCIATE)

        async def read(number: int) -> None:
            got.append(await ask(page, protocol, "wait", number, 10 * MIB))

        for number in range(20):
            group.start_soon(read, number)
        if protocol == "jrep":
            while sum(answer.count(b'"RespondTo') + answer.count(b":RespondTo:RPC") for answer in got) < 60:
                got.append(await page.ask("/in.1.erraiBus", "clientId=1&wait=1", []))
        else:
            await eventually(lambda: len(got) == 20)
            assert all(len(answer) > ANSWER for answer in got)
        await eventually(lambda: bus._services.running.buffered == 0)
        group.cancel_scope.cancel()


async def test_answers_for_which_there_is_no_room_are_dropped_at_once() -> None:
    bus = Bus(limits=Limits(close_timeout=0.1, total_bytes=4 * MIB))
    Library(bus)
    bus.handle("never")(anyio.sleep_forever)
    async with serving(bus, "uprotocol") as page:
        tracemalloc.start()
        try:
            async with anyio.create_task_group() as group:
                for vehicle in range(40):
                    group.start_soon(page.ask, "/", "", [event(vehicle=vehicle), event("never", vehicle)])
                await eventually(lambda: page.answered)
                most = tracemalloc.get_traced_memory()[1]
                for peer in bus.peers:
                    core_of(peer).link.abort(Closed(1006, "the test is over"))
        finally:
            tracemalloc.stop()
    assert set(page.answered) == {503}
    assert most < 12 * MIB


async def ask_twice(page: Page, vehicle: int) -> None:
    await page.ask("/", "", [event(vehicle=vehicle), event(vehicle=vehicle)], reads=1)


async def test_answers_of_a_batch_that_leave_are_charged_once() -> None:
    bus = Bus(limits=Limits(close_timeout=0.1, write_timeout=1000.0))
    library = Library(bus)
    async with serving(bus, "uprotocol") as page, anyio.create_task_group() as group:
        for vehicle in range(5):
            for _ in range(2):
                group.start_soon(ask_twice, page, vehicle)
                await anyio.wait_all_tasks_blocked()
        assert library.made == 20 * ANSWER
        assert library.made < bus._services.running.buffered < 1.5 * library.made
        for peer in bus.peers:
            core_of(peer).link.abort(Closed(1006, "the test is over"))
        group.cancel_scope.cancel()
