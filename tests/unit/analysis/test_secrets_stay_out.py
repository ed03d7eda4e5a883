"""Secrets that went over the wires are in no table, no metric, no report and no output of an analysis."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from polybus import Bus, Context, Forbidden, Handshake, Identity, connect
from polybus.analysis import open_tables
from polybus.analysis.results import TABLES
from polybus.cli.app import run

SECRET = "hunter2"
HEADERS = {"authorization": f"Bearer {SECRET}", "cookie": f"session={SECRET}"}
BODY: dict[str, Any] = {
    "user": "joe",
    "db_pass": SECRET,
    "link": f"https://joe:{SECRET}@h/?token={SECRET}",
    "fields": [{"name": "otp", "value": SECRET}],
    "pairs": [["card", SECRET]],
}


@pytest.mark.parametrize("protocol", ["ubre", "csb", "jrep", "uprotocol"])
async def test_tokens_cookies_and_passwords_of_the_wires_stay_out(
    protocol: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capture, out, seen, published = tmp_path / "capture", tmp_path / "out", list[Any](), anyio.Event()

    def authenticate(handshake: Handshake) -> Identity:
        seen.extend((handshake.headers["authorization"], handshake.cookies["session"], handshake.query["token"]))
        return Identity("joe", key=f"https://joe:{SECRET}@shop.example")

    server, client = Bus(authenticate=authenticate), Bus()

    @server.handle("user.login")
    async def login(body: dict[str, Any], ctx: Context) -> dict[str, Any]:
        seen.append(ctx.message.headers)
        return body

    @server.handle("user.list")
    async def users(body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        yield body

    @server.handle("user.refuse")
    async def refuse(body: dict[str, Any]) -> None:
        raise Forbidden(f"wrong password={SECRET}")

    @server.on("user.seen")
    async def on_seen(body: dict[str, Any]) -> None:
        seen.append(body)
        published.set()

    async with server.record(capture), client.record(capture), server.serve(f"{protocol}+ws://127.0.0.1:0/bus") as listening:
        async with connect(f"{listening.url}?token={SECRET}", bus=client, headers=HEADERS):
            assert await client.request("user.login", BODY, headers=HEADERS) == BODY
            async with client.stream("user.list", BODY) as items:
                assert [item async for item in items] == [BODY]
            with pytest.raises(Forbidden, match=SECRET):
                await client.request("user.refuse", BODY)
            await client.publish("user.seen", BODY)
            await published.wait()
    assert str(seen).count(SECRET) == 10, seen
    assert run(["analyse", str(capture), "--out", str(out)]) == 0
    tables = {name: open_tables(out).sql(f"from {name}").fetchall() for name in TABLES}
    assert tables["exchanges"] and "user.refuse" in str(tables["events"])
    texts = {str(path): path.read_bytes() for path in out.rglob("*.*") if path.suffix in (".html", ".json")}
    assert len(texts) >= 2
    shown = {**tables, **texts, "output": capsys.readouterr()}
    assert [name for name, text in shown.items() if SECRET in str(text)] == []
