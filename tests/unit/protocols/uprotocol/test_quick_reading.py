"""What is read quickly, because it looks like what was read before, is read as by the careful reader."""

import itertools
import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from polybus import Message, RemoteProtocolError
from polybus.protocols import UProtocol
from polybus.protocols._protobuf.any_body import pack_value
from polybus.protocols._protobuf.wire import field, varint
from polybus.protocols.uprotocol.codec import UProtocolCodec

IDS = [
    "018bcfe5-687b-8001-8000-000000000007",
    "018bcfe5-687b-8002-8000-000000000007",
    "cf8b1bcd-30bd-43be-a8d3-ad1cde652e10",  # version 4
]
TOPIC, METHOD, ANSWERS = "//a.b/news/1/door.x#Door", "//a.b/news/1/rpc.Go", "//a.b/news/1/rpc.response"
COUNT = itertools.count()
DATA = field(b"B", pack_value("hi"))


def attribute(name: str, value: str | int) -> bytes:
    inner = b"\x10" + varint(value) if isinstance(value, int) else field(b"\x1a", value.encode())
    return field(b"*", field(b"\n", name.encode()) + field(b"\x12", inner))


def begin(id: str, source: str = TOPIC, type: str = "pub.v1") -> bytes:
    return field(b"\n", id.encode()) + field(b"\x12", source.encode()) + field(b"\x1a", b"1.0") + field(b'"', type.encode())


def fresh(format: Any = "protobuf", mode: Any = "strict") -> UProtocolCodec:
    """A codec that remembers nothing yet: equal adapters have the same."""
    return UProtocol(format=format, mode=mode, schema=f"/schema/{next(COUNT)}").codec()


def outcome(message: Message | RemoteProtocolError) -> Any:
    if isinstance(message, RemoteProtocolError):
        return "refused"
    return message.kind, message.subject, message.id, message.raw, message.ttl, message.code, message.attributes


def quickly(codec: UProtocolCodec, frame: bytes) -> Message | RemoteProtocolError:
    try:
        return codec.read(frame)
    except RemoteProtocolError as error:
        return error


def carefully(codec: UProtocolCodec, frame: bytes) -> Message | RemoteProtocolError:
    """Without whatever is remembered: through the parser of everything and the table of rules."""
    try:
        return codec.reader._envelope.examined(*codec.reader.parts(frame))
    except RemoteProtocolError as error:
        return error
    except (ValueError, RecursionError) as error:
        return RemoteProtocolError(str(error))


@pytest.mark.parametrize("late", [{"ttl": 1}, {"sink": "//q.r/hmi/1"}, {"priority": "CS6"}, {"reqid": IDS[0], "ttl": 1}])
def test_what_one_peer_writes_behind_its_data_is_not_read_into_the_events_of_others(late: dict[str, Any]) -> None:
    """A codec, and what it remembers, is shared by all connections of equal options."""
    codec = fresh()
    written = b"".join(attribute(name, value) for name, value in late.items())
    head, others = begin(IDS[0]), begin(IDS[1]) + DATA
    for frame in (head + DATA + written, head + written + DATA):
        codec.read(frame)
        assert outcome(codec.read(others)) == outcome(carefully(codec, others))


def test_threads_share_what_is_remembered() -> None:
    """Two buses in two threads have one reader. One goes on in the middle of what the other does."""
    codec = fresh()
    sizes = [begin(IDS[0], f"//a.b/news/1/door.{'y' * size}#Door") + DATA for size in (30, 31, 32)]
    codec.read(sizes[0])

    class Interrupted(bytes):
        def __getitem__(self, key: Any) -> Any:
            while sizes:
                codec.read(sizes.pop())
            return super().__getitem__(key)

    assert codec.read(Interrupted(begin(IDS[1]) + DATA)).subject == TOPIC


def test_an_event_that_ends_in_its_reqid_is_refused() -> None:
    codec = fresh()
    whole = begin(IDS[0]) + attribute("reqid", IDS[1])
    for _ in range(2):
        codec.read(whole)
    for cut in range(1, 40):
        with pytest.raises(RemoteProtocolError):
            codec.read(whole[:-cut])


ATTRIBUTES: dict[str, st.SearchStrategy[Any]] = {
    "sink": st.sampled_from([METHOD, ANSWERS, "//q.r/hmi/1", "/local/1"]),
    "priority": st.sampled_from(["CS1", "CS4", "CS9", "UPRIORITY_CS4"]),
    "ttl": st.sampled_from([0, 1, 5000, 2**31]),
    "reqid": st.sampled_from(IDS),
    "datacontenttype": st.sampled_from(
        ["application/protobuf", "application/x-protobuf", "application/octet-stream", "text/plain"]
    ),
    "dataschema": st.sampled_from(["/x", "a b"]),
    "plevel": st.sampled_from([0, 1]),
    "commstatus": st.sampled_from([0, 5]),
    "further": st.sampled_from(["a", 1]),
}
FIXED: dict[str, st.SearchStrategy[Any]] = {
    "id": st.sampled_from(IDS),
    "source": st.sampled_from([TOPIC, METHOD, ANSWERS]),
    "type": st.sampled_from(["pub.v1", "notif.v1", "req.v1", "res.v1"]),
}


@st.composite
def protobufs(draw: st.DrawFn) -> bytes:
    parts = [
        field(b"\n", draw(FIXED["id"]).encode()),
        field(b"\x12", draw(FIXED["source"]).encode()),
        field(b"\x1a", b"1.0"),
        field(b'"', draw(FIXED["type"]).encode()),
        *(attribute(name, value) for name, value in draw(st.fixed_dictionaries({}, optional=ATTRIBUTES)).items()),
        draw(st.sampled_from([b"", DATA, DATA, field(b"2", pack_value("hi")), field(b"2", b"xyz")])),
    ]
    return b"".join(draw(st.one_of(st.just(parts), st.permutations(parts))))


@st.composite
def documents(draw: st.DrawFn) -> bytes:
    data = st.sampled_from(
        ["Ci90eXBlLmdvb2dsZWFwaXMuY29tL2dvb2dsZS5wcm90b2J1Zi5TdHJpbmdWYWx1ZRIECgJoaQ==", "eHl6", "", "?", None]
    )
    fixed, more = st.fixed_dictionaries(FIXED), {**ATTRIBUTES, "data_base64": data, "hash": st.just("QUI=")}
    return json.dumps({"specversion": "1.0", **draw(fixed), **draw(st.fixed_dictionaries({}, optional=more))}).encode()


@pytest.mark.parametrize("mode", ["strict", "lenient"])
@given(frames=st.lists(protobufs(), min_size=1, max_size=8))
@example(frames=[begin(IDS[0]) + DATA + attribute("ttl", 1), begin(IDS[1]) + DATA])
def test_protobuf_events_are_read_alike(mode: Any, frames: list[bytes]) -> None:
    codec = fresh("protobuf", mode)
    for frame in frames:
        assert outcome(quickly(codec, frame)) == outcome(carefully(codec, frame))


@pytest.mark.parametrize("mode", ["strict", "lenient"])
@given(frames=st.lists(documents(), min_size=1, max_size=8))
@example(
    frames=[b'{"specversion":"1.0","id":"%b","source":"%b","type":"pub.v1","reqid":"x"}' % (IDS[0].encode(), TOPIC.encode())]
)
def test_json_events_are_read_alike(mode: Any, frames: list[bytes]) -> None:
    codec = fresh("json", mode)
    for frame in frames:
        assert outcome(quickly(codec, frame)) == outcome(carefully(codec, frame))
