"""Bodies of clients that nobody has let in yet: what is there of them is charged to their network address."""

import json
import tracemalloc
from collections.abc import AsyncIterator, MutableMapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import anyio.lowlevel
import httpx
import pytest
from anyio.abc import SocketStream

from polybus import Bus, Limits
from polybus.bindings.http.server import HttpEndpoint, HttpRequest
from polybus.plugins import Handshake
from polybus.protocols.uprotocol import IdFactory
from tests.support import BOUND, eventually, port_of
from tests.unit.protocols.uprotocol.support import HI

from .support import POST, both_servers, echoing, listen_options  # noqa: F401  # pytest finds the fixture by its name here

KIB = 1024
TOTAL = 8 * KIB * KIB
CROWD = 50
"""Clients that want six times as much together."""
SIZE = 950_000
ASSOCIATE = '[{"ToSubject":"ServerBus","CommandType":"Associate","PriorityProcessing":"1","RemoteServices":"ClientBus"}]'
IDS = IdFactory()
TYPES = {"jrep": "application/json", "uprotocol": "application/cloudevents+json"}


def make_bus(authenticate: Any = None, **limits: Any) -> Bus:
    return echoing(limits=Limits(**{"total_bytes": TOTAL, "close_timeout": 0.1, **limits}), authenticate=authenticate)


@asynccontextmanager
async def serving(bus: Bus, protocol: str = "jrep") -> AsyncIterator[int]:
    async with bus.serve(f"{protocol}+http://127.0.0.1:0/") as listener:
        yield port_of(listener.url)


def head(protocol: str, size: int, number: int = 1, more: str = "") -> bytes:
    path = f"/in.{number}.erraiBus?clientId={number}" if protocol == "jrep" else "/"
    fields = f"Host: 127.0.0.1\r\nContent-Type: {TYPES[protocol]}\r\nContent-Length: {size}\r\n{more}\r\n"
    return f"POST {path} HTTP/1.1\r\n{fields}".encode()


class Crowd:
    def __init__(self) -> None:
        self.sent = 0
        self.answers: list[bytes] = []

    async def post(self, port: int, protocol: str, number: int) -> None:
        """Send a body but for its last byte, and read the answer."""
        async with await anyio.connect_tcp("127.0.0.1", port) as stream, anyio.create_task_group() as group:
            group.start_soon(self._read, stream)
            with suppress(anyio.BrokenResourceError):  # hypercorn closes after its answer
                await stream.send(head(protocol, SIZE + 1, number) + b" " * SIZE)
            self.sent += 1

    async def _read(self, stream: SocketStream) -> None:
        answer = b""
        with suppress(anyio.BrokenResourceError, anyio.EndOfStream):
            while b"later\n" not in answer:
                answer += await stream.receive()
        if answer:
            self.answers.append(answer)


def held(bus: Bus) -> int:
    return bus._services.running.buffered


def event(size: int) -> dict[str, Any]:
    names = {"source": "//hu.veh7/hmi.app/1/rpc.response", "sink": "//VCU.VIN/body.access/1/rpc.echo"}
    facts = {"specversion": "1.0", "id": IDS.next(), "type": "req.v1", "priority": "CS4", "ttl": 5000}
    return {**facts, **names, "data_base64": HI, "filler": "x" * size}


async def ask(port: int, protocol: str, address: str, size: int = 100_000) -> int:
    """Status of the answer to a client that comes from this address, with a body that is charged, and goes."""
    if protocol == "jrep":
        path, body = "/in.g.erraiBus?clientId=g&phase=connection", ASSOCIATE + " " * size
    else:
        path, body = "/", json.dumps(event(size))
    async with httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(local_address=address), timeout=BOUND) as http:
        answer = await http.post(f"http://127.0.0.1:{port}{path}", content=body, headers={"content-type": TYPES[protocol]})
    return answer.status_code


@pytest.mark.parametrize("protocol", ["jrep", "uprotocol"])
async def test_bodies_of_strangers_stay_within_the_share_of_their_address_and_others_are_answered(protocol: str) -> None:
    bus, crowd = make_bus(), Crowd()
    async with serving(bus, protocol) as port, anyio.create_task_group() as group:
        for number in range(CROWD):
            group.start_soon(crowd.post, port, protocol, number)
        # Those that were taken in wait for the rest; the others are told.
        await eventually(lambda: crowd.sent == CROWD and len(crowd.answers) * SIZE + held(bus) >= CROWD * SIZE)
        assert TOTAL // 5 < held(bus) <= 3 * TOTAL // 5
        assert crowd.answers[0].startswith(b"HTTP/1.1 503 ")
        assert b"retry-after: 1\r\n" in crowd.answers[0].lower()
        assert b"Limits.total_bytes" in crowd.answers[0]
        for address in ("127.0.0.2", "127.0.0.3"):
            assert await ask(port, protocol, address) == 200
        assert await ask(port, protocol, "127.0.0.1", 20_000) == 200, "one of the same address that asks for little"
        group.cancel_scope.cancel()
        with anyio.CancelScope(shield=True):
            await eventually(lambda: held(bus) == 0)


