"""The framing of WebSockets, byte by byte, and against the library's core as the judge."""

import struct
from collections.abc import Iterable
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.frames import Close, Frame, Opcode
from websockets.protocol import OPEN, SERVER, Protocol

from polybus.errors import Forbidden, Unauthorized
from polybus.transports._ws.framing import WebSocketFramer
from polybus.transports.websocket import MAX_FRAGMENTS

from .support import in_chunks

BOTH: frozenset[Literal["text", "binary"]] = frozenset({"text", "binary"})
LIMIT = 100_000


def server(limit: int = LIMIT, reads: Iterable[Literal["text", "binary"]] = BOTH) -> WebSocketFramer:
    return WebSocketFramer(server=True, limit=limit, reads=frozenset(reads), writes="binary")


def client(limit: int = LIMIT, writes: Literal["text", "binary"] = "binary") -> WebSocketFramer:
    return WebSocketFramer(server=False, limit=limit, reads=BOTH, writes=writes)


def sent(framer: WebSocketFramer) -> bytes:
    out, framer.out = framer.out, None
    return b"".join(out or ())


def masked(opcode: Opcode, data: bytes, fin: bool = True) -> bytes:
    return Frame(opcode, data, fin).serialize(mask=True)


def bare(opcode: Opcode, data: bytes, fin: bool = True) -> bytes:
    return Frame(opcode, data, fin).serialize(mask=False)


@pytest.mark.parametrize("size", [0, 1, 125, 126, 127, 65535, 65536, LIMIT])
@pytest.mark.parametrize("writes", ["text", "binary"])
def test_what_one_side_writes_the_other_reads(size: int, writes: Literal["text", "binary"]) -> None:
    message = b"x" * size
    here, there = client(writes=writes), server()
    assert there.feed(b"".join(here.encode(message))) == [message]
    header, payload = there.encode(message)
    assert payload is message
    assert client().feed(header + payload) == [message]


def test_frames_are_masked_with_a_key_of_their_own() -> None:
    framer = client()
    keys = {framer.encode(b"x" * 50)[0][-4:] for _ in range(300)}
    assert len(keys) == 300


# Codes and rules: RFC 6455, sections 5.1 to 5.5, 7.4 and 8.1, beside those of `tests.vectors.bad_inputs`, which
# `test_bad_websocket_frames` sends. Hex as a server gets it, with the zero mask.
@pytest.mark.parametrize(
    ("data", "code"),
    [
        ("a28000000000", 1002),  # RSV2
        ("928000000000", 1002),  # RSV3
        ("838000000000", 1002),  # reserved data opcode
        ("8b8000000000", 1002),  # reserved control opcode
        ("028000000000828000000000", 1002),  # a message inside a message
        ("888400000000 03e8 fffe", 1007),  # reason that is not UTF-8
        ("018100000000c3 808100000000c3", 1007),  # text that is not UTF-8, in two fragments
        ("82ff00000000000186a1", 1009),  # one byte over the limit
        ("02ff000000000000c350 00000000" + "78" * 50000 + "80ff000000000000c351", 1009),  # the same in two fragments
    ],
)
def test_a_broken_rule_ends_the_connection_with_its_code(data: str, code: int) -> None:
    framer = server()
    assert framer.feed(bytes.fromhex(data)) == []
    assert framer.broken is not None
    assert framer.broken.code == code
    assert sent(framer)[2:4] == struct.pack("!H", code)
    assert framer.feed(masked(Opcode.TEXT, b"more")) == []
    assert sent(framer) == b""


@pytest.mark.parametrize(
    ("framer", "data"),
    [(client(), masked(Opcode.BINARY, b"x")), (server(reads=["binary"]), masked(Opcode.CONT, b"x", fin=False))],
    ids=["a masked frame to a client", "a continuation of nothing to one who reads one kind"],
)
def test_what_comes_out_of_turn_breaks_the_rules(framer: WebSocketFramer, data: bytes) -> None:
    assert framer.feed(data) == []
    assert framer.broken is not None
    assert framer.broken.code == 1002


@pytest.mark.parametrize("fin", [True, False])
@pytest.mark.parametrize(("reads", "opcode"), [("text", Opcode.BINARY), ("binary", Opcode.TEXT)])
def test_the_wrong_kind_of_frame_is_refused(reads: Literal["text", "binary"], opcode: Opcode, fin: bool) -> None:
    framer = server(reads=[reads])
    assert framer.feed(masked(opcode, b"x", fin)) == []
    assert framer.broken is not None
    assert framer.broken.code == 1003
    assert f"only {reads} frames are accepted here" in framer.broken.reason


