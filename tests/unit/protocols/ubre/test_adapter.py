"""The options of UBRE."""

import random
import subprocess
import sys

import pytest

import polybus.protocols
from polybus.limits import Limits
from polybus.message import Kind, Message
from polybus.plugins import Codec, ProtocolAdapter, Session
from polybus.protocols import Ubre


def test_the_adapter_is_what_plugins_ask_for() -> None:
    adapter: ProtocolAdapter = Ubre()
    codec: Codec = adapter.codec()
    session: Session = adapter.session("client")
    assert adapter.name == "ubre"
    assert session.codec is codec


def test_options_come_from_a_url_and_go_back_into_it() -> None:
    options = {"format": "binary", "dialect": "spec", "body": "raw", "body_length": "-1"}
    adapter = Ubre.from_options(options)
    assert adapter == Ubre(format="binary", dialect="spec", body="raw", body_length=-1)
    assert adapter.url_options == options
    assert Ubre.from_options({}).url_options == {}
    assert Ubre.from_options({"format": "json"}).url_options == {}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"colour": "red"}, "unknown option colour; known are format, dialect, body, body_length"),
        ({"format": "xml"}, "format='xml' is not known; it is one of json, binary, any"),
        ({"format": "binary", "body_length": "0"}, "body_length='0' is not known; it is one of -1"),
        ({"body": "raw"}, "body=raw is for binary frames"),
        ({"format": "any", "body_length": "-1"}, "set format=binary"),
    ],
)
def test_what_is_not_known_or_means_nothing_is_named(options: dict[str, str], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Ubre.from_options(options)


def test_equal_adapters_and_limits_share_a_codec() -> None:
    assert Ubre().codec() is Ubre(format="json").codec(Limits())
    assert Ubre().codec() is not Ubre(format="any").codec()
    assert Ubre().codec() is not Ubre().codec(Limits(message=5))


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
