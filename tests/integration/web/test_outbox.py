"""The outbox example: what was ordered is billed once, although the shop is killed and the engine is away."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.integration.interop.nats_servers import NatsServer, nats_server
from tests.integration.web.support import Program
from tests.support import until

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "outbox" / "app.py"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    with nats_server("wheel", f'jetstream {{ store_dir: "{tmp_path / "stores"}" }}') as running:
        yield running


def shop(server: NatsServer, folder: Path) -> Program:
    return Program(EXAMPLE, PORT="0", DATABASE=f"sqlite:///{folder / 'shop.db'}", POLYBUS_CLUSTER=f"{server.url}/shop")


def order(running: Program, cents: int) -> str:
    with httpx.Client(base_url=running.site, timeout=20) as http:
        placed: str = http.post("/orders", json={"article": "paint", "cents": cents}).raise_for_status().json()["id"]
        return placed


def bills(running: Program) -> dict[str, int]:
    with httpx.Client(base_url=running.site, timeout=20) as http:
        found: dict[str, int] = http.get("/bills").raise_for_status().json()
        return found


def test_each_order_is_billed_once_whoever_is_killed(server: NatsServer, tmp_path: Path) -> None:
    running, placed = shop(server, tmp_path), dict[str, int]()
    try:
        for cents in range(5):
            placed[order(running, cents)] = cents
        running.kill()  # with whatever it was at
        running = shop(server, tmp_path)
        until(lambda: bills(running) == placed)
        server.kill()
        for cents in range(5, 10):  # they are in the outbox
            placed[order(running, cents)] = cents
        server.start()
        until(lambda: bills(running) == placed)
    finally:
        running.kill()