def test_a_ping_is_answered_also_between_fragments_and_the_core_dropped_again() -> None:
    framer = server()
    data = masked(Opcode.BINARY, b"a", fin=False) + masked(Opcode.PING, b"?") + masked(Opcode.CONT, b"b", fin=False)
    assert framer.feed(data + masked(Opcode.CONT, b"c") + masked(Opcode.BINARY, b"d")) == [b"abc", b"d"]
    assert sent(framer) == bare(Opcode.PONG, b"?")
    assert (framer.empty_frames, framer.partial) == (1, "")
    assert framer._core is None


def test_endless_fragments_are_refused() -> None:
    framer = server()
    framer.feed(masked(Opcode.BINARY, b"a", fin=False))
    for _ in range(MAX_FRAGMENTS - 1):
        assert framer.broken is None
        framer.feed(masked(Opcode.CONT, b"", fin=False))
    assert framer.broken is not None and framer.broken.code == 1009


@pytest.mark.parametrize(
    ("code", "reason", "error"),
    [(1000, "", None), (1001, "bye", None), (4401, "expired", Unauthorized), (4403, "no", Forbidden), (1011, "", None)],
)
def test_a_closing_frame_is_answered_and_told(code: int, reason: str, error: type[Exception] | None) -> None:
    framer = server()
    framer.feed(masked(Opcode.CLOSE, Close(code, reason).serialize()) + masked(Opcode.TEXT, b"ignored"))
    assert framer.ended is not None
    told = "closed with code 1011" if code == 1011 else reason
    assert (framer.ended.code, framer.ended.reason) == (code, told)
    assert type(framer.ended.error) is (error or type(None))
    assert sent(framer) == bare(Opcode.CLOSE, Close(code, reason).serialize())


def test_our_own_closing_frame_is_not_answered_again() -> None:
    here, there = client(), server()
    there.feed(b"".join(here.goodbye(1001, "ä" * 100)))
    assert there.ended is not None
    assert (there.ended.code, there.ended.reason) == (1001, "ä" * 61)
    assert here.feed(sent(there)) == []
    assert here.ended is not None
    assert sent(here) == b""


def test_partial_says_what_is_missing() -> None:
    framer = server()
    assert framer.partial == ""
    framer.feed(b"\x82")
    assert framer.partial == "1 bytes of a header"
    framer.feed(bytes.fromhex("8a0000000078"))
    assert framer.partial == "1 of 10 bytes"
    framer.feed(b"x" * 9)
    assert framer.partial == ""
    framer.feed(masked(Opcode.BINARY, b"x", fin=False))
    assert framer.partial == "1 fragments without a last one"


PIECES = st.one_of(
    st.binary(max_size=300).map(lambda data: masked(Opcode.BINARY, data)),
    st.text(max_size=100).map(lambda text: masked(Opcode.TEXT, text.encode())),
    st.binary(max_size=20).map(lambda data: masked(Opcode.PING, data)),
    st.binary(max_size=20).map(lambda data: masked(Opcode.PONG, data)),
    st.lists(st.binary(max_size=40), min_size=2, max_size=4).map(
        lambda parts: b"".join(
            masked(Opcode.CONT if i else Opcode.BINARY, part, fin=i == len(parts) - 1) for i, part in enumerate(parts)
        )
    ),
    st.just(masked(Opcode.CLOSE, Close(1001, "bye").serialize())),
    st.binary(min_size=1, max_size=12),
)


def judged(data: bytes) -> tuple[list[bytes], int | None, bytes]:
    """What the library's core makes of it: messages, the code with which it closes, what it writes."""
    core = Protocol(SERVER, state=OPEN, max_size=LIMIT)
    core.receive_data(data)
    messages: list[bytes] = []
    parts: list[bytes] = []
    for event in core.events_received():
        assert isinstance(event, Frame)
        if event.opcode in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
            parts.append(bytes(event.data))
            if event.fin:
                messages.append(b"".join(parts))
                parts.clear()
    return messages, None if core.close_sent is None else int(core.close_sent.code), b"".join(core.data_to_send())


@given(pieces=st.lists(PIECES, max_size=8), cuts=st.lists(st.integers(min_value=0, max_value=1500), max_size=25))
def test_any_bytes_in_any_slices_give_what_the_core_gives(pieces: list[bytes], cuts: list[int]) -> None:
    data = b"".join(pieces)
    framer = server()
    got = [message for chunk in in_chunks(data, cuts) for message in framer.feed(chunk)]
    messages, code, written = judged(data)
    if framer.broken is not None and framer.broken.code == 1007 and code != 1007:
        # The core leaves the text of data frames to its caller: everything before it must be the same.
        assert messages[: len(got)] == got
        return
    assert got == messages
    assert sent(framer) == written
    end = framer.broken or framer.ended
    assert (None if end is None else end.code) == (1000 if code == 1005 else code)
