"""`polybus broker`, as a process, and `polybus serve` behind it."""

from __future__ import annotations

import signal
from pathlib import Path

import anyio

from polybus import connect
from tests.support import BOUND

from .support import next_line, serve_process, started

ADDRESSES = ("--clients", "csb+ws://127.0.0.1:0/game", "--servers", "csb+tcp://127.0.0.1:0")
APP = """
from polybus import Bus

bus = Bus()

@bus.handle("double")
async def double(body: int) -> int:
    return 2 * body
"""


def test_it_says_where_it_is_hands_on_to_a_server_and_leaves_in_order(tmp_path: Path) -> None:
    async def use(url: str) -> None:
        async with connect(url) as client:
            assert await client.request("double", 7) == 14

    with started("broker", *ADDRESSES, "--metrics", "http://127.0.0.1:0") as broker:
        urls = dict(next_line(broker).split() for _ in range(3))
        assert set(urls) == {"clients", "servers", "metrics"}
        with serve_process(tmp_path, url=f"{urls['servers']}&pool=2", app=APP) as (url, server):
            assert url == f"{urls['servers']}&pool=2"
            anyio.run(use, urls["clients"])
            server.send_signal(signal.SIGTERM)
            _, told = server.communicate(timeout=BOUND)
            assert server.returncode == 0 and told.endswith("INFO polybus: SIGTERM, draining\n")
        broker.send_signal(signal.SIGINT)
        _, told = broker.communicate(timeout=BOUND)
        assert (broker.returncode, told) == (0, "")
