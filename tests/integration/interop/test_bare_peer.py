"""npm ubre knows nothing of our extensions: what it cannot carry is refused on our side, and nothing strange is sent to it."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from polybus import Bus, DeadlineExceeded, Peer, RequestCancelled, Unsupported, connect
from tests.refusal import refused

from .node_peer import NodePeer, node_client, node_server

VERBS = {"subscribe", "unsubscribe", "publish", "request", "success", "fail"}
"""All that the package knows."""
ROLES = pytest.mark.parametrize("role", ["client", "server"])
"""What the Node process is."""


@asynccontextmanager
async def met(role: str) -> AsyncIterator[tuple[NodePeer, Bus, Peer]]:
    """A Node process, a bus linked to it, and how the bus sees it."""
    if role == "client":
        bus = Bus()
        async with bus.serve("ubre+ws://127.0.0.1:0/") as listener, node_client("ws8", listener.url) as node:
            yield node, bus, bus.peers[0]
    else:
        async with node_server("ws8") as node, connect(node.url) as bus:
            yield node, bus, bus.peers[0]


async def sent_to(node: NodePeer) -> list[Any]:
    """All frames that the Node process has got: each says something that the package knows."""
    frames = [json.loads(frame) for frame in await node.tell("frames")]
    assert all(set(frame) & VERBS for frame in frames)
    return frames


async def test_a_pattern_is_unsupported_and_not_sent_and_an_exact_subscription_works_afterwards() -> None:
    async with met("server") as (node, bus, peer):
        for pattern in ("news.*", "news.>", ">", "news.{day}"):
            await refused(bus.subscribe(pattern), Unsupported, match="exact subjects only")
        assert await peer.request("echo", 1) == 1
        assert not [frame for frame in await sent_to(node) if "subscribe" in frame or "unsubscribe" in frame]
        async with bus.subscribe("news.today") as news:
            await node.event("subscribed")
            await node.tell("publish", topic="news.today", body=1)
            assert (await anext(news)).body == 1


@ROLES
async def test_a_stream_and_a_channel_are_unsupported_and_the_hello_that_says_so_is_asked_once(role: str) -> None:
    async with met(role) as (node, bus, peer):
        for _ in range(3):
            await refused(bus.stream("echo", to=peer), Unsupported, match="stream")
            await refused(bus.channel("echo", to=peer), Unsupported, match="channel")
        assert await peer.request("echo", 1) == 1
        assert len([frame for frame in await sent_to(node) if frame.get("request") == "_polybus.hello"]) == 1
        stats = bus.stats()
        assert (stats.late, stats.malformed, stats.failed, stats.pending) == (0, 0, 0, 0)


@ROLES
async def test_a_notification_is_a_request_whose_answer_is_dropped_and_a_request_carries_deadline_and_headers(
    role: str,
) -> None:
    async with met(role) as (node, bus, peer):
        await peer.notify("echo", "psst")
        assert await peer.request("echo", 1, timeout=7, headers={"traceparent": "00-1"}) == 1
        told, asked = [frame for frame in await sent_to(node) if frame.get("request") == "echo"]
        assert (told["body"], asked["body"], asked["headers"]) == ("psst", 1, {"traceparent": "00-1"})
        assert 0 < asked["ttl"] <= 7000
        assert bus.stats().malformed == 0


@ROLES
@pytest.mark.parametrize("why", ["cancelled", "too late"])
async def test_that_a_request_is_given_up_is_not_sent_and_the_late_answer_is_counted(role: str, why: str) -> None:
    async with met(role) as (node, bus, peer):
        if why == "cancelled":
            given_up = peer.request("gather", {"n": 1, "of": 2})
            given_up.cancel()
            with pytest.raises(RequestCancelled):
                await given_up
        else:
            with pytest.raises(DeadlineExceeded) as caught:
                await peer.request("gather", {"n": 1, "of": 2}, timeout=0.05)
            assert caught.value.where == "local"
        # By the time that this is refused it is known that the peer is a bare one.
        await refused(peer.stream("echo"), Unsupported)
        # The handler at the other end ran on, and answers both.
        assert await peer.request("gather", {"n": 2, "of": 2}) == 2
        assert await peer.request("echo", 1) == 1
        await sent_to(node)
        assert (bus.stats().late, bus.stats().pending) == (1, 0)
