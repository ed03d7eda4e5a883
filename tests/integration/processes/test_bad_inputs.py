"""The tables of bad inputs against a real server, over each socket: it survives them all and goes on answering."""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx
import pytest
from anyio.abc import SocketStream
from websockets.client import ClientProtocol
from websockets.frames import Close, Opcode
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from polybus import Bus, connect
from tests.unit.protocols.by_hand import TABLES, Wire, csb, jrep, ubre, ubre_binary, uprotocol, uprotocol_protobuf
from tests.vectors.bad_inputs import FLOODS, JREP

from .processes import BOUND, MIB, Process, control, eventually, loop_of, port_of, running
from .raw import RawPeer

LIMITS = {"frame_timeout": BOUND, "handshake_timeout": BOUND, "write_timeout": BOUND, "bad_messages": 100_000}
"""Of servers that wait for whoever is slow, on a busy machine too."""
URLS = {
    "ubre+tcp://127.0.0.1:0?format=json": ubre,
    "ubre+ws://127.0.0.1:0?format=json": ubre,
    "ubre+tcp://127.0.0.1:0?format=binary": ubre_binary,
    "ubre+ws://127.0.0.1:0?format=binary": ubre_binary,
    "csb+tcp://127.0.0.1:0": csb,
    "csb+ws://127.0.0.1:0": csb,
    "jrep+tcp://127.0.0.1:0": jrep,
    "jrep+ws://127.0.0.1:0": jrep,
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


class WebSocketLine:
    def __init__(self, stream: SocketStream, url: str, wire: Wire) -> None:
        self._stream = stream
        self._protocol = ClientProtocol(
            parse_uri(f"ws://127.0.0.1:{port_of(url)}/"), subprotocols=[Subprotocol(wire.adapter.name)]
        )
        self._say = self._protocol.send_text if wire.adapter.codec().writes == "text" else self._protocol.send_binary
        self._events: list[Any] = []
        self._writing = anyio.Lock()

    async def upgrade(self) -> None:
        self._protocol.send_request(self._protocol.connect())
        await self._flush()
        assert (await self._next()).status_code == 101

    async def send(self, *frames: bytes) -> None:
        for frame in frames:
            self._say(frame)
        await self._flush()

    async def receive(self) -> bytes | int:
        frame = await self._next()
        return Close.parse(frame.data).code if frame.opcode is Opcode.CLOSE else bytes(frame.data)

    async def _next(self) -> Any:
        while not self._events:
            with anyio.fail_after(BOUND):
                self._protocol.receive_data(await self._stream.receive())
            self._events += [one for one in self._protocol.events_received() if getattr(one, "opcode", None) is not Opcode.PING]
            await self._flush()
        return self._events.pop(0)

    async def _flush(self) -> None:
        async with self._writing:
            await self._stream.send(b"".join(self._protocol.data_to_send()))


@asynccontextmanager
async def line_to(url: str, wire: Wire) -> AsyncIterator[TcpLine | WebSocketLine]:
    async with await anyio.connect_tcp("127.0.0.1", port_of(url)) as stream:
        if "+ws" in url:
            line = WebSocketLine(stream, url, wire)
            await line.upgrade()
            yield line
        else:
            yield TcpLine(stream)


async def heard(line: TcpLine | WebSocketLine, wire: Wire, sent: tuple[bytes, ...]) -> int | None:
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
        if "+ws" in url and wire.adapter.codec().writes == "text" and name == "no UTF-8":
            closed, refused = 1007, ()  # a WebSocket closes by itself on that
        if "+tcp" in url and bad.sent == (b"",):
            refused = ()  # a keep-alive
        async with line_to(served, wire) as line:
            assert await heard(line, wire, bad.sent) == closed, name
        expected.update(refused)

    async def all_counted() -> bool:
        return await reasons(bystander) - before == expected

    if not url.startswith("uprotocol"):  # its ids are of another year, so more is refused for that
        await eventually(all_counted)


@pytest.mark.parametrize("name", FLOODS)
async def test_a_flood_is_bounded(server: Process, bystander: Bus, name: str) -> None:
    before = (await control(bystander))["stats"]["refused"]
    wire = ubre()
    async with line_to(server.url, wire) as line, anyio.create_task_group() as group:

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
