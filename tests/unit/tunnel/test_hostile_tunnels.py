"""Hostile openers of tunnels: what an open may not say, and what is no frame."""

from __future__ import annotations

from typing import Any

import pytest

from polybus import BadRequest, Bus, connect
from polybus._tunnel.frame_channel import WINDOW, FrameChannel
from polybus._tunnel.packing import Packing, frame_of
from polybus.body import JSON, OCTETS, BodyFormat
from polybus.message import Kind, Message
from polybus.testing import pair
from tests.support import bounded


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        (["csb"], "is an object with protocol, headers and params"),
        ({"protocol": 7}, "the protocol inside a tunnel is text"),
        ({"headers": {"cookie": 1}}, "headers of a tunnel are text to text"),
        ({"params": ["id"]}, "params of a tunnel are text to text"),
    ],
)
@pytest.mark.anyio
@bounded
async def test_an_open_of_another_form_is_refused_with_a_reason_and_nothing_of_it_is_left(facts: Any, why: str) -> None:
    front, inner = Bus(), Bus()
    front.handle_tunnels("plant.{id}", inner, protocol="csb")
    async with pair(front) as out:
        peer = out.peers[0]
        channel = FrameChannel(peer, "plant.7", 0, text=True)
        await peer.streams.open_channel(channel, facts, "tunnel", None, WINDOW)
        with pytest.raises(BadRequest, match=why):
            await channel.acceptance()
        assert not peer.channels
        assert not front.peers[0].channels
        async with connect(out.tunnel("plant.7"), protocol="csb"):  # the next one is let in
            assert len(inner.peers) == 1


@pytest.mark.parametrize(
    ("raw", "body_format", "frame"),
    [
        (b"\x00\x01", OCTETS, b"\x00\x01"),
        (b'{"a":1}', JSON, b'{"a":1}'),
        (b"[1]", JSON, b"[1]"),
        (b'"AAE="', JSON, b"\x00\x01"),
        (b'"no base64!"', JSON, None),
        (b'"\xc3\xa4"', JSON, None),
        (b"7", JSON, None),
        (b"null", JSON, None),
        (b'"AAE', JSON, None),
    ],
)
def test_an_item_that_is_neither_bytes_nor_a_document_nor_base64_is_no_frame(
    raw: bytes, body_format: BodyFormat, frame: bytes | None
) -> None:
    assert frame_of(Message(Kind.ITEM, raw=raw, format=body_format)) == frame


@pytest.mark.parametrize("frame", [b"plain text", b"{broken", b'{"a":1} trailing', b"[" * 200 + b"]" * 200])
def test_a_text_that_is_no_document_of_the_outer_wire_goes_as_bytes(frame: bytes) -> None:
    packing = Packing(text=True, octets=True, depth=100, plain=1000, encoded=1000, outer=1200)
    assert packing.choose(frame) is OCTETS
    assert packing.choose(b'{"a":1}') is JSON
