"""Frames of a tunnel as items of the outer protocol: which item carries which frame, and what is no frame."""

import pytest

from polybus._core.tunnel import Packing, frame_of
from polybus.body import JSON, OCTETS, BodyFormat
from polybus.message import Kind, Message


@pytest.mark.parametrize(
    ("raw", "body_format", "frame"),
    [
        (b"\x00\x01", OCTETS, b"\x00\x01"),
        *((raw, JSON, raw) for raw in (b'{"a":1}', b"[1]")),
        (b'"AAE="', JSON, b"\x00\x01"),
        *((raw, JSON, None) for raw in (b'"no base64!"', b'"\xc3\xa4"', b"7", b"null", b'"AAE')),
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
