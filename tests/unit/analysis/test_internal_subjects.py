"""Requests by which buses get to know each other are in the tables, and not among the numbers about users' requests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from polybus import Bus, connect
from polybus.analysis import DuckEngine, Pipeline, open_tables
from tests.support import bounded

PROTOCOLS = ("ubre", "csb", "jrep", "uprotocol")
ASKED = 3


@pytest.mark.anyio
@pytest.mark.parametrize("protocol", PROTOCOLS)
@bounded
async def test_greetings_of_buses_are_no_requests_of_users(protocol: str, tmp_path: Path) -> None:
    subject = "//v/body/1/rpc.Get" if protocol == "uprotocol" else "user.get"
    server = Bus()

    @server.handle(subject)
    async def get(body: Any) -> Any:
        return body

    async with server.serve(f"{protocol}+tcp://127.0.0.1:0") as listener:
        async with connect(listener.url, record=tmp_path / "capture") as client:
            async with client.subscribe(subject.replace("rpc.Get", "door#News")):  # which needs to know whom it is told to
                for number in range(ASKED):
                    assert await client.request(subject, {"number": number}) == {"number": number}
    with DuckEngine() as engine:
        done = Pipeline(engine).run(tmp_path / "capture", tmp_path / "out")
    rows = open_tables(tmp_path / "out").sql("select subject from exchanges").fetchall()
    internal = [name for (name,) in rows if "_polybus." in name]
    totals = done.metrics["totals"]
    assert (totals["exchanges"], totals["internal"]) == (ASKED, len(internal)) == (ASKED, len(rows) - ASKED)
    assert internal
    told = {name: value for name, value in done.metrics.items() if name not in ("capture", "kinds", "sessions", "peers")}
    assert "_polybus." not in json.dumps(told)
    page = Path(done.report).read_text()  # noqa: ASYNC240  # a test waits for its file
    assert f"{len(internal)} requests by which buses get to know each other" in page
