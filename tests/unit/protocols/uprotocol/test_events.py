"""Events in both formats: the vectors, the document's examples, what other packages make of ours, and any bytes at all.

Items of tunnels have as little as possible around them. What is read quickly, because it looks like what was read before, is
read as by the careful reader.
"""

import base64
import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent
from google.protobuf import any_pb2, struct_pb2, wrappers_pb2
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from hypothesis import example, given
from hypothesis import strategies as st

from polybus import Code, EncodeError, Limits, LocalProtocolError, Message, RemoteProtocolError
from polybus.body import JSON, OCTETS, BodyFormat
from polybus.message import Kind
from polybus.plugins.protobuf import field, varint
from polybus.protocols import UProtocol
from polybus.protocols._protobuf import ANY, pack, pack_value, read_value, write_value
from polybus.protocols.uprotocol import proto_event
from polybus.protocols.uprotocol.adapter import UProtocolCodec
from polybus.protocols.uprotocol.proto_event import cloud_event_classes
from tests.doubles.driven import Driven

from .support import BAD, GOOD, HI, PUBLISH, REQUEST, RESPONSE, decode, to_protobuf

EVENTS = UProtocol().codec()
PROTO = UProtocol(format="protobuf").codec()
TOLERANT = UProtocol(mode="lenient").codec()


@pytest.mark.parametrize("mode", ["strict", "lenient"])
@pytest.mark.parametrize("name", [*GOOD, *BAD])
def test_an_event_is_taken_or_refused(name: str, mode: str) -> None:
    event = {**GOOD, **BAD}[name]
    if name in GOOD:
        message = decode(event, mode=mode)
        assert (message.kind is Kind.NOTIFY) == name.startswith("a notification")
    else:
        with pytest.raises(RemoteProtocolError) as caught:
            decode(event, mode=mode)
        assert caught.value.reason
        assert re.search(r"\(rule [a-z.]+; document, .+\)$", str(caught.value))


def written(event: dict[str, Any], format: str) -> bytes:
    return json.dumps(event).encode() if format == "json" else bytes(to_protobuf(event).SerializeToString())


@pytest.mark.parametrize("event", [REQUEST, RESPONSE, PUBLISH], ids=["request", "response", "publish"])
def test_our_json_is_read_by_the_cloudevents_package_with_all_attributes_and_back(event: dict[str, Any]) -> None:
    frame = EVENTS.encode([decode(event)])
    theirs = JSONFormat().read(CloudEvent, frame)
    attributes = {name: value for name, value in theirs.get_attributes().items() if name not in ("time", "datacontenttype")}
    assert attributes == {name: value for name, value in event.items() if name != "data_base64"}
    assert theirs.get_data() == base64.b64decode(HI)
    again = CloudEvent({**attributes, "datacontenttype": "application/protobuf"}, theirs.get_data())
    back = EVENTS.read(JSONFormat().write(again))
    assert (back.body, back.attributes["source"]) == ("hi", event["source"])


@pytest.mark.parametrize("event", [REQUEST, RESPONSE, PUBLISH], ids=["request", "response", "publish"])
def test_our_protobuf_is_read_by_the_generated_class_with_all_attributes_and_back(event: dict[str, Any]) -> None:
    frame = PROTO.encode([decode(event)])
    theirs = cloud_event_classes()[0].FromString(frame)
    assert theirs == to_protobuf(event)
    back = PROTO.read(theirs.SerializeToString())
    assert back.body == "hi"
    assert back.attributes == {name: value for name, value in event.items() if name not in ("specversion", "data_base64")}


def test_an_older_up_python_is_written_for_and_read() -> None:
    codec = UProtocol(format="protobuf", profile="up-python-1.5").codec()
    theirs = cloud_event_classes()[0].FromString(codec.encode([decode(REQUEST)]))
    assert theirs.attributes["sink"].WhichOneof("attr") == "ce_string"
    assert theirs.WhichOneof("data") == "binary_data"
    theirs.attributes["priority"].ce_string = "UPRIORITY_CS4"
    theirs.attributes["time"].ce_string = "2023-11-14T22:13:20Z"
    message = PROTO.read(theirs.SerializeToString())
    assert (message.body, message.attributes["priority"]) == ("hi", "CS4")


