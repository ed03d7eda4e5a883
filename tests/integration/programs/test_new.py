"""What `polybus new` writes: its tests pass, it is typed and formatted, and it serves, also with its durable handler on."""

import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import anyio.to_thread
import httpx
import pytest

from polybus import BadRequest, Bus, Forbidden, connect
from polybus.cli.app import run
from tests.integration.documentation.test_programs import TYPES_KNOWN
from tests.integration.interop.nats_servers import nats_server
from tests.integration.web.browser import browser
from tests.integration.web.support import Program, program
from tests.support import BOUND, HAS_IPV6, eventually, free_port

ORDER = {"article": "soup", "pieces": 2}


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    assert run(["new", str(tmp_path / "shop")]) == 0
    return tmp_path / "shop"


@pytest.fixture
def minimal(tmp_path: Path) -> Path:
    assert run(["new", str(tmp_path / "small shop"), "--minimal"]) == 0
    return tmp_path / "small shop"


@pytest.fixture
async def served(shop: Path) -> AsyncIterator[Program]:
    async with program(shop / "app.py", PORT="0") as running:
        yield running


@pytest.mark.parametrize("kind", ["shop", "minimal"])
@pytest.mark.parametrize(
    "check",
    [
        ["-W", "error", "-m", "pytest", "-q", "-p", "no:asyncio", "-p", "no:hypothesispytest", "-p", "no:cacheprovider"],
        ["-m", "ruff", "check", "--isolated", "--select", "B,E,F,I,UP"],
        ["-m", "ruff", "format", "--isolated", "--check"],
    ],
    ids=["pytest", "ruff", "format"],
)
def test_it_passes_its_tests_and_the_usual_checks(kind: str, check: list[str], request: pytest.FixtureRequest) -> None:
    folder = request.getfixturevalue(kind)
    ended = subprocess.run([sys.executable, *check], cwd=folder, capture_output=True, text=True, timeout=100, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.full
@pytest.mark.timeout(400)
@pytest.mark.parametrize("kind", ["shop", "minimal"])
def test_it_is_typed(kind: str, request: pytest.FixtureRequest) -> None:
    command, folder = [sys.executable, "-m", "mypy", "--strict", "--config-file="], request.getfixturevalue(kind)
    command += [f"--cache-dir={TYPES_KNOWN}", "app.py", "test_app.py"]
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=390, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr


async def test_the_page_shows_an_order_that_another_program_places(served: Program) -> None:
    async with browser() as chromium:
        tab = await chromium.tab(served.site)
        await tab.until("document.querySelector('#state').textContent === 'open'")
        await anyio.to_thread.run_sync(
            lambda: httpx.post(f"{served.site}/orders", json=ORDER, timeout=BOUND).raise_for_status()
        )
        await tab.until("document.querySelector('#orders').textContent.startsWith('2 soup (')")
        await tab.run("document.forms[0].pieces.min = document.forms[0].pieces.value = 0")
        await tab.fill("input", "bread")
        await tab.until("document.querySelector('#problem').textContent !== ''")
        await tab.run("document.forms[0].pieces.value = 1")
        await tab.fill("input", "s")
        await tab.until("document.querySelector('#orders').textContent.startsWith('1 breads (')")
        await tab.until("document.querySelector('#problem').textContent === ''")
        assert chromium.problems == []


async def test_it_tells_its_health_and_its_metrics_and_lets_clients_do_no_more_than_it_says(served: Program) -> None:
    async with httpx.AsyncClient(base_url=served.site, timeout=BOUND) as client:
        for path in ("/livez", "/readyz", "/metrics"):
            assert (await client.get(path)).status_code == 200, path
    async with connect(f"ubre+{served.site.replace('http', 'ws')}/bus") as bus:
        assert (await bus.request("order.place", ORDER))["article"] == "soup"
        with pytest.raises(Forbidden):
            async with bus.subscribe(">"):
                pass


async def test_with_its_durable_handler_on_each_order_is_billed(shop: Path, tmp_path: Path) -> None:
    with nats_server("wheel", f'jetstream {{ store_dir: "{tmp_path}" }}') as nats:
        async with (
            program(shop / "app.py", PORT="0", DURABLE="on", POLYBUS_CLUSTER=f"{nats.url}/shop") as running,
            Bus(cluster=f"{nats.url}/shop") as node,
            httpx.AsyncClient(base_url=running.site, timeout=BOUND) as client,
        ):
            async with node.subscribe("order.placed") as orders:
                placed = (await client.post("/orders", json=ORDER)).raise_for_status().json()
                assert (await orders.receive()).body == placed

            async def billed() -> bool:
                return 'subject="order.placed"' in (await client.get("/metrics")).text

            await eventually(billed)


@pytest.mark.parametrize("kind", ["shop", "minimal"])
@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("PORT", "abc", "PORT='abc': set a number, for example PORT=8000"),
        ("PORT", "99999", "65535"),
        ("HOST", "nowhere.invalid", "cannot listen on nowhere.invalid port 8000: "),
        ("HOST", "http://x", "http://x"),
        ("HOST", "a b", "cannot contain U+0020"),
        ("DURABLE", "on", "DURABLE=on: set POLYBUS_CLUSTER, as in nats+tcp://HOST:4222/shop"),
        ("STORE_REPLICAS", "three", "STORE_REPLICAS='three': set a number, for example STORE_REPLICAS=1"),
    ],
)
def test_it_says_in_one_line_that_an_environment_variable_is_wrong(
    kind: str, name: str, value: str, says: str, request: pytest.FixtureRequest
) -> None:
    command, environment = [sys.executable, "app.py"], os.environ | {name: value}
    folder = request.getfixturevalue(kind)
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=100, check=False)
    *log, told = ended.stderr.splitlines()
    assert ended.returncode == 1
    assert says in told
    assert [line for line in log if not line.startswith("INFO ")] == []


def test_a_program_without_its_nats_server_says_so_in_one_line(minimal: Path) -> None:
    command, environment = [sys.executable, "app.py"], os.environ | {"POLYBUS_CLUSTER": "nats+tcp://127.0.0.1:1/shop"}
    ended = subprocess.run(command, cwd=minimal, env=environment, capture_output=True, text=True, timeout=100, check=False)
    assert ended.returncode == 1
    assert "cannot connect to tcp://127.0.0.1:1: connection refused" in ended.stderr.splitlines()[-1]
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("127.0.0.1", "127.0.0.1"),
        pytest.param("::1", "[::1]", marks=pytest.mark.skipif(not HAS_IPV6, reason="this machine has no IPv6")),
    ],
)
async def test_the_minimal_one_serves_the_bus(minimal: Path, host: str, address: str) -> None:
    port = free_port()
    command, environment = [sys.executable, str(minimal / "app.py")], os.environ | {"HOST": host, "PORT": str(port)}
    process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)  # noqa: ASYNC220
    try:
        async with connect(f"ubre+ws://{address}:{port}/bus", wait=BOUND) as bus, bus.subscribe("order.placed") as orders:
            placed = await bus.request("order.place", ORDER)
            assert (await orders.receive()).body == placed
            with pytest.raises(BadRequest):
                await bus.request("order.place", {**ORDER, "pieces": 0})
    finally:
        process.kill()
        process.wait()
