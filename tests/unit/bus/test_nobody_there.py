"""Advice for a first connect to an address where nobody is."""

import errno
import socket
from pathlib import Path

import pytest

from polybus import Bus, Cluster, ConnectFailed, Limits, connect
from polybus._core.bus.dialer import advice_for
from polybus.cli.problems import describe
from tests.refusal import refused
from tests.support import free_port
from tests.unit.transports.support import Raw, raw_server


@pytest.mark.parametrize(
    ("url", "where"),
    [
        ("ubre+ws://shop.example/bus", " (on port 80, because the URL has none)"),
        ("ubre+wss://[::1]/bus", " (on port 443, because the URL has none)"),
        ("ws://ann:secret@shop.example/bus", " (on port 80, because the URL has none)"),
        ("ubre+ws://shop.example:8000/bus", ""),
        ("ubre+tcp://shop.example:9000", ""),
    ],
)
def test_the_port_is_told_where_the_url_leaves_it_out(url: str, where: str) -> None:
    refused = ConnectFailed(url, "connection refused: no server listens there", errno=errno.ECONNREFUSED)
    assert advice_for(refused) == f"{where}; is the server running? connect(..., wait=30) keeps trying"
    assert advice_for(ConnectFailed(url, "the server answered 404 Not Found", status=404)) is None  # it is there


@pytest.mark.parametrize("wait", [0, 0.05])
async def test_a_server_that_says_nothing_is_waited_for_by_whoever_may_wait(wait: float) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # connections wait in its backlog
        address = f"nats+tcp://127.0.0.1:{silent.getsockname()[1]}"
        limits = Limits(handshake_timeout=0.05)
        with pytest.raises(ConnectFailed, match=r"or speak another protocol; Cluster\(\.\.\., wait=30\) waits longer for it$"):
            async with Bus(cluster=Cluster(f"{address}/shop", wait=wait), limits=limits):
                raise AssertionError
        text = r"or speak another protocol; connect\(\.\.\., wait=30\) keeps trying$"
        await refused(connect(address, limits=limits), ConnectFailed, match=text)


@pytest.mark.parametrize("wire", ["ubre+tcp", "ubre+ws", "ubre+unix", "ubre+memory", "jrep+http", "uprotocol+http"])
async def test_a_server_that_is_not_there_is_told_by_its_error_number(wire: str, tmp_path: Path) -> None:
    places = {"ubre+unix": str(tmp_path / "none.sock"), "ubre+memory": "nobody"}
    url = f"{wire}://{places.get(wire, f'127.0.0.1:{free_port()}')}"
    with pytest.raises(ConnectFailed) as caught:
        async with connect(url):
            raise AssertionError
    assert caught.value.errno == (errno.ENOENT if wire == "ubre+unix" else errno.ECONNREFUSED)
    assert describe(caught.value)[0].endswith("; is the server running? --wait S keeps trying")


@pytest.mark.parametrize("wire", ["ubre+ws", "jrep+http", "uprotocol+http"])
async def test_a_server_that_rejects_is_told_by_its_status(wire: str) -> None:
    async def answer(raw: Raw) -> None:
        await raw.until(b"\r\n\r\n")
        await raw.send(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")

    async with raw_server(answer) as port:
        with pytest.raises(ConnectFailed, match="the server answered 503") as caught:
            async with connect(f"{wire}://127.0.0.1:{port}"):
                raise AssertionError
    assert (caught.value.errno, caught.value.status) == (None, 503)
