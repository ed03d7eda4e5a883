"""A token in the query of a URL is for the server alone: nothing that a program shows of a link has it."""

import logging
from typing import Any

import pytest

from polybus import Bus, Cluster, ConnectFailed, Unauthorized, connect
from polybus.plugins import Handshake
from polybus.plugins.registry import resolve_url
from tests.refusal import refused
from tests.support import eventually

pytestmark = pytest.mark.native
TOKEN = "s3cr3tT0k3n"


@pytest.mark.parametrize(
    "url",
    [
        "ubre+ws://127.0.0.1:1/bus",
        "csb+ws://127.0.0.1:1/bus?side=broker-server",
        "jrep+http://127.0.0.1:1/bus",
        "uprotocol+http://127.0.0.1:1/bus?entity=%2F%2Fv%2Fa%2F1",
        "ubre+memory://nobody",
    ],
)
async def test_a_connect_that_fails_does_not_show_the_token(url: str, caplog: pytest.LogCaptureFixture) -> None:
    url += f"{'&' if '?' in url else '?'}access_token={TOKEN}&room=7"
    with caplog.at_level(logging.DEBUG, logger="polybus"), pytest.raises(ConnectFailed) as caught:
        async with connect(url):
            pass
    error = caught.value
    shown = [str(error), repr(error), error.url, repr(error.args), repr(error.__cause__), caplog.text]
    assert not [text for text in shown if TOKEN in text]
    assert "access_token=***&room=7" in error.url
    assert TOKEN not in repr(resolve_url(url)[1].connector(resolve_url(url)[2]))


@pytest.mark.parametrize("wire", ["ubre+ws://127.0.0.1:0/bus", "ubre+memory://tokens"])
async def test_a_link_that_comes_and_goes_does_not_show_the_token(wire: str, caplog: pytest.LogCaptureFixture) -> None:
    seen, shown = list[Handshake](), list[str]()

    def authenticate(handshake: Handshake) -> str:
        seen.append(handshake)
        return "ann"

    with caplog.at_level(logging.DEBUG, logger="polybus"):
        bus, client = Bus(authenticate=authenticate), Bus()
        async with bus.serve(wire) as server, connect(f"{server.url}?token={TOKEN}", bus=client):
            events: Any = client.events()
            await eventually(lambda: bus.peers)
            shown += [repr(bus.peers), repr(client.peers), bus.peers[0].address, repr(server)]
            for peer in bus.peers:
                await peer.aclose("bye")
            for _ in range(2):
                shown.append(repr(await anext(events)))
        assert seen[0].query["token"] == TOKEN
        shown.append(repr(seen[0]))
        assert bus.stats() and client.stats()
        shown += [repr(bus.stats()), repr(client.stats()), caplog.text]
    assert not [text for text in shown if TOKEN in text]
    assert any("token=***" in text for text in shown)


@pytest.mark.parametrize(
    "url", [f"nats+tcp://ann:{TOKEN}@h/shop", f"nats+tcp://{TOKEN}@h/shop", f"nats+tcp://h/shop?token={TOKEN}"]
)
def test_the_options_of_a_cluster_do_not_show_its_secrets(url: str) -> None:
    assert TOKEN not in repr(Cluster(url)) and Cluster(url).url == url


async def test_credentials_are_not_in_the_repr_of_a_handshake() -> None:
    seen: list[Handshake] = []

    def authenticate(handshake: Handshake) -> None:
        seen.append(handshake)

    async with Bus(authenticate=authenticate).serve("ubre+ws://127.0.0.1:0/bus") as server:
        headers = {"authorization": f"Bearer {TOKEN}", "cookie": f"session={TOKEN}", "x-room": "7"}
        await refused(connect(server.url, headers=headers), Unauthorized)
    assert seen[0].headers["authorization"].endswith(TOKEN) and seen[0].cookies["session"] == TOKEN
    assert TOKEN not in repr(seen[0]) and "'x-room': '7'" in repr(seen[0])
