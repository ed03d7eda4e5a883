"""What CloudEvents 1.0.2 asks of attributes, headers and content types, in all forms; and messages that come back."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from polybus import BusError, LocalProtocolError, Message, RemoteProtocolError
from polybus.message import Kind
from polybus.protocols import UProtocol
from polybus.protocols.uprotocol.cloudevents import cloudevents_pb2
from polybus.protocols.uprotocol.http import from_http, to_http
from polybus.subjects import check_subject

from .support import PUBLISH, REQUEST, decode

HEAD = {f"ce-{name}": str(value) for name, value in PUBLISH.items() if name != "data_base64"}
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def in_protobuf(event: dict[str, Any]) -> bytes:
    made = cloudevents_pb2.CloudEvent(id=event["id"], source=event["source"], spec_version="1.0", type=event["type"])
    for name, value in event.items():
        if name not in ("id", "source", "specversion", "type", "data_base64"):
            setattr(made.attributes[name], "ce_integer" if isinstance(value, int) else "ce_string", value)
    return made.SerializeToString()


def refused_everywhere(event: dict[str, Any], mode: Any) -> None:
    """In JSON, protobuf, a batch, and over HTTP in binary mode."""
    event = {name: value for name, value in event.items() if name != "data_base64"}
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
        ("'single'", "'single'"),
        ('a "b" c', 'a "b" c'),
        ('"open', '"open'),
        ('closed"', 'closed"'),
        ('"a\\"', '"a\\"'),
        ('"', '"'),
        ("a%2", "a%2"),
        ("100%", "100%"),
        ("%zz", "%zz"),
        *((bad, None) for bad in ("%C0%AF", "%ED%A0%80", "%E2", "%82", "%FF", "a%F0%9F%98z", '"%C3"')),
    ],
)
def test_the_value_of_a_header_is_unquoted_and_then_decoded_or_refused(value: str, text: str | None) -> None:
    if text is None:
        with pytest.raises(RemoteProtocolError, match="no UTF-8"):
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
    event = {name: value for name, value in PUBLISH.items() if name != "data_base64"}
    with pytest.raises(RemoteProtocolError, match="subject is text"):
        decode(in_protobuf({**event, "subject": 7}), format="protobuf")
    for name in ("comexample", "Bad-Name", "sink"):
        made = cloudevents_pb2.CloudEvent.FromString(in_protobuf(event))
        made.attributes[name].SetInParent()
        assert made.attributes[name].WhichOneof("attr") is None
        with pytest.raises(RemoteProtocolError, match="no value"):
            decode(made.SerializeToString(), format="protobuf")


def test_the_content_type_of_a_binary_event_is_that_of_http_alone() -> None:
    for headers in ({}, {"content-type": "application/json"}):
        with pytest.raises(RemoteProtocolError, match="ce-datacontenttype"):
            from_http({**HEAD, **headers, "ce-datacontenttype": "text/plain"}, b"x")
    (message,) = from_http(
        {**HEAD, "content-type": "text/plain", "ce-datacontenttype": "a/b", "ce-dataschema": "/x"}, b"x", mode="lenient"
    )
    assert isinstance(message, Message) and message.body == "x"


@pytest.mark.parametrize(
    "trace", ["x", "00-0-0-00", TRACE.upper(), TRACE[:-1], f"{TRACE}-x", "ff" + TRACE[2:], TRACE.replace("0af", "zzz")]
)
def test_a_traceparent_that_is_none_is_no_header_and_costs_nothing(trace: str) -> None:
    message = decode({**PUBLISH, "traceparent": trace, "tracestate": "a=1"})
    assert (message.headers, message.attributes["traceparent"]) == ({"tracestate": "a=1"}, trace)
    good = decode({**PUBLISH, "traceparent": TRACE})
    assert good.headers == {"traceparent": TRACE}


# -- the border: there and back ----------------------------------------------------------------------------------------------

SUBJECTS = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30),
    st.lists(
        st.sampled_from(["a", "rpc", "response", "Message", "\u00e9", " ", "%2E", "#", "?", "\u00a0", "\u200b"]),
        min_size=1,
        max_size=6,
    ).map(".".join),
    st.sampled_from(["//V.X/body/1/door#Door", "//v/body/1/rpc.Set", "rpc.a.b.c", "a.b.c.d.e"]),
)


@given(
    SUBJECTS,
    st.sampled_from([Kind.PUBLISH, Kind.REQUEST, Kind.NOTIFY]),
    st.sampled_from(["/polybus/1", "//VCU.VIN/body.access/1"]),
)
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
        (again,) = from_http(content.headers, content.body, entity=entity)
        assert isinstance(again, Message) and again.subject == subject


def test_a_token_with_control_characters_is_not_written() -> None:
    session = UProtocol(token=lambda: "a\r\nb").session("client")
    with pytest.raises(LocalProtocolError, match="control characters"):
        session.send(Message(Kind.REQUEST, "x", ttl=1.0), 0.0)
