"""The framing of tcp, tls and unix, byte by byte."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polybus.errors import Forbidden, Unauthorized
from polybus.transports._stream.framing import LengthFramer, closing_frame, pack_length

from .support import in_chunks

LIMIT = 1000


def framed(*frames: bytes) -> bytes:
    return b"".join(pack_length(len(frame)) + frame for frame in frames)


@pytest.mark.parametrize(
    ("data", "frames", "keep_alives", "partial"),
    [
        *((b"", [], 0, ""), (b"\0\0\0\0", [], 1, ""), (b"\0\0\0\0" * 3 + b"\0\0\0\1a", [b"a"], 3, "")),
        (b"\0\0\0\1a\0\0\0\2bc", [b"a", b"bc"], 0, ""),
        (b"\0\0\0\1a\0\0", [b"a"], 0, "2 of 4 bytes of a length"),
        *((b"\0\0\0\x64" + b"x" * came, [], 0, f"{came} of 100 bytes") for came in (0, 10)),
        (framed(b"x" * LIMIT), [b"x" * LIMIT], 0, ""),
    ],
)
def test_bytes_become_frames(data: bytes, frames: list[bytes], keep_alives: int, partial: str) -> None:
    framer = LengthFramer(LIMIT)
    assert framer.feed(data) == frames
    assert (framer.empty_frames, framer.partial) == (keep_alives, partial)
    assert framer.ended is None
    assert framer.broken is None


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ("000003e9", "a frame of 1001 bytes, the limit is 1000"),
        (b"POST".hex(), "received HTTP instead of length-prefixed frames: use ws://"),
        (b"HTTP".hex(), "received HTTP instead of length-prefixed frames: use ws://"),
        ("16030102", "received TLS instead of length-prefixed frames: use tls://"),
        ("15030300", "received TLS instead of length-prefixed frames: use tls://"),
        (b"SSH-".hex(), "received text ('SSH-') instead of length-prefixed frames: is this port for another protocol?"),
    ],
)
def test_an_impossible_length_is_refused_after_four_bytes(data: str, reason: str) -> None:
    """Others are in `tests.vectors.bad_inputs`, which `test_bad_lengths` sends."""
    framer = LengthFramer(LIMIT)
    assert framer.feed(bytes.fromhex(data)) == []
    assert framer.broken is not None
    assert framer.broken.code == 1009
    assert reason in framer.broken.reason
    assert framer.feed(framed(b"more")) == []


@pytest.mark.parametrize(
    ("code", "reason", "error"),
    [(1000, "", None), (1001, "going away", None), (4401, "who?", Unauthorized), (4403, "not yours", Forbidden)],
)
def test_a_closing_frame_carries_its_reason(code: int, reason: str, error: type[Exception] | None) -> None:
    data = closing_frame(code, reason)
    for cut in range(len(data)):
        framer = LengthFramer(LIMIT)
        assert [framer.feed(data[:cut]), framer.ended] == [[], None]
        assert framer.feed(data[cut:] + b"ignored") == []
        assert framer.ended is not None
        assert (framer.ended.code, framer.ended.reason) == (code, reason)
        assert type(framer.ended.error) is (error or type(None))


def test_a_long_reason_is_cut_between_characters() -> None:
    framer = LengthFramer(LIMIT)
    framer.feed(closing_frame(1001, "x" + "ä" * 200))
    assert framer.ended is not None
    assert framer.ended.reason == "x" + "ä" * 61


def test_a_closing_frame_with_too_long_a_reason_is_refused() -> None:
    framer = LengthFramer(LIMIT)
    framer.feed(bytes.fromhex("ff434c4f03e9007c"))
    assert framer.broken is not None
    assert framer.broken.code == 1002


def test_slices_of_one_byte_cost_no_object_each() -> None:
    framer = LengthFramer(100_000)
    data = framed(b"x" * 90_000)
    frames = [frame for i in range(len(data)) for frame in framer.feed(data[i : i + 1])]
    assert frames == [b"x" * 90_000]
    framer.feed(data[:50_000])
    for i in range(50_000, 80_000):
        framer.feed(data[i : i + 1])
    assert framer._frame is not None
    assert len(framer._frame.parts) == 2


@given(
    frames=st.lists(st.binary(min_size=0, max_size=300), max_size=12),
    cuts=st.lists(st.integers(min_value=0, max_value=2000), max_size=30),
    closes=st.booleans(),
)
def test_frames_do_not_depend_on_how_the_bytes_were_cut(frames: list[bytes], cuts: list[int], closes: bool) -> None:
    data = framed(*frames) + (closing_frame(1001, "bye") if closes else b"")
    framer = LengthFramer(LIMIT)
    got = [frame for chunk in in_chunks(data, cuts) for frame in framer.feed(chunk)]
    assert got == [frame for frame in frames if frame]
    assert framer.empty_frames == frames.count(b"")
    assert (framer.ended is not None) is closes
