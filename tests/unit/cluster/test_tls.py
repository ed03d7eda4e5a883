"""TLS between a node and its engine: the context is checked where it is given, and used where the engine has TLS."""

import ssl
from typing import Any

import pytest

from polybus import Bus, Cluster
from polybus.testing import NatsEngine, cluster

pytestmark = pytest.mark.native


def trust() -> ssl.SSLContext:
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


@pytest.mark.parametrize(
    ("url", "tls", "error", "text"),
    [
        ("auto", "ca.pem", TypeError, "^tls='ca.pem' must be an ssl.SSLContext"),
        ("auto", ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ValueError, "a context for servers"),
        ("nats+tcp://s3cret@127.0.0.1/shop", trust(), ValueError, r"tls= is for nats\+tls:// and nats\+wss://, not plain"),
        ("nats+ws://127.0.0.1/", trust(), ValueError, r"tls= is for nats\+tls:// and nats\+wss://"),
    ],
)
def test_a_context_that_cannot_be_is_refused_where_it_is_given(url: str, tls: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text) as caught:
        Cluster(url, tls=tls)
    assert "s3cret" not in str(caught.value)


async def test_the_same_program_joins_an_engine_without_tls_that_the_environment_names(monkeypatch: pytest.MonkeyPatch) -> None:
    async with NatsEngine() as engine:
        monkeypatch.setenv("POLYBUS_CLUSTER", engine.url)
        async with Bus(cluster=Cluster(tls=trust())) as bus:
            assert len(await bus.nodes()) == 1


@pytest.mark.parametrize("url", ["nats+tls://nats.internal/shop", "nats+wss://nats.internal/"])
async def test_the_engine_of_a_test_stands_for_one_with_tls(url: str) -> None:
    bus = Bus(cluster=Cluster(url, tls=trust()))
    async with cluster(bus):
        assert len(await bus.nodes()) == 1
