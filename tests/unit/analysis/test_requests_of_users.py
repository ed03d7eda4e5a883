"""Requests of users in results: those of buses themselves are told apart from them, and the trace that they carry is there."""

import json
from pathlib import Path
from typing import Any

import pytest

from polybus import Bus, connect
from polybus.analysis import DuckEngine, Pipeline, open_tables

PROTOCOLS = ("ubre", "csb", "uprotocol")
ASKED = 3
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_greetings_of_buses_are_no_requests_of_users_whose_traces_are_known(protocol: str, tmp_path: Path) -> None:
    subject = "//v/body/1/rpc.Get" if protocol == "uprotocol" else "user.get"
    server = Bus()

    @server.handle(subject)
    async def get(body: Any) -> Any:
        return body

    async with server.serve(f"{protocol}+tcp://127.0.0.1:0") as listener:
        async with connect(listener.url, record=tmp_path / "capture") as client:
            async with client.subscribe(subject.replace("rpc.Get", "door#News")):  # which needs to know whom it is told to
                for number in range(ASKED):
                    answer = await client.request(subject, {"number": number}, headers={"traceparent": TRACE})
                    assert answer == {"number": number}
    with DuckEngine() as engine:
        done = Pipeline(engine).run(tmp_path / "capture", tmp_path / "out")
    rows = open_tables(tmp_path / "out").sql("select subject from exchanges").fetchall()
    traced = open_tables(tmp_path / "out").sql("select distinct subject, traceparent from events where kind = 'request'")
    assert (subject if protocol != "csb" else "user.get", TRACE) in traced.fetchall()
    internal = [name for (name,) in rows if "_polybus." in name]
    totals = done.metrics["totals"]
    assert (totals["exchanges"], totals["internal"]) == (ASKED, len(internal)) == (ASKED, len(rows) - ASKED)
    assert internal
    told = {name: value for name, value in done.metrics.items() if name not in ("capture", "kinds", "sessions", "peers")}
    assert "_polybus." not in json.dumps(told)
    page = Path(done.report).read_text()  # noqa: ASYNC240  # a test waits for its file
    assert f"The handshakes of buses ({len(internal)})" in page
