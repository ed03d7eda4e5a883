"""The C of `polybus._speedups` and its twins in Python: which of them runs, that they do the same, and what C keeps."""

import gc
import os
import random
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from fuzz.targets import TARGETS
from fuzz.twins import mutations
from polybus import EncodeError, Limits, TooLarge, speedups
from polybus.body import JSON
from polybus.message import Kind, Message
from polybus.protocols import Ubre
from polybus.protocols.ubre.json_format import JsonWriter, json_readers
from polybus.transports._stream.framing import LengthFramer

CODEC = Ubre().codec()
WANTED = "import polybus.speedups, sys; sys.exit(polybus.speedups.ACTIVE)"


@pytest.mark.native
def test_a_process_chooses_the_twins_in_python() -> None:
    environment = os.environ | {"POLYBUS_SPEEDUPS": "0"}
    subprocess.run([sys.executable, "-c", WANTED], env=environment, check=True, timeout=60)


@pytest.mark.native
def test_c_that_was_built_from_older_sources_is_not_used() -> None:
    older = "import sys, types; sys.modules['polybus._speedups'] = types.ModuleType('older'); "
    environment = {name: value for name, value in os.environ.items() if name != "POLYBUS_SPEEDUPS"}
    subprocess.run([sys.executable, "-c", older + WANTED], env=environment, check=True, timeout=60)


@pytest.mark.native
def test_c_is_there_where_ci_has_a_compiler() -> None:
    if "POLYBUS_CI" not in os.environ or os.environ.get("POLYBUS_SPEEDUPS") == "0":
        pytest.skip("outside CI the module in C may not have been built, and POLYBUS_SPEEDUPS=0 asks for Python")
    assert speedups.ACTIVE


def test_damaged_frames_are_read_alike() -> None:
    target, rng = TARGETS["ubre-twins"], random.Random(20)
    seeds = target.seeds()
    for _ in range(1500):
        target(mutations(seeds, rng))


BIG = b'{"publish":"news","body":%b}'


@pytest.mark.parametrize(
    "data",
    [
        *(BIG % (b"[" * 128 + b"]" * 128), BIG % (b"[" * 129 + b"]" * 129), BIG % (b'"' + b"[" * 500 + b'"')),
        *(BIG % (b'"' + rb"\"[" * 200 + b'"'), BIG % (b'"' + b"\\\\" * 200 + b'"')),
        *(BIG % (b'"' + b"\\" * 401 + b'"'), BIG % (b'{"a":' * 200 + b"1" + b"}" * 200)),
        *(BIG % (b"[" + b"[]," * 400 + b"1]"), BIG % ('"' + "ä" * 300 + '"').encode()),
        *(BIG % (b'"' + b"\xff" * 300 + b'"'), BIG % (b'"' + b"x" * 1_100_000 + b'"')),
        *(b'{"request":"%b","id":"1","body":1}' % (b"s" * 1100), b'{"success":"%b","body":1}' % (b"s" * 300)),
        *(b'{"request":"s","id":"1","body":1,"ttl":9007199254740993}', b'{"request":"s","id":"1","body":1,"ttl":01}'),
        *(b'{"request":"s","id":"1","ttl":}', b'{"request":"s","id":"1"}}', b'{"request":"s","id":"1","body": 1 }'),
        *(b'{"request":"s","id":"1","body":1,"body":2}', b'{"publish":"s","body":' + b"1" * 5000 + b"}"),
    ],
)
def test_what_is_long_or_at_a_limit_is_read_alike(data: bytes) -> None:
    TARGETS["ubre-twins"](data)


def test_limits_of_any_size_are_taken() -> None:
    limits = Limits(message=2**80, subject=2**80, id=2**80, depth=2**80)
    message = json_readers(limits)[0](BIG % b"[1]")
    assert message.body == [1]
    assert LengthFramer(limits.message).feed(b"\0\0\0\1a") == [b"a"]


@pytest.mark.parametrize(
    "act",
    [
        lambda: CODEC.read(b'{"request":"user.get","id":"a-1","body":{"id":[7]},"ttl":30000}'),
        lambda: CODEC.read(b'{"success":"a-1","body":"x"}'),
        lambda: CODEC.read(BIG % (b"[" * 100 + b"]" * 100)),
        lambda: JsonWriter(Limits(), spec=False).ask("s", "a-1", b"1", 2.5),
        lambda: JsonWriter(Limits(), spec=False).tell("a-1", b"1"),
        lambda: JSON.encode({"a": [1.5, None, "T*"]}),
        lambda: LengthFramer(100).feed(b"\0\0\0\1a\0\0\0\2bb\0\0\0\3c"),
        lambda: pytest.raises(EncodeError, JSON.encode, [float("nan")]),
        lambda: pytest.raises(EncodeError, JSON.encode, object()),
    ],
)
def test_nothing_is_kept_of_what_was_read_and_written(act: Callable[[], Any]) -> None:
    for _ in range(20):
        act()
    gc.collect()
    before = sys.getallocatedblocks()
    for _ in range(300):
        act()
    gc.collect()
    assert sys.getallocatedblocks() - before < 150


def test_an_answer_is_usual_only_if_it_is_awaited() -> None:
    assert CODEC.usual is not None
    answer, request = b'{"success":"a-1","body":1}', b'{"request":"user.get","id":"a-1"}'
    assert [CODEC.usual(frame, {}) is None for frame in (answer, request, b'{"cancel":"a-1"}')] == [True, False, True]
    assert [CODEC.usual(answer, pending) is None for pending in ({"a-1": 1}, {"a-2": 1})] == [False, True]


def test_an_answer_may_have_the_limits_size_but_no_more() -> None:
    writer = JsonWriter(Limits(message=40), spec=False)
    assert len(writer.tell("a-1", b"1" * 15)) == 40
    with pytest.raises(TooLarge, match="a frame of 41 bytes is larger than 40"):
        writer.tell("a-1", b"1" * 16)


@pytest.mark.skipif(not speedups.ACTIVE, reason="the twins in Python have no such arguments: this is about the module in C")
def test_the_twins_take_no_other_class_for_messages() -> None:
    class Other:
        kind = subject = id = raw = ttl = decoded = checked = None

    native: Any = speedups.native
    for functions, messages in ((4, (Other(),) * 3), (4, (Message(Kind.PUBLISH), Other(), Other())), (4, (1,)), (3, ())):
        with pytest.raises(TypeError, match="wanted"):
            native.Twin((len,) * functions, messages, 1, 1, 1, 1)
    with pytest.raises(AttributeError):
        native.Twin((len,) * 4, ("", "", ""), 1, 1, 1, 1)
    bare = native.Twin((len, max, min, None), (), 1, 1, 1, 1)
    assert (bare.usual(b"{}", {}), bare.tell(3, 4), bare.ask(3, 4, 5)) == (None, 3, 5)