def test_all_attributes_survive_both_formats() -> None:
    event = {
        **RESPONSE,
        "commstatus": 0,
        "hash": base64.b64encode(b"\x00\xffhash").decode(),
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "time": "2023-11-14T22:13:20Z",
        "flag": True,
        "dataschema": "/google.protobuf.StringValue",
        "datacontenttype": "application/x-protobuf",
    }
    first = decode(event)
    assert first.attributes["hash"] == b"\x00\xffhash"
    for codec in (EVENTS, PROTO):
        again = codec.read(codec.encode([first]))
        for name, value in first.attributes.items():
            assert again.attributes.get(name) == value or name == "datacontenttype", name
        assert (again.headers, again.raw) == (first.headers, first.raw)


def test_bytes_go_as_octets_with_a_schema_in_both_formats() -> None:
    for codec in (EVENTS, PROTO):
        message = Message(Kind.PUBLISH, attributes={name: PUBLISH[name] for name in ("id", "source")}, body=b"\x00\xff")
        back = codec.read(codec.encode([message]))
        assert back.body == b"\x00\xff"
        assert back.attributes["datacontenttype"] == "application/octet-stream"
        assert back.attributes["dataschema"] == "/polybus/octets"


def test_batches_hold_several_events_and_refuse_one_alone() -> None:
    events = [REQUEST, {**REQUEST, "priority": "CS9"}, PUBLISH]
    first, second, third = EVENTS.decode(json.dumps(events).encode())
    assert isinstance(first, Message) and isinstance(third, Message)
    assert isinstance(second, RemoteProtocolError)
    written = EVENTS.encode([first, third])
    assert [event["type"] for event in json.loads(written)] == ["req.v1", "pub.v1"]
    assert len(PROTO.read_batch(PROTO.encode([first, third]))) == 2
    with pytest.raises(RemoteProtocolError):
        PROTO.read_batch(b"\xff")


def test_what_is_written_keeps_the_rules() -> None:
    message = decode(REQUEST)
    message.attributes["priority"] = "CS1"
    with pytest.raises(LocalProtocolError, match=r"priority\.request"):
        EVENTS.encode([message])
    with pytest.raises(LocalProtocolError, match=r"id\.required"):
        EVENTS.encode([Message(Kind.PUBLISH, "news", body=1)])


def test_an_error_of_the_application_and_a_failed_delivery_are_told_apart() -> None:
    facts = {"id": RESPONSE["id"], "source": RESPONSE["source"], "sink": RESPONSE["sink"], "reqid": RESPONSE["reqid"]}
    for codec, text in itertools.product((EVENTS, PROTO), ("no such door", "")):
        told = {"text": text, "reason": "gone", "detail": {"door": 7}}
        error = Message(Kind.ERROR, "", RESPONSE["reqid"], code=Code.NOT_FOUND, attributes={**facts, **told})
        back = codec.read(codec.encode([error]))
        assert (back.kind, back.code) == (Kind.ERROR, Code.NOT_FOUND)
        assert {name: back.attributes[name] for name in told} == told
        assert "commstatus" not in back.attributes
    empty = base64.b64encode(pack("google.protobuf.Empty", b"")).decode()
    failed = decode({**RESPONSE, "commstatus": 4, "data_base64": empty})
    assert (failed.kind, failed.code, failed.attributes["commstatus"]) == (Kind.ERROR, Code.DEADLINE_EXCEEDED, 4)
    assert "not delivered" in failed.attributes["text"]
    odd = decode({**RESPONSE, "commstatus": 99})
    assert odd.code is Code.UNKNOWN
    assert "UNKNOWN(99)" in odd.attributes["text"]


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)


