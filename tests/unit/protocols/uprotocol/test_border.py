"""The border: objects of the cloudevents package, and HTTP content in all its modes, with that package as the other side.

And what CloudEvents 1.0.2 asks of attributes, headers and content types, in all forms; and messages that come back.
"""

import datetime
import json
import subprocess
import sys
from typing import Any

import pytest
from cloudevents.core.bindings import http as their_http
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent
from hypothesis import assume, given
from hypothesis import strategies as st

from polybus import BusError, LocalProtocolError, Message, RemoteProtocolError
from polybus.message import Kind
from polybus.protocols import UProtocol
from polybus.protocols.uprotocol.http import from_http, to_http
from polybus.protocols.uprotocol.proto_event import cloud_event_classes
from polybus.subjects import check_subject
from tests.doubles.driven import Driven

from .support import PUBLISH, REQUEST, RESPONSE, decode, in_protobuf, without

BARE = without(PUBLISH, "data_base64")


def read(content: Any, **options: Any) -> Message:
    """The one message of HTTP content."""
    (message,) = from_http(content.headers, content.body, **options)
    assert isinstance(message, Message)
    return message


def known(message: Message) -> dict[str, Any]:
    return {name: value for name, value in message.attributes.items() if name not in ("datacontenttype", "time")}


FULL = {**RESPONSE, "commstatus": 4, "hash": "AP8=", "plevel": 3, "further": 7}


@pytest.mark.parametrize("binding", ["json", "structured", "binary"])
def test_an_event_with_all_attributes_goes_through_the_package_and_comes_back(binding: str) -> None:
    """It knows neither bytes nor, in headers, numbers."""
    message, format = decode(FULL), JSONFormat()
    theirs = message.to_cloudevent()
    if binding == "json":
        found = format.read(CloudEvent, format.write(theirs))
    else:
        content = their_http.to_structured(theirs, format) if binding == "structured" else their_http.to_binary(theirs, format)
        found = their_http.from_http(content, format)
    back = Message.from_cloudevent(found)
    expected = known(message) if binding != "binary" else {**known(message), "further": "7"}
    assert (back.kind, back.code, known(back), back.raw) == (message.kind, message.code, expected, message.raw)


@pytest.mark.parametrize("data", [object(), {"a": object()}, "\ud800"], ids=["object", "inside", "text"])
def test_data_that_cannot_be_written_are_a_typed_error(data: Any) -> None:
    with pytest.raises(RemoteProtocolError, match="cannot be written"):
        Message.from_cloudevent(CloudEvent({**BARE, "datacontenttype": "application/json"}, data))


