"""The options of UBRE."""

import random
import subprocess
import sys

import pytest

import polybus.protocols
from polybus.message import Kind, Message
from polybus.protocols import Ubre


@pytest.mark.parametrize(
    ("adapter", "reads", "writes"),
    [
        (Ubre(), {"text"}, "text"),
        (Ubre(format="binary"), {"binary"}, "binary"),
        (Ubre(format="any"), {"text", "binary"}, "text"),
    ],
)
def test_a_codec_says_which_frames_it_reads_and_writes(adapter: Ubre, reads: set[str], writes: str) -> None:
    codec = adapter.codec()
    assert set(codec.reads) == reads
    assert codec.writes == writes
    assert codec.format_for({"a": 1}, "t") is codec.formats[0]


def test_any_reads_both_formats_and_writes_json() -> None:
    codec = Ubre(format="any").codec()
    for frame in (b'{"publish":"t"}', b' {"publish":"t"}', b"P\0\1\0\0\0\0t"):
        [message] = codec.decode(frame)
        assert isinstance(message, Message)
        assert (message.kind, message.subject) == (Kind.PUBLISH, "t")
        assert codec.encode([message]) == b'{"publish":"t"}'


def test_ids_can_be_made_from_a_given_generator() -> None:
    def first_id(seed: int) -> object:
        session = Ubre().session("client", rng=random.Random(seed))
        return session.send(Message(Kind.REQUEST, "m"), 0.0)

    assert first_id(1) == first_id(1) != first_id(2)


@pytest.mark.native
def test_a_protocol_is_loaded_when_it_is_first_asked_for() -> None:
    script = (
        "import sys, polybus.protocols as p; loaded = lambda: 'polybus.protocols.ubre' in sys.modules;"
        "assert not loaded(); p.Ubre; assert loaded()"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
    with pytest.raises(AttributeError, match="Nothing"):
        polybus.protocols.Nothing  # noqa: B018