@given(PLAIN)
@example({"k" * 200: "x" * 200, "l": {"m": ["x" * 200, None]}})
def test_a_plain_value_is_what_the_package_reads_and_writes(value: Any) -> None:
    data = write_value(value, 128)
    assert read_value(data, 128) == value
    theirs = struct_pb2.Value.FromString(data)
    assert read_value(theirs.SerializeToString(), 128) == value


@given(st.binary(max_size=60))
def test_any_bytes_are_a_value_or_a_value_error(data: bytes) -> None:
    try:
        read_value(data, 8)
    except ValueError:
        pass


def test_messages_and_wrappers_and_strangers() -> None:
    packed = any_pb2.Any()
    packed.Pack(wrappers_pb2.Int64Value(value=2**60))
    assert ANY.decode(packed.SerializeToString()) == 2**60
    assert ANY.encode(wrappers_pb2.Int64Value(value=2**60)) == packed.SerializeToString()
    struct = struct_pb2.Struct()
    struct["a"] = 1
    assert ANY.decode(ANY.encode(struct)) == struct
    stranger = ANY.decode(pack("com.example.Unknown", b"\x08\x01"))
    assert isinstance(stranger, any_pb2.Any)
    assert (stranger.type_url, stranger.value) == ("type.googleapis.com/com.example.Unknown", b"\x08\x01")
    assert ANY.encode(stranger) == stranger.SerializeToString()


@pytest.mark.parametrize(
    ("value", "path"),
    [({"a": [1, 2**60]}, "$.a[1]"), ({"a": {"b": float("inf")}}, "$.a.b"), ([object()], "$[0]"), ("\ud800", "$")],
)
def test_what_has_no_place_in_a_value_is_named_by_its_path(value: Any, path: str) -> None:
    with pytest.raises(EncodeError) as caught:
        ANY.encode(value)
    assert caught.value.path == path


def test_deep_values_are_refused_in_both_directions() -> None:
    deep: Any = 1
    for _ in range(130):
        deep = [deep]
    with pytest.raises(EncodeError):
        ANY.encode(deep)
    with pytest.raises(RemoteProtocolError, match="deep"):
        decode(b'{"a":' + b"[" * 200 + b"]" * 200 + b"}")


@pytest.mark.parametrize("missing", ["id", "source", "spec_version", "type"])
def test_a_protobuf_event_without_a_required_attribute_is_refused(missing: str) -> None:
    event = to_protobuf(REQUEST)
    event.ClearField(missing)
    with pytest.raises(RemoteProtocolError) as caught:
        PROTO.decode(event.SerializeToString())
    assert caught.value.reason == "missing_field"


def test_a_frame_above_the_limit_ends_the_connection() -> None:
    for format in ("json", "protobuf"):
        codec = UProtocol(format=format).codec(Limits(message=100))
        with pytest.raises(RemoteProtocolError) as caught:
            codec.decode(b" " * 101)
        assert caught.value.close_code == 1009


def test_a_token_is_in_no_error() -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        decode({**REQUEST, "token": {"secret": "s3cret"}})
    assert "s3cret" not in str(caught.value)
    assert b"s3cret" not in caught.value.frame
    disguised = json.dumps({**REQUEST, "token": "s3cret", "priority": "CS1"}).replace('"token"', '"t\\u006fken"').encode()
    with pytest.raises(RemoteProtocolError) as caught:
        decode(disguised)
    assert b"s3cret" not in caught.value.frame
    assert "s3cret" not in repr(UProtocol(token="s3cret"))


@pytest.mark.parametrize(("value", "good"), [(2**31 - 1, True), (-(2**31), True), (2**31, False), (-(2**31) - 1, False)])
def test_a_further_attribute_that_is_a_number_has_32_bits_with_its_sign(value: int, good: bool) -> None:
    event = {**PUBLISH, "further": value}
    if good:
        message = decode(event)
        assert message.attributes["further"] == value
        assert PROTO.read(PROTO.encode([message])).attributes["further"] == value
    else:
        with pytest.raises(RemoteProtocolError, match=r"attributes\.values"):
            decode(event)


