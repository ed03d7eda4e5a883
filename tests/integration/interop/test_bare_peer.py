"""npm ubre knows nothing of our extensions: what it cannot carry is refused on our side, and nothing strange is sent to it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from polybus import Bus, DeadlineExceeded, Peer, RequestCancelled, Unsupported, connect
from tests.integration.interop.node_peer import NodePeer, node_client, node_server
from tests.support import BOUND

pytestmark = pytest.mark.anyio

VERBS = {"subscribe", "unsubscribe", "publish", "request", "success", "fail"}
"""All that the package knows."""


@pytest.fixture(params=["client", "server"])
def role(request: pytest.FixtureRequest) -> str:
    """What the Node process is."""
    name: str = request.param
    return name


@asynccontextmanager
async def met(role: str, ws: str) -> AsyncIterator[tuple[NodePeer, Bus, Peer]]:
    """A Node process, a bus linked to it, and how the bus sees it."""
    if role == "client":
        bus = Bus()
        async with bus.serve("ubre+ws://127.0.0.1:0/") as listener, node_client(ws, listener.url) as node:
            yield node, bus, bus.peers[0]
    else:
        async with node_server(ws) as node, connect(node.url) as bus:
            yield node, bus, bus.peers[0]


async def sent_to(node: NodePeer) -> list[Any]:
    """All frames that the Node process has got."""
    return [json.loads(frame) for frame in await node.tell("frames")]


async def test_a_pattern_is_unsupported_and_is_not_sent(ws: str) -> None:
    async with met("server", ws) as (node, bus, peer):
        with anyio.fail_after(BOUND):
            for pattern in ("news.*", "news.>", ">", "news.{day}"):
                with pytest.raises(Unsupported, match="exact subjects only"):
                    async with bus.subscribe(pattern):
                        pass
            assert await peer.request("echo", 1) == 1
        assert not [frame for frame in await sent_to(node) if "subscribe" in frame or "unsubscribe" in frame]


async def test_an_exact_subscription_works_after_a_refused_pattern(ws: str) -> None:
    async with met("server", ws) as (node, bus, _):
        with anyio.fail_after(BOUND):
            with pytest.raises(Unsupported):
                async with bus.subscribe("news.*"):
                    pass
            async with bus.subscribe("news.today") as news:
                await node.event("subscribed")
                await node.tell("publish", topic="news.today", body=1)
                assert (await anext(news)).body == 1


async def test_a_stream_is_unsupported_and_is_not_sent(role: str, ws: str) -> None:
    async with met(role, ws) as (node, bus, peer):
        with anyio.fail_after(BOUND):
            with pytest.raises(Unsupported, match="stream"):
                async with bus.stream("echo", to=peer):
                    pass
            assert await peer.request("echo", 1) == 1
        assert all(set(frame) & VERBS for frame in await sent_to(node))


async def test_a_channel_is_unsupported_and_is_not_sent(role: str, ws: str) -> None:
    async with met(role, ws) as (node, bus, peer):
        with anyio.fail_after(BOUND):
            with pytest.raises(Unsupported, match="channel"):
                async with bus.channel("echo", to=peer):
                    pass
            assert await peer.request("echo", 1) == 1
        assert all(set(frame) & VERBS for frame in await sent_to(node))


async def test_a_notification_is_a_request_whose_answer_is_dropped(role: str, ws: str) -> None:
    async with met(role, ws) as (node, bus, peer):
        with anyio.fail_after(BOUND):
            await peer.notify("echo", "psst")
            assert await peer.request("echo", 1) == 1
        assert [frame["body"] for frame in await sent_to(node) if frame.get("request") == "echo"] == ["psst", 1]
        assert bus.stats().malformed == 0


async def test_our_hello_is_answered_with_not_found_and_hurts_nothing(role: str, ws: str) -> None:
    async with met(role, ws) as (node, bus, peer):
        with anyio.fail_after(BOUND):
            for _ in range(3):
                with pytest.raises(Unsupported):
                    async with peer.stream("echo"):
                        pass
            assert await peer.request("echo", 1) == 1
        hellos = [frame for frame in await sent_to(node) if frame.get("request") == "_polybus.hello"]
        assert len(hellos) == 1  # asked once for the whole link
        stats = bus.stats()
        assert (stats.late, stats.malformed, stats.failed, stats.pending) == (0, 0, 0, 0)


async def test_a_cancel_is_not_sent_and_the_late_answer_is_counted(role: str, ws: str) -> None:
    async with met(role, ws) as (node, bus, peer):
        given_up = peer.request("gather", {"n": 1, "of": 2})
        given_up.cancel()
        with anyio.fail_after(BOUND):
            with pytest.raises(RequestCancelled):
                await given_up
            # By the time that this is refused it is known that the peer is a bare one.
            with pytest.raises(Unsupported):
                async with peer.stream("echo"):
                    pass
            # The handler at the other end ran on, and answers both.
            assert await peer.request("gather", {"n": 2, "of": 2}) == 2
            assert await peer.request("echo", 1) == 1
        assert all(set(frame) & VERBS for frame in await sent_to(node))
        assert bus.stats().late == 1
        assert bus.stats().pending == 0


async def test_an_expired_deadline_is_not_sent_and_the_late_answer_is_counted(role: str, ws: str) -> None:
    async with met(role, ws) as (node, bus, peer):
        with anyio.fail_after(BOUND):
            with pytest.raises(DeadlineExceeded) as caught:
                await peer.request("gather", {"n": 1, "of": 2}, timeout=0.05)
            assert caught.value.where == "local"
            with pytest.raises(Unsupported):
                async with peer.stream("echo"):
                    pass
            assert await peer.request("gather", {"n": 2, "of": 2}) == 2
            assert await peer.request("echo", 1) == 1
        assert all(set(frame) & VERBS for frame in await sent_to(node))
        assert bus.stats().late == 1


async def test_a_request_carries_its_deadline_and_headers_without_harm(role: str, ws: str) -> None:
    async with met(role, ws) as (node, _, peer):
        with anyio.fail_after(BOUND):
            assert await peer.request("echo", 1, timeout=7, headers={"traceparent": "00-1"}) == 1
        (frame,) = [frame for frame in await sent_to(node) if frame.get("request") == "echo"]
        assert frame["headers"] == {"traceparent": "00-1"}
        assert 0 < frame["ttl"] <= 7000
