"""Advice for a first connect to an address where nobody is."""

import errno
import socket

import pytest

from polybus import Bus, Cluster, ConnectFailed, Limits, connect
from polybus._core.bus.dialer import advice_for
from tests.refusal import refused
from tests.support import free_port


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
async def test_a_bus_whose_engine_is_not_there_says_so(wait: float) -> None:
    bus = Bus(cluster=Cluster(f"nats+tcp://127.0.0.1:{free_port()}/shop", wait=wait))
    await refused(bus, ConnectFailed, match=r"is the NATS server of the cluster running\? Cluster\(\.\.\., wait=30\)")


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