@pytest.mark.parametrize(
    ("time", "read"),
    [
        ("2026-11-21T10:00:00Z", "2026-11-21T10:00:00Z"),
        ("2026-11-21T12:00:00.000000001+02:00", "2026-11-21T10:00:00.000000001Z"),
        ("2016-12-31T23:59:60Z", "2016-12-31T23:59:60Z"),  # a leap second, for which Timestamp has no place
    ],
)
def test_time_is_a_timestamp_in_protobuf(time: str, read: str) -> None:
    frame = PROTO.encode([decode({**PUBLISH, "time": time})])
    value = cloud_event_classes()[0].FromString(frame).attributes["time"]
    assert value.WhichOneof("attr") == ("ce_string" if time.startswith("2016") else "ce_timestamp")
    assert PROTO.read(frame).attributes["time"] == read


@pytest.mark.parametrize(
    "time", ["yesterday", "2026-11-21", "2026-02-30T10:00:00Z", "2026-11-21T10:00:00", "9999999-01-01T00:00:00Z", 5]
)
@pytest.mark.parametrize("format", ["json", "protobuf"])
def test_a_time_that_is_no_timestamp_is_refused_strictly_and_kept_leniently(time: Any, format: Any) -> None:
    frame = written({**PUBLISH, "time": time}, format)
    with pytest.raises(RemoteProtocolError) as caught:
        UProtocol(format=format).codec().read(frame)
    assert caught.value.reason == "invalid_attribute"
    assert "(rule time.timestamp; document" in str(caught.value)
    assert UProtocol(format=format, mode="lenient").codec().read(frame).attributes["time"] == time


@pytest.mark.parametrize("ttl", [2**31 - 1, 2**31, 2**32 - 1])
def test_a_ttl_has_32_bits_in_json_as_the_document_says_and_31_in_protobuf(ttl: int) -> None:
    for event in (REQUEST, PUBLISH, RESPONSE):
        message = decode({**event, "ttl": ttl})
        assert message.attributes["ttl"] == ttl
        assert decode(EVENTS.encode([message])).attributes["ttl"] == ttl
        assert PROTO.read(PROTO.encode([message])).attributes["ttl"] == 2**31 - 1
        assert decode({**event, "ttl": str(ttl)}).attributes["ttl"] == ttl
    for wrong in (2**32, -1):
        with pytest.raises(RemoteProtocolError, match=r"ttl\.range"):
            decode({**PUBLISH, "ttl": wrong})


HASHES = [("somehash!", b"somehash!"), ("gr\u00fcn", "gr\u00fcn".encode()), ("c29tZWhhc2g=", b"somehash")]


@pytest.mark.parametrize(("text", "data"), HASHES)
def test_a_hash_that_is_text_is_read_leniently_and_refused_strictly(text: str, data: bytes) -> None:
    frame, proto = json.dumps({**PUBLISH, "hash": text}).encode(), to_protobuf(PUBLISH)
    proto.attributes["hash"].ce_string = text
    assert TOLERANT.read(frame).attributes["hash"] == data
    protobuf = UProtocol(format="protobuf", mode="lenient").codec()
    message = protobuf.read(proto.SerializeToString())
    assert message.attributes["hash"] == text.encode()
    assert protobuf.read(protobuf.encode([message])).attributes["hash"] == text.encode()  # and written as the document says
    if not text.endswith("="):
        with pytest.raises(RemoteProtocolError, match="hash is not base64"):
            EVENTS.read(frame)
    with pytest.raises(RemoteProtocolError, match=r"hash\.type"):
        PROTO.read(proto.SerializeToString())


