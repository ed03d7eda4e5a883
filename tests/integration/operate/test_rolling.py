"""Two processes of `polybus new` behind nginx are replaced under load, as the page about deployment says."""

import contextlib
import signal
import ssl
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import anyio.to_thread
import httpx
import pytest
import websockets
from attrs import define, field

from polybus import Backoff, Bus, Retry, connect
from polybus.cli.app import run
from tests.integration.interop.nats_servers import nats_server
from tests.integration.web.nginx import nginx
from tests.integration.web.support import Program
from tests.support import BOUND, eventually, free_port

from .tools import with_ports

pytestmark = pytest.mark.timeout(300)

HOST = "shop.example"


@define
class Site:
    port: int
    tls: ssl.SSLContext
    processes: dict[int, Program]
    app: Path
    cluster: str

    def start(self, port: int) -> None:
        environment = {"POLYBUS_CLUSTER": self.cluster, "ORIGINS": f"https://{HOST}:{self.port}"}
        self.processes[port] = Program(self.app, PORT=str(port), **environment)

    async def restart(self, port: int) -> None:
        """What `systemctl restart` does, and the loop of the page."""
        process = self.processes[port].process
        process.send_signal(signal.SIGTERM)
        assert await anyio.to_thread.run_sync(lambda: process.wait(BOUND)) == 0
        await anyio.to_thread.run_sync(self.start, port)
        async with httpx.AsyncClient(timeout=BOUND) as client:

            async def ready() -> bool:
                return (await client.get(f"http://127.0.0.1:{port}/readyz")).status_code == 200

            await eventually(ready)


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    assert run(["new", str(tmp_path / "shop")]) == 0
    ports = (free_port(), free_port())
    with nats_server("wheel") as nats, nginx(tmp_path, HOST, with_ports("nginx.conf", ports)) as (port, tls):
        found = Site(port, tls, {}, tmp_path / "shop" / "app.py", f"{nats.url}/shop")
        try:
            for each in ports:
                await anyio.to_thread.run_sync(found.start, each)
            yield found
        finally:
            for program in found.processes.values():
                program.kill()


@define
class Load:
    """Clients that count what they have asked, and what has failed."""

    site: Site
    placed: Counter[str] = field(factory=Counter)
    heard: list[Counter[str]] = field(factory=list)
    failed: list[str] = field(factory=list)
    enough: bool = False
    """Ends the askers, each after its answer: httpx leaves the socket of a TLS handshake open when that is cancelled."""

    @property
    def url(self) -> str:
        return f"ubre+wss://127.0.0.1:{self.site.port}/bus"

    async def goes_on(self) -> None:
        before = self.placed.total()
        await eventually(lambda: self.placed.total() > before + 50)

    async def post(self, client: httpx.AsyncClient) -> None:
        while not self.enough:
            answer = await client.post("/orders", json={"article": "by http", "pieces": 1})
            if answer.status_code == 200:
                self.placed[answer.json()["id"]] += 1
            else:
                self.failed.append(f"{answer.status_code} {answer.text}")

    async def ask(self, bus: Bus) -> None:
        """A client of the bus, which repeats what has not run."""
        while not self.enough:
            answer = await bus.request("order.place", {"article": "by bus", "pieces": 1}, retry=Retry(20))
            self.placed[answer["id"]] += 1

    async def hear(self, bus: Bus) -> None:
        heard: Counter[str] = Counter()
        self.heard.append(heard)
        async with bus.subscribe("order.placed", queue=100_000) as orders:
            async for order in orders:
                heard[order.body["id"]] += 1


async def test_a_new_version_under_load_fails_no_request_and_loses_no_publication(site: Site) -> None:
    load, soon = Load(site), Backoff(initial=0.02, maximum=0.2)
    async with contextlib.AsyncExitStack() as stack, anyio.create_task_group() as hearers:
        limits = httpx.Limits(max_keepalive_connections=2)
        client = httpx.AsyncClient(base_url=f"https://127.0.0.1:{site.port}", verify=site.tls, limits=limits, timeout=BOUND)
        await stack.enter_async_context(client)
        buses = [await stack.enter_async_context(connect(load.url, tls=site.tls, backoff=soon)) for _ in range(4)]
        for bus in buses:
            hearers.start_soon(load.hear, bus)
        await eventually(lambda: len(load.heard) == len(buses))
        for bus in buses:  # subscribed, since a link is read in order
            await bus.request("order.place", {"article": "first", "pieces": 1})
        before = {program.process.pid for program in site.processes.values()}
        async with anyio.create_task_group() as askers:
            for bus in buses[:2]:
                askers.start_soon(load.ask, bus)
            for _ in range(3):
                askers.start_soon(load.post, client)
            for port in [*site.processes]:
                await load.goes_on()
                await site.restart(port)
            await load.goes_on()
            load.enough = True
        assert not before & {program.process.pid for program in site.processes.values()}
        assert load.failed == []
        assert all(bus.stats().reconnects > 0 for bus in buses)
        await eventually(lambda: all(load.placed.keys() <= heard.keys() for heard in load.heard))
        assert {count for heard in load.heard for count in heard.values()} == {1}
        hearers.cancel_scope.cancel()


async def test_a_page_connects_through_the_proxy_and_the_metrics_stay_inside(site: Site) -> None:
    with anyio.fail_after(BOUND):
        page = websockets.connect(
            f"wss://{HOST}:{site.port}/bus",
            host="127.0.0.1",
            ssl=site.tls,
            origin=websockets.Origin(f"https://{HOST}:{site.port}"),
            proxy=None,
        )
        async with page as socket:
            await socket.send('{"request": "order.place", "body": {"article": "soup", "pieces": 2}, "id": 1}')
            assert '"success":1' in str(await socket.recv()).replace(" ", "")
        async with httpx.AsyncClient(base_url=f"https://127.0.0.1:{site.port}", verify=site.tls, timeout=BOUND) as client:
            assert (await client.get("/metrics")).status_code == 403
            assert (await client.get("/readyz")).status_code == 200
