"""Items of streams and channels with as little as possible around them: what tunnels are made of."""

from __future__ import annotations

import json
from typing import Any

import pytest
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent

from polybus import Message, RemoteProtocolError
from polybus.body import JSON, OCTETS, BodyFormat
from polybus.message import Kind
from polybus.protocols import UProtocol

TEXT = UProtocol().codec()
PROTO = UProtocol(format="protobuf").codec()
OPEN = "01a1fd55-41d7-8001-9c64-43f769f24853"
START = b'{"specversion":"1.0","type":"polybus.item.v1","source":"/polybus/1","id":"' + OPEN.encode()


@pytest.mark.parametrize(
    ("codec", "frame", "raw", "format"),
    [
        (TEXT, START + b'/1f","data_base64":"AAH/"}', b"\0\1\xff", OCTETS),
        (TEXT, START + b'/1f","data_base64":""}', b"", OCTETS),
        (TEXT, START + b'/1f","data":{"request":"a","id":1}}', b'{"request":"a","id":1}', JSON),
        (TEXT, START + b'/1f","data":[1,{"a":1e2}]}', b'[1,{"a":1e2}]', JSON),
        (
            PROTO,
            b"\n\x27" + OPEN.encode() + b"/1f" + b'\x12\n/polybus/1\x1a\x031.0"\x0fpolybus.item.v12\x03\0\1\xff',
            b"\0\1\xff",
            OCTETS,
        ),
    ],
)
def test_a_frame_of_a_tunnel_on_the_wire_and_back(codec: Any, frame: bytes, raw: bytes, format: BodyFormat) -> None:
    [message] = codec.decode(frame)
    assert (message.kind, message.id, message.raw, message.format) == (Kind.ITEM, OPEN, raw, format)
    assert message.attributes == {"id": f"{OPEN}/1f", "source": "/polybus/1", "type": "polybus.item.v1"}
    assert codec.encode([message]) == frame
    facts = dict(message.attributes)
    assert codec.encode([Message(Kind.ITEM, "", OPEN, raw, format, attributes=facts)]) == frame


def test_it_is_an_event_for_others_too() -> None:
    event = JSONFormat().read(CloudEvent, START + b'/2","data":{"a":1}}')
    assert (event.get_type(), event.get_id(), event.get_data()) == ("polybus.item.v1", f"{OPEN}/2", {"a": 1})


@pytest.mark.parametrize(
    "tail",
    [
        b'"}',
        b'","data":1}',
        b'/","data":{}}',
        b'/1","data":"e30="}',
        b'/xyz","data":{}}',
        b'/1","data":{},"data_base64":"e30="}',
        b'/1","data":{},"more":1}',
        b'/1","data_base64":"e30"}',
        b'/1","data":{"a":NaN}}',
        b'/1","data":' + b"[" * 500 + b"]" * 500 + b"}",
    ],
)
def test_what_is_nearly_one_is_refused(tail: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        TEXT.decode(START + tail)


def test_items_of_one_session_have_ids_of_their_own() -> None:
    session = UProtocol(entity="/plant/1").session("client")
    session.start(0.0)
    for _ in range(3):
        session.send(Message(Kind.ITEM, "x", OPEN, b"[]", JSON), 0.0)
    ids = [json.loads(frame)["id"] for frame in session.frames_to_send()]
    assert ids == [f"{OPEN}/1", f"{OPEN}/2", f"{OPEN}/3"]


@pytest.mark.parametrize("mode", ["strict", "lenient"])
def test_what_could_only_be_answered_against_the_rules_is_not_answered(mode: Any) -> None:
    """Found by fuzzing: the answer's source would have been an address without authority."""
    session = UProtocol(mode=mode).session("server")
    session.start(0.0)
    asked = {"source": "up://hu.veh7/hmi.app/1/rpc.response", "sink": "up:/seat/1/rpc.SetHeat", "plevel": "much"}
    session.receive(
        json.dumps({"specversion": "1.0", "id": OPEN, "type": "req.v1", "priority": "CS4", "ttl": 5, **asked}).encode(), 0
    )
    for frame in session.frames_to_send():
        session.codec.decode(frame)