@pytest.mark.parametrize("format", ["json", "protobuf"])
@pytest.mark.parametrize("url", ["type.googleapis.com/uprotocol.v1.UStatus", "/uprotocol.v1.UStatus"])
def test_a_status_of_the_sdks_is_an_error_as_that_of_the_document(url: str, format: Any) -> None:
    detail = any_pb2.Any()
    detail.Pack(wrappers_pb2.StringValue(value="the third door"))
    inner = b"\x08\x07\x12\x06no key" + b"\x1a" + bytes((detail.ByteSize(),)) + detail.SerializeToString()
    data = any_pb2.Any(type_url=url, value=inner).SerializeToString()
    event = {**RESPONSE, "data_base64": base64.b64encode(data).decode()}
    message = UProtocol(format=format).codec().read(written(event, format))
    assert (message.kind, message.code, message.id) == (Kind.ERROR, Code.PERMISSION_DENIED, RESPONSE["reqid"])
    assert (message.attributes["text"], message.attributes["detail"]) == ("no key", "the third door")
    fine = any_pb2.Any(type_url=url, value=b"\x12\x02ok").SerializeToString()
    answer = decode({**RESPONSE, "data_base64": base64.b64encode(fine).decode()})
    assert (answer.kind, answer.body.type_url) == (Kind.RESPONSE, url)


@pytest.mark.parametrize("format", ["json", "protobuf"])
def test_an_any_with_nothing_in_it_is_none(format: Any) -> None:
    message = UProtocol(format=format).codec().read(written({**RESPONSE, "data_base64": ""}, format))
    assert (message.kind, message.body) == (Kind.RESPONSE, None)


def test_nothing_is_an_empty_field_to_an_older_up_python_and_no_field_to_others() -> None:
    old = UProtocol(format="protobuf", profile="up-python-1.5").codec()
    message = Message(Kind.RESPONSE, id=RESPONSE["reqid"], attributes={k: v for k, v in RESPONSE.items() if k != "data_base64"})
    written = [cloud_event_classes()[0].FromString(codec.encode([message])) for codec in (old, PROTO)]
    assert [event.WhichOneof("data") for event in written] == ["binary_data", None]
    assert [codec.read(codec.encode([message])).body for codec in (old, PROTO)] == [None, None]


def test_no_attribute_is_named_data() -> None:
    """CloudEvents 1.0.2, JSON format, 3.1: there, that is where the payload stands."""
    event = to_protobuf(PUBLISH)
    event.attributes["data"].ce_string = "another payload"
    with pytest.raises(RemoteProtocolError, match=r"attributes\.names"):
        PROTO.read(event.SerializeToString())


def test_a_protobuf_event_is_shown_field_by_field_without_its_token() -> None:
    frame = to_protobuf(REQUEST).SerializeToString(deterministic=True)
    fields = UProtocol(format="protobuf").dissect(frame)
    assert fields[0].offset == 0
    assert sum(field.length for field in fields) == len(frame)
    shown = {field.name: field.value for field in fields}
    assert (shown["id"], shown["type"], shown["ttl"], shown["sink"]) == (REQUEST["id"], "req.v1", "5000", REQUEST["sink"])
    assert REQUEST["token"] not in repr(fields)
    assert UProtocol().dissect(b"{}") == []


@pytest.mark.parametrize("body", ["hi", b"\x00\xff", None, "x" * 300])
@pytest.mark.parametrize("event", [REQUEST, RESPONSE, PUBLISH], ids=["request", "response", "publish"])
def test_the_second_and_third_reading_of_a_protobuf_event_give_the_same(event: dict[str, Any], body: Any) -> None:
    """What was seen once is known by its bytes."""
    facts = {name: value for name, value in event.items() if name not in ("specversion", "data_base64", "token", "plevel")}
    kind = {"req.v1": Kind.REQUEST, "res.v1": Kind.RESPONSE, "pub.v1": Kind.PUBLISH}[event["type"]]
    codec = UProtocol(format="protobuf").codec(Limits(message=10**6 + len(repr(body))))
    message = Message(kind, attributes=facts, **({} if body is None else {"body": body}))
    frame = codec.encode([message])
    readings = [codec.read(frame) for _ in range(3)]
    other = bytearray(frame)
    other[11:12] = b"a" if other[11:12] != b"a" else b"b"  # another id
    readings.append(codec.read(bytes(other)))
    for found in readings:
        for name in ("kind", "subject", "raw", "format", "ttl"):
            assert getattr(found, name) == getattr(readings[0], name), name
        assert {**found.attributes, "id": ""} == {**readings[0].attributes, "id": ""}
        assert found.body == body
    assert readings[3].attributes["id"] == bytes(other[2:38]).decode()
    for cut in range(1, 4):
        with pytest.raises(RemoteProtocolError):
            codec.read(frame[:-cut])


