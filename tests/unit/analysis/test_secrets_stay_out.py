"""What a recording has blanked is in no table, no metric and no page that is made of it."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from polybus import Bus, connect
from polybus.analysis import open_tables
from tests.unit.capture.folders import rows_in

from .days import analyse

_SECRET = "hunter2"
_BODY: dict[str, Any] = {
    "user": "joe",
    "db_pass": _SECRET,
    "link": f"https://joe:{_SECRET}@h/?token={_SECRET}",
    "fields": [{"name": "otp", "value": _SECRET}],
    "pairs": [["card", _SECRET]],
}


async def test_secrets_of_requests_answers_streams_and_publications_are_in_no_file(tmp_path: Path) -> None:
    server, client = Bus(), Bus()

    @server.handle("user.login")
    async def login(body: dict[str, Any]) -> dict[str, Any]:
        return body

    @server.handle("user.list")
    async def users(body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        yield body

    async with server.record(tmp_path / "capture"), server.serve(f"ubre+memory://{tmp_path.name}") as listening:
        async with connect(listening.url, bus=client):
            assert await client.request("user.login", _BODY) == _BODY
            async with client.stream("user.list", _BODY) as items:
                assert [item async for item in items] == [_BODY]
            await client.publish("user.seen", _BODY)
    done = analyse(tmp_path / "capture", tmp_path / "out", report=True)
    tables = open_tables(tmp_path / "out")
    found = (
        [row["frame"] or b"" for row in rows_in(tmp_path / "capture")],
        *(tables.sql(f"from {table}").fetchall() for table in ("events", "exchanges")),
    )
    assert all(found)
    page = Path(done.report).read_text(encoding="utf-8")  # noqa: ASYNC240  # a test waits for its file
    assert [where for where in (*found, json.dumps(done.metrics), page) if _SECRET in str(where)] == []
