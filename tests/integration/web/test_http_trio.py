"""HTTP on trio: our client, and a bus alone, which hypercorn serves there."""

from __future__ import annotations

import ssl
import sys
from typing import Any

import anyio
import httpx
import pytest
import trustme

from polybus import Bus, Unsupported, connect
from tests.support import BOUND

from .test_errai import make_bus

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    """All others of this folder are on asyncio."""
    return "trio", {}


@pytest.mark.parametrize("channel", ["poll", "events", "websocket"])
async def test_requests_and_publications_go_both_ways(channel: str) -> None:
    bus = make_bus()
    with anyio.fail_after(BOUND):
        async with bus.serve("jrep+http://127.0.0.1:0") as listener:
            async with connect(f"{listener.url}?channel={channel}") as client, client.subscribe("news", queue=200) as news:
                assert await client.request("echo", [1, {"a": None}]) == [1, {"a": None}]
                for number in range(100):
                    await bus.publish("news", number)
                assert [(await anext(news)).body for _ in range(100)] == list(range(100))
                assert await client.request("com.acme.Calculator:RPC.add:java.lang.Integer:java.lang.Integer:", [2, 3]) == 5


@pytest.mark.parametrize("path", ["", "/", "/bus"])
@pytest.mark.parametrize("protocol", ["jrep", "uprotocol"])
async def test_the_url_of_a_listener_can_be_dialled_whatever_its_path(protocol: str, path: str) -> None:
    with anyio.fail_after(BOUND):
        async with make_bus().serve(f"{protocol}+http://127.0.0.1:0{path}") as listener, connect(listener.url) as client:
            assert await client.request("echo", 1) == 1


async def test_what_is_not_served_is_said_so_and_tls_is_there() -> None:
    authority = trustme.CA()
    server, client = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), ssl.create_default_context()
    authority.issue_cert("127.0.0.1").configure_cert(server)
    authority.configure_trust(client)
    with anyio.fail_after(BOUND):
        async with make_bus().serve("jrep+https://127.0.0.1:0", tls=server) as listener:
            async with httpx.AsyncClient(base_url=listener.url.removeprefix("jrep+"), verify=client) as http:
                answer = await http.get("/elsewhere")
                assert (answer.status_code, "nothing is served" in answer.text) == (404, True)
            async with connect(listener.url, tls=client) as bus:
                assert await bus.request("echo", "secret") == "secret"


async def test_an_address_is_released_with_its_bus() -> None:
    url = "jrep+http://127.0.0.1:0"
    with anyio.fail_after(BOUND):
        for _ in range(2):
            async with make_bus().serve(url) as listener, connect(listener.url) as client:
                url = listener.url
                assert await client.request("echo", 1) == 1


async def test_without_hypercorn_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hypercorn.config", None)
    monkeypatch.delitem(sys.modules, "polybus.bindings.http.hypercorn", raising=False)
    with pytest.raises(Unsupported, match="pip install hypercorn"):
        async with Bus().serve("jrep+http://127.0.0.1:0"):
            pass