OPEN = "01a1fd55-41d7-8001-9c64-43f769f24853"
START = b'{"specversion":"1.0","type":"polybus.item.v1","source":"/polybus/1","id":"' + OPEN.encode()
IN_PROTOBUF = b"\n\x27" + OPEN.encode() + b"/1f" + b'\x12\n/polybus/1\x1a\x031.0"\x0fpolybus.item.v12\x03\0\1\xff'


@pytest.mark.parametrize(
    ("codec", "frame", "raw", "format"),
    [
        (EVENTS, START + b'/1f","data_base64":"AAH/"}', b"\0\1\xff", OCTETS),
        (EVENTS, START + b'/1f","data_base64":""}', b"", OCTETS),
        (EVENTS, START + b'/1f","data":{"request":"a","id":1}}', b'{"request":"a","id":1}', JSON),
        (EVENTS, START + b'/1f","data":[1,{"a":1e2}]}', b'[1,{"a":1e2}]', JSON),
        (PROTO, IN_PROTOBUF, b"\0\1\xff", OCTETS),
    ],
)
def test_a_frame_of_a_tunnel_on_the_wire_and_back(codec: Any, frame: bytes, raw: bytes, format: BodyFormat) -> None:
    [message] = codec.decode(frame)
    assert (message.kind, message.id, message.raw, message.format) == (Kind.ITEM, OPEN, raw, format)
    assert message.attributes == {"id": f"{OPEN}/1f", "source": "/polybus/1", "type": "polybus.item.v1"}
    assert codec.encode([message]) == frame
    facts = dict(message.attributes)
    assert codec.encode([Message(Kind.ITEM, "", OPEN, raw, format, attributes=facts)]) == frame


def test_items_of_a_session_are_events_for_others_too_with_ids_of_their_own() -> None:
    event = JSONFormat().read(CloudEvent, START + b'/2","data":{"a":1}}')
    assert (event.get_type(), event.get_id(), event.get_data()) == ("polybus.item.v1", f"{OPEN}/2", {"a": 1})
    session = Driven(UProtocol(entity="/plant/1").session("client"))
    session.start(0.0)
    for _ in range(3):
        session.send(Message(Kind.ITEM, "x", OPEN, b"[]", JSON), 0.0)
    ids = [json.loads(frame)["id"] for frame in session.frames_to_send()]
    assert ids == [f"{OPEN}/1", f"{OPEN}/2", f"{OPEN}/3"]


