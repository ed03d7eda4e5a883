"""The tables of bad inputs against a real server, over TCP and HTTP: it survives them all and goes on answering."""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx
import pytest

from polybus import Bus, connect
from tests.raw import RawPeer
from tests.support import port_of
from tests.unit.protocols.by_hand import TABLES, Wire, csb, jrep, ubre, ubre_binary, uprotocol, uprotocol_protobuf
from tests.vectors.bad_inputs import FLOODS, JREP

from .processes import BOUND, MIB, Process, control, eventually, loop_of, running

LIMITS = {"frame_timeout": BOUND, "handshake_timeout": BOUND, "write_timeout": BOUND, "bad_messages": 100_000}
"""Of servers that wait for whoever is slow, on a busy machine too."""
URLS = {
    "ubre+tcp://127.0.0.1:0?format=json": ubre,
    "ubre+tcp://127.0.0.1:0?format=binary": ubre_binary,
    "csb+tcp://127.0.0.1:0": csb,
    "jrep+tcp://127.0.0.1:0": jrep,
    "uprotocol+tcp://127.0.0.1:0?format=json": uprotocol,
    "uprotocol+tcp://127.0.0.1:0?format=protobuf": uprotocol_protobuf,
}


@pytest.fixture(scope="module")
async def server(anyio_backend: Any) -> AsyncIterator[Process]:
    """One server for all: it has to survive them all."""
    async with running(urls=[*URLS], limits=LIMITS, **loop_of(anyio_backend)) as process:
        yield process


@pytest.fixture
async def bystander(server: Process) -> AsyncIterator[Bus]:
    """A good connection that is there all the time; nobody suffers, and the log has lines of ours alone."""
    async with connect(server.url) as bus:
        memory, log = server.memory(), server.log()
        yield bus
        assert server.running(), server.log()
        assert await bus.request("echo", "still here", timeout=BOUND) == "still here"
        async with connect(server.url) as newcomer:
            assert await newcomer.request("echo", "welcome", timeout=BOUND) == "welcome"
        assert server.memory() - memory < 8 * MIB
        assert bus.stats().reconnects == 0
        written = server.log()[len(log) :]
        assert "Traceback" not in written
        assert len(written) < 20_000
        assert all(line.startswith(("INFO:", "WARNING:", "ERROR:")) for line in written.splitlines())


class TcpLine(RawPeer):
    async def receive(self) -> bytes | int:
        """The next message, or the code with which the server has closed."""
        try:
            said = await self.receive_frame()
        except anyio.EndOfStream:
            return 1006
        return said if isinstance(said, bytes) else said[1]


@asynccontextmanager
async def line_to(url: str) -> AsyncIterator[TcpLine]:
    async with await anyio.connect_tcp("127.0.0.1", port_of(url)) as stream:
        yield TcpLine(stream)


async def heard(line: TcpLine, wire: Wire, sent: tuple[bytes, ...]) -> int | None:
    """Say it, and something good; the code with which the server closed, or None where the good request was answered."""
    async with anyio.create_task_group() as group:

        async def send() -> None:
            try:
                await line.send(*wire.greeting, *sent, wire.good)
            except anyio.BrokenResourceError:
                pass  # it does not read on after the first offence

        group.start_soon(send)
        said: bytes | int = b""
        while isinstance(said, bytes) and wire.answers not in said:
            said = await line.receive()
        group.cancel_scope.cancel()
    return said if isinstance(said, int) else None


async def reasons(bystander: Bus) -> Counter[str]:
    counted = (await control(bystander))["counted"]
    return Counter({name.removeprefix("refused."): n for name, n in counted.items() if name.startswith("refused.")})


@pytest.mark.parametrize("url", URLS)
async def test_a_server_survives_all_bad_inputs_of_a_protocol(server: Process, bystander: Bus, url: str) -> None:
    spoken = URLS[url]
    served = server.urls[list(URLS).index(url)]
    before, expected = await reasons(bystander), Counter[str]()
    for name, bad in TABLES[spoken].items():
        wire, closed, refused = spoken(None), bad.closed, bad.refused
        if bad.sent == (b"",):
            refused = ()  # a keep-alive
        async with line_to(served) as line:
            assert await heard(line, wire, bad.sent) == closed, name
        expected.update(refused)

    async def all_counted() -> bool:
        return await reasons(bystander) - before == expected

    if not url.startswith("uprotocol"):  # its ids are of another year, so more is refused for that
        await eventually(all_counted)


@pytest.mark.parametrize("name", FLOODS)
async def test_a_flood_is_bounded(server: Process, bystander: Bus, name: str) -> None:
    before = (await control(bystander))["stats"]["refused"]
    async with line_to(server.url) as line, anyio.create_task_group() as group:

        async def read() -> None:
            while not isinstance(await line.receive(), int):
                pass

        async def all_counted() -> bool:
            # Of 20,000: 1,024 subscriptions; 8 to 64 requests that run, and 4,096 that wait.
            return bool((await control(bystander))["stats"]["refused"] - before >= 20_000 - 64 - 4096)

        group.start_soon(read)
        await line.send(*FLOODS[name].sent)
        await eventually(all_counted)
        group.cancel_scope.cancel()


JSON = {"content-type": "application/json; charset=utf-8"}


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    """A client of a server of its own: uvicorn runs on asyncio."""
    async with running(urls=["jrep+http://127.0.0.1:0"], limits=LIMITS) as process:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{process.port}", timeout=BOUND, headers=JSON) as client:
            yield client
        assert process.running()
        assert "Traceback" not in process.log()


async def post(client: httpx.AsyncClient, body: bytes, **query: str) -> httpx.Response:
    return await client.post("/in.1-1.erraiBus", params={"clientId": "1-1", **query}, content=body)


async def test_a_server_survives_all_bad_posts(http: httpx.AsyncClient) -> None:
    wire = jrep()
    for name, bad in JREP.items():
        if bad.closed is not None:
            continue  # a post may be larger than a frame
        http.cookies.clear()
        answer = await post(http, *wire.greeting, phase="connection", wait="1")
        assert answer.json()[0]["CommandType"] == "FinishAssociation"
        assert (await post(http, *bad.sent)).status_code == 200, name
        said = (await post(http, wire.good)).content
        while wire.answers not in said:
            said = (await post(http, b"[]", wait="1")).content


async def test_a_post_of_another_site_s_page_is_refused(http: httpx.AsyncClient) -> None:
    http.headers["origin"] = "https://elsewhere.example"
    for body in (b'[{"ToSubject":"ServerBus","CommandType":"ConnectToQueue"}]', *jrep().greeting):
        assert (await post(http, body, phase="connection")).status_code == 403
