"""Server-sent events, as bytes in and data out (HTML Standard, section 9.2.6)."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polybus.bindings.jrep_http.requests import EventReader, EventTooLarge

TABLE = {
    **{stream: [] for stream in (b"retry: 500\n\n", b"data: [never", b"\n\n\n")},
    **{stream: [] for stream in (b"\n\xef\xbb\xbfdata: []\n\n", b"\xef\xbbdata: []\n\n")},
    **{stream: [b"[]"] for stream in (b"data: []\n\n", b"data: []\r\r", b"data: []\r\n\r", b"\xef\xbb\xbfdata: []\n\n")},
    b'data: [{"a":1}]\n\ndata:[2]\n\n': [b'[{"a":1}]', b"[2]"],
    b"data: [1\ndata: ,2]\n\n": [b"[1\n,2]"],
    b": a comment\nid: 5\nevent: x\ndata: []\n\n": [b"[]"],
    b"data: []\r\n\r\ndata: [1]\r\rdata: [2]\n\n": [b"[]", b"[1]", b"[2]"],
    b"data\n\ndata:  x\n\n": [b"", b" x"],
}


@pytest.mark.parametrize("stream", TABLE, ids=str)
def test_a_stream_gives_the_data_of_its_events(stream: bytes) -> None:
    assert EventReader(1000).feed(stream) == TABLE[stream]


@given(st.data())
def test_it_does_not_matter_how_the_bytes_are_cut(data: st.DataObject) -> None:
    stream = b"".join(data.draw(st.lists(st.sampled_from(list(TABLE)), max_size=8)))
    cuts = sorted(data.draw(st.sets(st.integers(0, len(stream)), max_size=12)))
    reader = EventReader(1000)
    pieces = [stream[start:end] for start, end in pairwise([0, *cuts, len(stream)])]
    assert [event for piece in pieces for event in reader.feed(piece)] == EventReader(1000).feed(stream)


def test_the_server_says_when_to_come_back() -> None:
    reader = EventReader(1000)
    assert reader.retry == 0.5
    reader.feed(b"retry: 2500\nretry: soon\nretry: 99999999999\n")
    assert reader.retry == 2.5


@pytest.mark.parametrize(
    "stream", [b"data: " + b"x" * 100, b"data: x\n" * 100, b"data\n" * 100], ids=["a line", "lines", "empty lines"]
)
def test_an_event_without_end_is_refused(stream: bytes) -> None:
    with pytest.raises(EventTooLarge, match="more than 90 bytes"):
        EventReader(90).feed(stream)


def test_a_line_in_many_pieces_is_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server may send one byte at a time: what was there before is not looked at again with each."""
    searched: list[bytes] = []

    class Counting:
        def split(self, data: bytes) -> list[bytes]:
            searched.append(data)
            return data.split(b"\n")

    monkeypatch.setattr("polybus.bindings.jrep_http.requests._LINE_END", Counting())
    stream = b"data: " + b"x" * 500 + b"\n\n"
    reader = EventReader(1000)
    assert [event for at in range(len(stream)) for event in reader.feed(stream[at : at + 1])] == [b"x" * 500]
    assert sum(map(len, searched)) <= len(stream)
