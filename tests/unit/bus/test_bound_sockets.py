"""Serving at sockets that were bound before, by this process or another."""

import socket
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import pytest

from polybus import Bus, Unsupported, connect
from tests.support import BOUND

pytestmark = pytest.mark.native

ANYWHERE = [
    "ubre+tcp://127.0.0.1:0",
    "ubre+ws://127.0.0.1:0/bus",
    "ubre+unix://{folder}/bus.sock",
    "uprotocol+http://127.0.0.1:0/bus?entity=//a/b/1",
]


@pytest.mark.parametrize("form", ANYWHERE, ids=["tcp", "ws", "unix", "http"])
async def test_two_buses_serve_at_the_sockets_that_one_has_bound(form: str, tmp_path: Path) -> None:
    url = form.replace("{folder}", str(tmp_path))
    first, second = Bus(), Bus()
    one: Any = first.serve(url)
    two: Any = second.serve(url)
    bound: list[socket.socket] = await one.bind()
    two.serve_at([sock.dup() for sock in bound])
    one.serve_at([sock.dup() for sock in bound])
    with anyio.fail_after(BOUND):
        async with one as here:
            async with two as there:
                assert here.url == there.url
                assert ":0" not in here.url
            if "http" not in url:  # a request would connect
                async with connect(here.url):
                    pass
        # The address is still theirs who have bound it.
        assert not url.startswith("ubre+unix") or (tmp_path / "bus.sock").exists()
    for sock in bound:
        sock.close()


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("jrep+http://127.0.0.1:0/bus", "a session lives in one process, so several cannot share the address: use ws://"),
        ("ubre+memory://bound", "memory://bound cannot be shared by several processes: tcp, tls, unix, ws"),
    ],
)
async def test_an_address_that_processes_cannot_share_says_why(url: str, says: str) -> None:
    serving: Any = Bus().serve(url)
    with pytest.raises(Unsupported, match=says):
        await serving.bind()


@pytest.mark.parametrize(("form", "refused"), [*((form, True) for form in ANYWHERE), ("jrep+http://127.0.0.1:0/bus", False)])
async def test_a_released_address_refuses_new_clients_and_keeps_the_others(form: str, refused: bool, tmp_path: Path) -> None:
    bus, asked, answer = Bus(), anyio.Event(), anyio.Event()

    @bus.handle("held")
    async def held() -> str:
        asked.set()
        await answer.wait()
        return "answered"

    serving: Any = bus.serve(form.replace("{folder}", str(tmp_path)))
    with anyio.fail_after(BOUND):
        async with serving as here, connect(here.url) as client:
            reply = client.request("held", timeout=BOUND)
            await asked.wait()
            await serving.release()
            found = urlsplit(here.url)
            with pytest.raises(OSError) if refused else nullcontext():
                if "unix" in form:
                    await anyio.connect_unix(str(tmp_path / "bus.sock"))
                else:
                    await (await anyio.connect_tcp("127.0.0.1", found.port or 0)).aclose()
            answer.set()
            assert await reply == "answered"
