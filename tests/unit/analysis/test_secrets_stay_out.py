"""What a recording has blanked is in no table, no metric and no page that is made of it."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from polybus import Bus, connect
from polybus.analysis import DuckEngine, Pipeline, open_tables
from tests.unit.capture.folders import rows_in

_SECRET = "hunter2"
_BODY: dict[str, Any] = {
    "user": "joe",
    "db_pass": _SECRET,
    "link": f"https://joe:{_SECRET}@h/?token={_SECRET}",
    "fields": [{"name": "otp", "value": _SECRET}],
    "pairs": [["card", _SECRET]],
}


def _all_of(folder: Path) -> list[Any]:
    """All frames, tables and metrics, and the page."""
    capture = str(folder / "capture")
    frames = [row["frame"] or b"" for row in rows_in(folder / "capture")]
    done = Pipeline(DuckEngine()).run(capture, str(folder / "out"))
    tables = open_tables(folder / "out")
    events, exchanges = (tables.sql(f"from {table}").fetchall() for table in ("events", "exchanges"))
    assert frames and events and exchanges
    return [*frames, events, exchanges, json.dumps(done.metrics), Path(done.report).read_text(encoding="utf-8")]


@pytest.mark.parametrize("protocol", ["ubre", "uprotocol"])
async def test_secrets_of_requests_answers_streams_and_publications_are_in_no_file(protocol: str, tmp_path: Path) -> None:
    server, client = Bus(), Bus()

    @server.handle("user.login")
    async def login(body: dict[str, Any]) -> dict[str, Any]:
        return body

    if protocol == "ubre":

        @server.handle("user.list")
        async def users(body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
            yield body

    async with server.record(str(tmp_path / "capture")), server.serve(f"{protocol}+memory://{tmp_path.name}") as listening:
        async with connect(listening.url, bus=client):
            assert await client.request("user.login", _BODY) == _BODY
            if protocol == "ubre":
                async with client.stream("user.list", _BODY) as items:
                    assert [item async for item in items] == [_BODY]
            await client.publish("user.seen", _BODY)
    assert [where for where in _all_of(tmp_path) if _SECRET in str(where)] == []