@pytest.mark.parametrize("after", ["gone", "413", "401", "200", "expired", "session"])
async def test_what_was_charged_is_given_back_whatever_the_way_a_request_ends(after: str) -> None:
    admit = (lambda handshake: None) if after == "401" else None
    bus = make_bus(authenticate=admit, message=300_000)
    size = 400_000 if after == "413" else 200_000
    first = ASSOCIATE[:-1].encode() if after in ("401", "200") else b"[" + b" " * 100
    first += b" " * (100_000 - len(first))
    async with serving(bus) as port:
        cookie = ""
        if after == "session":
            async with httpx.AsyncClient(timeout=BOUND) as http:
                url = f"http://127.0.0.1:{port}/in.1.erraiBus?clientId=1&phase=connection"
                await http.post(url, content=ASSOCIATE, headers={"content-type": TYPES["jrep"]})
                cookie = f"Cookie: polybus-errai={http.cookies['polybus-errai']}\r\n"
        async with await anyio.connect_tcp("127.0.0.1", port) as stream:
            await stream.send(head("jrep", size, more=cookie) + first)
            await eventually(lambda: held(bus) == len(first))
            assert list(bus._services.running.addresses) == ["127.0.0.1"]
            if after != "gone":
                rest = b" " * (size - len(first) - 1) + b"]"
                with suppress(anyio.BrokenResourceError):
                    await stream.send(rest)
                status = {"expired": "200", "session": "200"}.get(after, after)
                assert (await stream.receive()).startswith(f"HTTP/1.1 {status} ".encode())
        await eventually(lambda: held(bus) == 0)
        links = [link.share.address for link in bus._services.running.links if link.share is not None]
        assert list(bus._services.running.addresses.values()) == links


async def test_a_body_counts_until_its_client_has_been_asked_about() -> None:
    asked, decided = anyio.Event(), anyio.Event()

    async def authenticate(handshake: Handshake) -> str:
        asked.set()
        await decided.wait()
        return "ann"

    bus = make_bus(authenticate=authenticate)
    async with serving(bus) as port, anyio.create_task_group() as group:
        group.start_soon(ask, port, "jrep", "127.0.0.1")
        await asked.wait()
        assert held(bus) > 100_000
        decided.set()
        await eventually(lambda: bus.peers and held(bus) == 0)


async def test_a_body_in_parts_of_two_bytes_costs_no_more_than_a_whole_one() -> None:
    left = 20_000

    async def receive() -> dict[str, Any]:
        nonlocal left
        left -= 1
        await anyio.lowlevel.checkpoint()
        return {"type": "http.request", "body": b"%2d" % (left % 100), "more_body": left > 0}

    bus = make_bus()
    async with bus:
        tracemalloc.start()
        try:
            request = HttpRequest(listen_options(bus), POST, receive, set())
            body = await request.body()
            assert body is not None and len(body) == 40_000
            # Its buffer and the bytes that are made of it.
            assert tracemalloc.get_traced_memory()[1] < 400_000
            assert held(bus) == 40_000
        finally:
            tracemalloc.stop()
        request.release()
        assert held(bus) == 0


class Reader(HttpEndpoint):
    """Reads the body of every request, and is never asked what it makes of one."""

    async def take(self, request: HttpRequest, send: Any) -> None:
        await request.body()


@pytest.mark.parametrize("status", [413, 503, 408])
async def test_a_body_that_was_refused_is_gone_while_its_client_is_told(status: int) -> None:
    limits: dict[int, Any] = {413: {"message": SIZE}, 503: {"total_bytes": 2 * SIZE}, 408: {"frame_timeout": 0.5}}
    left = SIZE // 1_000 if status == 408 else 2 * SIZE // 1_000
    told: dict[int, int] = {}

    async def receive() -> dict[str, Any]:
        nonlocal left
        left -= 1
        if left < 0:
            await anyio.sleep_forever()
        await anyio.lowlevel.checkpoint()
        return {"type": "http.request", "body": b" " * 1_000, "more_body": True}

    async def send(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            told[message["status"]] = tracemalloc.get_traced_memory()[0]

    bus, endpoint = make_bus(**limits[status]), Reader()
    async with bus:
        await endpoint.listen(listen_options(bus))
        tracemalloc.start()
        try:
            await endpoint.exchange(POST, receive, send)
            assert tracemalloc.get_traced_memory()[1] > SIZE // 2, "there was a body"
        finally:
            tracemalloc.stop()
        assert held(bus) == 0 and not bus._services.running.addresses
    assert list(told) == [status]
    assert told[status] < 100_000