@pytest.mark.parametrize("time", ["2026-11-21T10:00:00Z", "2026-11-21T12:00:00.5+02:00"])
def test_the_time_of_an_event_stays_as_it_is(time: str) -> None:
    """What the package itself writes always has one."""
    message = decode({**PUBLISH, "time": time})
    theirs = message.to_cloudevent()
    assert theirs.get_time() == datetime.datetime.fromisoformat(time)
    back = Message.from_cloudevent(theirs).attributes["time"]
    assert datetime.datetime.fromisoformat(back) == theirs.get_time()


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"time": "yesterday"}, r"time\.timestamp"),
        ({"time": "2026-11-21T10:00:00"}, r"time\.timestamp"),
        ({"time": "2016-12-31T23:59:60Z"}, "time is not a date"),
        ({"time": 5}, r"time\.timestamp"),
        ({"id": "ffffffff-ffff-8000-8000-000000000007"}, "the time of the id is not a date"),
        ({"subject": ""}, "subject"),
    ],
)
def test_what_the_package_cannot_hold_is_a_typed_error(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(LocalProtocolError, match=text):
        decode({**PUBLISH, **changes}, mode="lenient").to_cloudevent()


def test_what_a_message_does_not_say_is_made() -> None:
    theirs = Message(Kind.PUBLISH, "news.today", body={"a": 1}).to_cloudevent(entity="//VCU.VIN/body.access/1")
    back = Message.from_cloudevent(theirs)
    assert (back.subject, back.body) == ("//VCU.VIN/body.access/1/news.today#Message", {"a": 1})
    assert Message.from_cloudevent(Message(Kind.PUBLISH, "x", body=b"\xff").to_cloudevent()).body == b"\xff"
    asked = Message(Kind.REQUEST, "user.get", ttl=2.5).to_cloudevent()
    assert asked.get_attributes()["ttl"] == 2500
    with pytest.raises(LocalProtocolError, match=r"ttl\.required"):
        Message(Kind.REQUEST, "user.get").to_cloudevent()


def test_an_event_that_breaks_a_rule_is_refused_by_its_name() -> None:
    event = CloudEvent({"id": "1", "source": "/a", "type": "com.example"})
    with pytest.raises(RemoteProtocolError, match=r"type\.value"):
        Message.from_cloudevent(event)
    old = CloudEvent({**BARE, "id": "5b9fe861-8c1c-4899-9b07-ad1cde652e10"})
    with pytest.raises(RemoteProtocolError, match=r"id\.version"):
        Message.from_cloudevent(old, mode="strict")
    assert Message.from_cloudevent(old).attributes["polybus-lenient"] == ["id.version"]
    with pytest.raises(ValueError, match="mode='any' must be one of"):
        Message.from_cloudevent(old, mode="any")
    with pytest.raises(ValueError, match="mode='any' must be one of structured, binary, batch"):
        to_http([decode(REQUEST)], mode="any")  # type: ignore[arg-type]  # no mode


@pytest.mark.parametrize("hashed", ["some hash", "c29tZWhhc2g="])
def test_a_hash_that_is_text_comes_in_from_the_package_in_lenient_mode(hashed: str) -> None:
    """up-python and up-java write any text; base64 is base64."""
    event = CloudEvent({**BARE, "hash": hashed})
    assert Message.from_cloudevent(event, mode="lenient").attributes["hash"] in (b"some hash", b"somehash")
    headers = {f"ce-{name}": str(value) for name, value in {**BARE, "hash": hashed.replace(" ", "%20")}.items()}
    (found,) = from_http(headers, b"", mode="lenient")
    assert isinstance(found, Message) and found.attributes["hash"] in (b"some hash", b"somehash")
    if " " in hashed:
        with pytest.raises(RemoteProtocolError, match="hash is not base64"):
            Message.from_cloudevent(event)
        with pytest.raises(RemoteProtocolError, match="hash is not base64"):
            from_http(headers, b"")


NASTY = {
    **PUBLISH,
    "source": "up://cgw.veh7/climate.seat/1/a%20b#Heater",
    "dataschema": "/x?y=%22z%22",
    "note": 'gr\u00fcn "quoted" 100%',
}
EMPTY = {**NASTY, "datacontenttype": "application/octet-stream", "data_base64": ""}


@pytest.mark.parametrize("format", ["json", "protobuf"])
@pytest.mark.parametrize("mode", ["structured", "binary", "batch"])
@pytest.mark.parametrize(
    "event", [REQUEST, RESPONSE, FULL, PUBLISH, NASTY, EMPTY], ids=["request", "answer", "full", "publish", "nasty", "empty"]
)
def test_an_event_goes_through_http_and_back(event: dict[str, Any], mode: Any, format: Any) -> None:
    message = decode(event)
    content = to_http([message], UProtocol(format=format), mode)
    (back,) = from_http({name.title(): value for name, value in content.headers.items()}, content.body)
    assert isinstance(back, Message)
    assert (back.kind, back.code, back.raw, back.ttl) == (message.kind, message.code, message.raw, message.ttl)
    assert known(back) == ({**known(message), "further": "7"} if event is FULL and mode == "binary" else known(message))


def test_binary_mode_is_that_of_the_package() -> None:
    for event in (REQUEST, NASTY):
        message = decode(event)
        ours = to_http([message], mode="binary")
        theirs = their_http.to_binary_event(message.to_cloudevent())
        assert theirs.headers.pop("ce-time") == "2023-11-14T22:13:20.123000Z"  # that of the id, and not of now
        assert {name.lower(): value for name, value in theirs.headers.items()} == dict(ours.headers)
        assert theirs.body == ours.body
        found = their_http.from_http(their_http.HTTPMessage(dict(ours.headers), ours.body), JSONFormat())
        assert found.get_attributes()["source"] == event["source"]
        back = read(theirs)
        assert (known(back), back.body) == (known(message), "hi")


def test_structured_mode_is_read_by_the_package_and_a_batch_by_the_generated_class() -> None:
    content = to_http([decode(REQUEST)])
    theirs = their_http.from_http(their_http.HTTPMessage(dict(content.headers), content.body), JSONFormat())
    assert theirs.get_id() == REQUEST["id"]
    batch = to_http([decode(REQUEST), decode(PUBLISH)], UProtocol(format="protobuf"), "batch")
    assert [event.type for event in cloud_event_classes()[1].FromString(batch.body).events] == ["req.v1", "pub.v1"]


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ({}, b""),
        ({"content-type": "text/html"}, b"<p>"),
        ({"content-type": "application/cloudevents+json"}, b"{"),
        ({"content-type": "application/cloudevents-batch+json"}, b"{}"),
        ({"content-type": "application/cloudevents+protobuf"}, b"\xff"),
        ({"ce-specversion": "1.0"}, b""),
        ({"ce-specversion": "1.0", "ce-ttl": "9" * 30}, b""),
        ({"ce-specversion": "1.0", "ce-hash": "\u00e4"}, b""),
    ],
)
def test_what_is_no_event_is_a_typed_error(headers: dict[str, str], body: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        from_http(headers, body)


def test_a_message_without_answer_is_written_with_what_the_caller_has() -> None:
    with pytest.raises(ValueError, match="batch"):
        to_http([decode(PUBLISH), decode(PUBLISH)])
    back = read(to_http([Message(Kind.PUBLISH, "news", body=1)]))
    assert (back.subject, back.body) == ("news", 1)


def test_the_hot_path_loads_neither_protobuf_nor_cloudevents() -> None:
    script = """
import sys, json
from polybus.protocols import UProtocol
from polybus.message import Kind, Message
from tests.doubles.driven import Driven
for format in ("json", "protobuf"):
    one, two = (Driven(UProtocol(format=format).session(role)) for role in ("client", "server"))
    codec = one.codec
    one.send(Message(Kind.REQUEST, "x", None, codec.formats[0].encode({"a": 1}), codec.formats[0], None, 5.0), 0.0)
    two.receive(one.frames_to_send()[0], 0.0)
    (message,) = two.events()
    assert message.body == {"a": 1}
print(*[name for name in ("google.protobuf", "cloudevents", "httpx") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == []


@pytest.mark.parametrize("name", ["ttl", "plevel"])
def test_a_number_of_thousands_of_digits_in_a_header_is_refused_by_the_rule_of_its_attribute(name: str) -> None:
    headers = {f"ce-{key}": str(value) for key, value in REQUEST.items() if key != "data_base64"}
    with pytest.raises(RemoteProtocolError, match=f"{name} must be an integer, not str"):
        from_http({**headers, f"ce-{name}": "0" * 11 + "9" * 5000}, b"")


HEAD = {f"ce-{name}": str(value) for name, value in BARE.items()}
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def refused_everywhere(event: dict[str, Any], mode: Any) -> None:
    """In JSON, protobuf, a batch, and over HTTP in binary mode."""
    event = without(event, "data_base64")
    frame = json.dumps(event).encode()
    with pytest.raises(RemoteProtocolError):
        decode(frame, mode=mode)
    with pytest.raises(RemoteProtocolError):
        decode(in_protobuf(event), mode=mode, format="protobuf")
    (found,) = from_http({"content-type": "application/cloudevents-batch+json"}, b"[" + frame + b"]", mode=mode)
    assert isinstance(found, RemoteProtocolError)
    headers = {f"ce-{name}": _percent(str(value)) for name, value in event.items()}
    if "ce-datacontenttype" in headers:
        headers["content-type"] = event["datacontenttype"]
        del headers["ce-datacontenttype"]
    with pytest.raises(RemoteProtocolError):
        from_http(headers, b"x" if "datacontenttype" in event else b"", mode=mode)


def _percent(text: str) -> str:
    return "".join(f"%{byte:02X}" for byte in text.encode())


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ('"say \\"hi\\""', 'say "hi"'),
        ('"a\\\\b"', "a\\b"),
        ('"a%20b"', "a b"),
        ('"\\%41"', "A"),
        ("a%20b", "a b"),
        ("caf%c3%a9%F0%9F%98%80", "caf\u00e9\U0001f600"),
        *((same, same) for same in ("'single'", 'a "b" c', '"open', 'closed"', '"a\\"', '"', "a%2", "100%", "%zz")),
        *((bad, None) for bad in ("%C0%AF", "%ED%A0%80", "%E2", "%82", "%FF", "a%F0%9F%98z", '"%C3"')),
    ],
)
def test_the_value_of_a_header_is_unquoted_and_then_decoded_or_refused(value: str, text: str | None) -> None:
    if text is None:
        with pytest.raises(RemoteProtocolError, match="not UTF-8"):
            from_http({**HEAD, "ce-comexample": value}, b"")
    else:
        (message,) = from_http({**HEAD, "ce-comexample": value}, b"")
        assert isinstance(message, Message) and message.attributes["comexample"] == text


@pytest.mark.parametrize("mode", ["document", "strict", "lenient"])
@pytest.mark.parametrize("text", ["a\r\nb", "\x00", "\x1f", "\x7f", "\x85", "\x9f", "\ufdd0", "\ufffe", "\U0001ffff"])
@pytest.mark.parametrize("name", ["subject", "token", "comexample"])
def test_what_is_no_text_is_refused_in_every_attribute_and_form(name: str, text: str, mode: str) -> None:
    refused_everywhere({**REQUEST, name: text}, mode)


@pytest.mark.parametrize(
    "type", ["xyz", "", "text/plain\r\nX-Evil: 1", "text/plain\r\n;a=b", "text/plain; a\rb", "text/plain;\x00", "a/b\n"]
)
@pytest.mark.parametrize("base", [PUBLISH, REQUEST])
def test_what_is_no_media_type_is_refused_also_on_the_short_way(base: dict[str, Any], type: str) -> None:
    if type:  # a header without a value says nothing
        refused_everywhere({**base, "datacontenttype": type}, "document")
    with pytest.raises(RemoteProtocolError):
        bare = {name: value for name, value in base.items() if name not in ("data_base64", "token", "plevel")}
        decode(in_protobuf({**bare, "datacontenttype": type}), format="protobuf")


def test_an_empty_subject_a_number_for_text_and_an_attribute_without_value_are_refused() -> None:
    for mode in ("document", "strict"):
        refused_everywhere({**PUBLISH, "subject": ""}, mode)
    with pytest.raises(RemoteProtocolError, match="subject must be a string"):
        decode(in_protobuf({**BARE, "subject": 7}), format="protobuf")
    for name in ("comexample", "Bad-Name", "sink"):
        made = cloud_event_classes()[0].FromString(in_protobuf(BARE))
        made.attributes[name].SetInParent()
        assert made.attributes[name].WhichOneof("attr") is None
        with pytest.raises(RemoteProtocolError, match="no value"):
            decode(made.SerializeToString(), format="protobuf")


def test_the_content_type_of_a_binary_event_is_that_of_http_alone() -> None:
    for headers in ({}, {"content-type": "application/json"}):
        with pytest.raises(RemoteProtocolError, match="ce-datacontenttype"):
            from_http({**HEAD, **headers, "ce-datacontenttype": "text/plain"}, b"x")
    headers = {**HEAD, "content-type": "text/plain", "ce-datacontenttype": "a/b", "ce-dataschema": "/x"}
    (message,) = from_http(headers, b"x", mode="lenient")
    assert isinstance(message, Message) and message.body == "x"


@pytest.mark.parametrize(
    "trace", ["x", "00-0-0-00", TRACE.upper(), TRACE[:-1], f"{TRACE}-x", "ff" + TRACE[2:], TRACE.replace("0af", "zzz")]
)
def test_a_traceparent_that_is_none_is_no_header_and_costs_nothing(trace: str) -> None:
    message = decode({**PUBLISH, "traceparent": trace, "tracestate": "a=1"})
    assert (message.headers, message.attributes["traceparent"]) == ({"tracestate": "a=1"}, trace)
    good = decode({**PUBLISH, "traceparent": TRACE})
    assert good.headers == {"traceparent": TRACE}


WORDS = st.sampled_from(["a", "rpc", "response", "Message", "\u00e9", " ", "%2E", "#", "?", "\u00a0", "\u200b"])
SUBJECTS = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30),
    st.lists(WORDS, min_size=1, max_size=6).map(".".join),
    st.sampled_from(["//V.X/body/1/door#Door", "//v/body/1/rpc.Set", "rpc.a.b.c", "a.b.c.d.e"]),
)


KINDS = st.sampled_from([Kind.PUBLISH, Kind.REQUEST, Kind.NOTIFY])


@given(SUBJECTS, KINDS, st.sampled_from(["/polybus/1", "//VCU.VIN/body.access/1"]))
def test_a_message_comes_back_from_an_event_with_its_subject(subject: str, kind: Kind, entity: str) -> None:
    try:
        check_subject(subject)
        event = Message(kind, subject, body=[1], ttl=1.0).to_cloudevent(entity=entity)
    except BusError:
        assume(False)
        raise
    back = Message.from_cloudevent(event, entity=entity)
    assert (back.kind, back.subject, back.body) == (kind, subject, [1])
    for mode in ("structured", "binary", "batch"):
        content = to_http([Message(kind, subject, body=[1], ttl=1.0)], UProtocol(entity=entity), mode)
        assert read(content, entity=entity).subject == subject


def test_a_token_with_control_characters_is_not_written() -> None:
    session = Driven(UProtocol(token=lambda: "a\r\nb").session("client"))
    with pytest.raises(LocalProtocolError, match="control characters"):
        session.send(Message(Kind.REQUEST, "x", ttl=1.0), 0.0)
