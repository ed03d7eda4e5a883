"""Cutting a stream into operations."""

from __future__ import annotations

import pytest

from polybus.errors import RemoteProtocolError
from polybus.limits import Limits
from polybus.protocols.nats.framing import LINE, NatsCutter, NatsFraming

STREAM = [
    b'INFO {"max_payload":1048576}\r\n',
    b"PING\r\n",
    b"MSG a 2 5\r\nhello\r\n",
    b"MSG a 2 0\r\n\r\n",
    b"HMSG a 2 12 14\r\nNATS/1.0\r\n\r\n\r\n\r\n",
    b"-ERR 'x'\r\n",
    b"PUB a 4\r\n\r\n\r\n\r\n",
    b"MSG a 2 10000\r\n" + b"y" * 10_000 + b"\r\n",
    b"PONG\r\n",
]


def cutter(limit: int = 1 << 20, *, plain: bool = False) -> NatsCutter:
    return NatsCutter(limit, plain=plain)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 16, 1000, 100_000])
def test_the_same_operations_come_out_however_the_stream_comes_in(size: int) -> None:
    data, cuts = b"".join(STREAM), cutter()
    frames = [frame for start in range(0, len(data), size) for frame in cuts.feed(data[start : start + size])]
    assert frames == STREAM
    assert (cuts.partial, cuts.arrived, cuts.broken) == ("", 0, None)


def test_what_is_there_of_an_operation_is_told() -> None:
    cuts = cutter()
    assert cuts.feed(b"PI") == []
    assert (cuts.partial, cuts.arrived) == ("2 bytes of a line", 2)
    assert cuts.feed(b"NG\r\nMSG a 2 5\r\nhe") == [b"PING\r\n"]
    assert (cuts.partial, cuts.arrived) == ("13 of 18 bytes", 13)
    assert cuts.feed(b"llo\r\n") == [b"MSG a 2 5\r\nhello\r\n"]


@pytest.mark.parametrize("size", [1, 5, 4096, 100_000])
def test_a_payload_over_the_limit_is_left_out_and_the_rest_comes(size: int) -> None:
    cuts = cutter(1000)
    data = b"MSG a 2 3000\r\n" + b"PING\r\n" * 500 + b"\r\n" + b"MSG a 2 1000\r\n" + b"x" * 1000 + b"\r\nPING\r\n"
    frames, most = list[bytes](), 0
    for start in range(0, len(data), size):
        frames += cuts.feed(data[start : start + size])
        most = max(most, cuts.arrived)
    assert frames == [b"MSG a 2 3000\r\n", b"MSG a 2 1000\r\n" + b"x" * 1000 + b"\r\n", b"PING\r\n"]
    assert most <= 1100


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"MSG a 2 x\r\n", "ends with no length"),
        (b"MSG\r\n", "ends with no length"),
        (b"MSG a 2 99999999999\r\n", "ends with no length"),
        (b"MSG a 2 -1\r\n", "ends with no length"),
        (b"x" * (LINE + 1), "a line of more than"),
        (b"x" * (LINE + 1) + b"\r\n", "a line of more than"),
    ],
)
def test_what_cannot_be_cut_breaks_the_stream_after_what_came_before(data: bytes, text: str) -> None:
    cuts = cutter()
    assert cuts.feed(b"PING\r\n" + data + b"PING\r\n") == [b"PING\r\n"]
    assert cuts.broken is not None
    assert text in cuts.broken.text
    assert cuts.broken.close_code is not None
    assert cuts.feed(b"PING\r\n") == []


def test_a_server_that_wants_tls_hears_nothing_in_plain() -> None:
    info = b'INFO {"tls_required":true}\r\n'
    plain = cutter(plain=True)
    assert plain.feed(info) == []
    assert plain.broken is not None
    assert "nats+tls://" in plain.broken.text
    assert cutter().feed(info) == [info]
    for other in (b'INFO {"tls_available":true}\r\n', b"INFO {\r\n", b"PING\r\n"):
        assert cutter(plain=True).feed(other) == [other]
    assert NatsFraming().cutter(Limits(), "tls").feed(info) == NatsFraming().cutter(Limits(), "ws").feed(info) == [info]


def test_the_first_words_of_a_server_before_tls() -> None:
    preface = NatsFraming().plain_preface
    info = b'INFO {"tls_required":true}\r\n'
    assert [preface(data) for data in (b"", info[:7], info[:-1], info, info + b"more")] == [0, 0, 0, len(info), len(info)]
    assert preface(b'INFO {"tls_available":true}\r\n')
    for wrong in (b"INFO {}\r\n", b"INFO x\r\n", b"HTTP/1.1 400\r\n", b"\r\n"):
        with pytest.raises(RemoteProtocolError):
            preface(wrong)
    assert NatsFraming(tls_first=True).plain_preface(b"") is None
