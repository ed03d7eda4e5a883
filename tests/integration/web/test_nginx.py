"""Behind nginx, configured as people do it: TLS ends there, users come in under the name of the site."""

import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest
import websockets
from attrs import frozen
from fastapi import FastAPI

from polybus import Bus, Context, Identity, connect
from polybus.fastapi import attach
from polybus.plugins import Handshake
from tests.integration.web.nginx import nginx
from tests.integration.web.support import running
from tests.support import BOUND, eventually

CONFIGURATION = """
map $http_upgrade $connection_upgrade {
    default upgrade;
    ''      close;
}
server {
    listen 443 ssl;
    server_name app.example;
    ssl_certificate /etc/nginx/shop.pem;
    ssl_certificate_key /etc/nginx/shop.key;
    location / {
        proxy_pass http://127.0.0.1:UPSTREAM;
        proxy_http_version 1.1;
        proxy_set_header Upgrade $http_upgrade;
        proxy_set_header Connection $connection_upgrade;
        proxy_set_header Host $host;
        proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
        proxy_set_header X-Forwarded-Proto $scheme;
    }
}
"""


@frozen
class Site:
    port: int
    tls: ssl.SSLContext
    bus: Bus
    handshakes: list[Handshake]

    def browser(self, origin: str, **headers: str) -> Any:
        """What a page of some origin does."""
        where: dict[str, Any] = {"host": "127.0.0.1", "port": self.port, "ssl": self.tls, "proxy": None}
        where["origin"] = websockets.Origin(origin)
        return websockets.connect("wss://app.example/bus", additional_headers=headers, **where)


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    handshakes: list[Handshake] = []

    def authenticate(handshake: Handshake) -> Identity | None:
        handshakes.append(handshake)
        user = handshake.cookies.get("user")
        return Identity(user, key=user) if user else None

    bus, app = Bus(authenticate=authenticate), FastAPI()

    @bus.handle("whoami")
    async def whoami(ctx: Context) -> Any:
        return [ctx.identity, ctx.peer.address if ctx.peer is not None else ""]

    @bus.handle("size")
    async def size(body: str) -> Any:
        return {"size": len(body), "back": body}

    attach(app, bus, hosts=["app.example"])
    async with running(app, proxy_headers=True) as server:
        with nginx(tmp_path, "app.example", CONFIGURATION.replace("UPSTREAM", str(server.port))) as (port, tls):
            yield Site(port, tls, bus, handshakes)


async def test_a_page_of_the_site_talks_through_the_proxy(site: Site) -> None:
    with anyio.fail_after(BOUND):
        async with site.browser("https://app.example", Cookie="user=ann") as page:
            await page.send('{"request": "whoami", "id": 1}')
            answer = await page.recv()
            assert '"success":1,"body":["ann","127.0.0.1:' in answer
    handshake = site.handshakes[0]
    assert (handshake.transport, handshake.origin) == ("wss", "https://app.example")
    assert handshake.headers["host"] == "app.example"
    assert handshake.headers["x-forwarded-proto"] == "https"


async def test_a_page_of_another_site_is_told_403_and_a_stranger_401(site: Site) -> None:
    with anyio.fail_after(BOUND):
        for origin, cookie, status in (
            ("https://evil.example", "user=ann", 403),
            ("http://app.example", "user=ann", 403),
            ("https://app.example", "user=", 401),
        ):
            with pytest.raises(websockets.InvalidStatus) as caught:
                async with site.browser(origin, Cookie=cookie):
                    pass
            assert caught.value.response.status_code == status


async def test_our_own_client_comes_in_with_frames_of_every_size_and_comes_back(site: Site) -> None:
    url = f"ubre+wss://127.0.0.1:{site.port}/bus"
    with anyio.fail_after(BOUND):
        async with connect(url, tls=site.tls, headers={"Cookie": "user=ann"}) as client:
            for size in (0, 1000, 65_536, 500_000):
                body = "x" * size
                assert await client.request("size", body) == {"size": size, "back": body}
            [peer] = site.bus.peers_of("ann")
            await peer.aclose("again")
            await eventually(lambda: client.stats().reconnects == 1)
            assert (await client.request("whoami"))[0] == "ann"