@pytest.mark.parametrize(
    "tail",
    [
        *(b'"}', b'","data":1}', b'/","data":{}}', b'/xyz","data":{}}', b'/1","data":"e30="}', b'/1","data_base64":"e30"}'),
        *(b'/1","data":{},"data_base64":"e30="}', b'/1","data":{},"more":1}', b'/1","data":{"a":NaN}}'),
        b'/1","data":' + b"[" * 500 + b"]" * 500 + b"}",
    ],
)
def test_what_is_nearly_one_is_refused(tail: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        EVENTS.decode(START + tail)


@pytest.mark.parametrize("mode", ["strict", "lenient"])
def test_what_could_only_be_answered_against_the_rules_is_not_answered(mode: Any) -> None:
    """Found by fuzzing: the answer's source would have been an address without authority."""
    session = Driven(UProtocol(mode=mode).session("server"))
    session.start(0.0)
    asked = {"source": "up://hu.veh7/hmi.app/1/rpc.response", "sink": "up:/seat/1/rpc.SetHeat", "plevel": "much"}
    event = {"specversion": "1.0", "id": OPEN, "type": "req.v1", "priority": "CS4", "ttl": 5, **asked}
    session.receive(json.dumps(event).encode(), 0)
    for frame in session.frames_to_send():
        session.codec.decode(frame)


IDS = [REQUEST["id"], RESPONSE["id"], "cf8b1bcd-30bd-43be-a8d3-ad1cde652e10"]  # the last of version 4
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


def facts(message: Message) -> Any:
    return message.kind, message.subject, message.id, message.raw, message.ttl, message.code, message.attributes


def quickly(codec: UProtocolCodec, frame: bytes) -> Any:
    try:
        return facts(codec.read(frame))
    except RemoteProtocolError:
        return "refused"


def carefully(codec: UProtocolCodec, frame: bytes) -> Any:
    """Without whatever is remembered: through the parser of everything and the table of rules."""
    try:
        return facts(codec.reader._envelope.examined(*codec.reader.parts(frame)))
    except (RemoteProtocolError, ValueError, RecursionError):
        return "refused"


@pytest.mark.parametrize("late", [{"ttl": 1}, {"sink": "//q.r/hmi/1"}, {"priority": "CS6"}, {"reqid": IDS[0], "ttl": 1}])
def test_what_one_peer_writes_behind_its_data_is_not_read_into_the_events_of_others(late: dict[str, Any]) -> None:
    """A codec, and what it remembers, is shared by all connections of equal options."""
    codec = fresh()
    written = b"".join(attribute(name, value) for name, value in late.items())
    head, others = begin(IDS[0]), begin(IDS[1]) + DATA
    for frame in (head + DATA + written, head + written + DATA):
        codec.read(frame)
        assert quickly(codec, others) == carefully(codec, others) != "refused"


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
        [*(f"application/{it}" for it in ("protobuf", "x-protobuf", "octet-stream")), "text/plain"]
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
        assert quickly(codec, frame) == carefully(codec, frame)


@pytest.mark.parametrize("mode", ["strict", "lenient"])
@given(frames=st.lists(documents(), min_size=1, max_size=8))
@example(
    frames=[b'{"specversion":"1.0","id":"%b","source":"%b","type":"pub.v1","reqid":"x"}' % (IDS[0].encode(), TOPIC.encode())]
)
def test_json_events_are_read_alike(mode: Any, frames: list[bytes]) -> None:
    codec = fresh("json", mode)
    for frame in frames:
        assert quickly(codec, frame) == carefully(codec, frame)


def test_of_several_bad_attributes_the_first_by_name_is_told() -> None:
    event = to_protobuf(PUBLISH)
    for letter in "hgfedcba":  # a map of protobuf has an order of its own in each process
        event.attributes[f"{letter}!"].ce_string = "x"
    with pytest.raises(RemoteProtocolError, match="'a!' is not the name of an attribute"):
        UProtocol(format="protobuf").codec().read(event.SerializeToString())


def test_the_classes_are_those_of_the_proto_file() -> None:
    proto = Path(proto_event.__file__).with_name("cloudevents.proto").read_text()
    ours = FileDescriptorProto()
    cloud_event_classes()[0].DESCRIPTOR.file.CopyToProto(ours)
    event, _ = ours.message_type
    found = {(one.name, one.number) for message in (*ours.message_type, *event.nested_type) for one in message.field}
    wanted = {(name, int(number)) for name, number in re.findall(r"(\w+) = (\d+);", proto)}
    assert found == wanted | {("key", 1), ("value", 2)}  # those of a map's entry
    assert [one.name for one in event.field if one.HasField("oneof_index")] == ["binary_data", "text_data", "proto_data"]
