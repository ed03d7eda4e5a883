"""Every payload that was recorded from a real Errai, with its verdict, and what we write against Errai's rules of decoding."""

import datetime
import decimal
import json
import re
from pathlib import Path
from typing import Any

import attrs
import pytest

from polybus import Kind, Message
from polybus.errors import RemoteProtocolError
from polybus.protocols import Jrep
from polybus.protocols.jrep import JavaEnum, JavaObject, JavaTypes

VECTORS: dict[str, str] = json.loads((Path(__file__).parents[3] / "vectors" / "jrep_vectors.json").read_text())
UTC = datetime.UTC

# What each value is in Python.
VALUES: dict[str, Any] = {
    "J02": 'q"b\\s/\n\t\x01\x7fé\u2028€😀',
    "J03": None,
    "J04": 3,
    "J05": 2,
    "J06": 1,
    "J07": 9223372036854775807,
    "J09": 1e21,
    "J12": True,
    "J13": "c",
    "J14": 123456789012345678901234567890,
    "J15": decimal.Decimal("1.10"),
    "J16": datetime.datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC),
    "J17": datetime.datetime(2023, 11, 14, 22, 13, 20, 123000, tzinfo=UTC),
    "J18": JavaEnum("wiretest.Colour", "RED"),
    "J19": ["a", 1, 2, None, True, 2.5],
    "J20": {1, 2},
    "J21": [1, 2],
    "J22": [1, 2],
    "J23": b"\x01\xff",
    "J24": ["a", None],
    "J31": "z",
    "J32": 5,
    # A real server refuses this one; the document allows it, so we read it. That we never write it is shown below.
    "J35": {"a": 1},
    "J37": "é",
}

# The kind of the message, its subject and what else has to be seen.
MESSAGES: dict[str, tuple[Kind, str | int, dict[str, Any]]] = {
    "J42": (
        Kind.CONTROL,
        "ServerBus",
        {"CommandType": "Associate", "RemoteServices": "ClientBus,ClientBusErrors,news,myreply"},
    ),
    "J43": (Kind.CONTROL, "ClientBus", {"CommandType": "FinishAssociation", "ConnectionSessionKey": "cfbad02b"}),
    "J47": (Kind.SUBSCRIBE, "late1", {"CommandType": "RemoteSubscribe"}),
    "J48": (Kind.SUBSCRIBE, "late1", {"CommandType": "RemoteSubscribe"}),
    "J50": (Kind.REQUEST, "EchoValue", {"ErrorTo": "ClientBusErrors", "ReplyTo": "EchoValue:1:RespondTo:RPC"}),
    "J51": (Kind.REQUEST, "wiretest.Svc:RPC.add:java.lang.Integer:java.lang.Integer:", {}),
    "J52": (Kind.RESPONSE, "wiretest.Svc:RPC.add:java.lang.Integer:java.lang.Integer:", {}),
    "J53": (Kind.RESPONSE, "wiretest.Svc:RPC.fire:", {}),
    "J55": (Kind.CONTROL, "", {"CommandType": "Associate", "WebSocketToken": "93332e80"}),
    "J57": (Kind.CONTROL, "ClientBus", {"CommandType": "WebsocketChannelOpen", "WebSocketToken": "54638e6c"}),
    "J60": (Kind.CONTROL, "ClientBus", {"CommandType": "Disconnect", "Reason": "spoof"}),
}
BODIES: dict[str, Any] = {"J50": "v", "J51": [2, 3], "J52": 5, "J53": None}
OTHERS = {"J28", "J29", "J40", "J45", "J49"}


def messages(id: str, **options: Any) -> list[Message]:
    found = Jrep(**options).codec().decode(VECTORS[id].encode())
    assert all(isinstance(message, Message) for message in found), found
    return [message for message in found if isinstance(message, Message)]


def test_every_vector_is_looked_at() -> None:
    assert set(VECTORS) - {"about"} == {*VALUES, *MESSAGES, *OTHERS}


@pytest.mark.parametrize("values", ["errai", "plain"])
@pytest.mark.parametrize("id", VALUES)
def test_a_value_is_read_as_recorded(id: str, values: str) -> None:
    (message,) = messages(id, values=values)
    assert (message.kind, message.subject, message.has_body) == (Kind.PUBLISH, "S", True)
    assert message.body == VALUES[id] and type(message.body) is type(VALUES[id])


@pytest.mark.parametrize("id", MESSAGES)
def test_a_message_is_read_as_recorded(id: str) -> None:
    kind, subject, attributes = MESSAGES[id]
    (message,) = messages(id)
    assert (message.kind, message.subject) == (kind, subject)
    assert attributes.items() <= message.attributes.items()
    if id in BODIES:
        assert message.body == BODIES[id]


def test_an_empty_payload_has_no_message_and_a_list_of_subjects_is_a_subscription_to_each() -> None:
    assert messages("J45") == []
    assert [(m.kind, m.subject) for m in messages("J49")] == [(Kind.SUBSCRIBE, "s1"), (Kind.SUBSCRIBE, "s2")]


def test_an_object_that_points_to_itself_is_one_object() -> None:
    (message,) = messages("J28")
    node = message.body
    assert isinstance(node, JavaObject) and node.type == "wiretest.Node"
    assert node["next"] is node["kids"][0] is node
    assert node["kids"][1]["name"] is None
    assert (node["m"], node["colour"]) == ({1: "one"}, JavaEnum("wiretest.Colour", "RED"))
    assert node["bytes"] == b"\x01\x02"
    assert [node[name] for name in ("name", "count", "big", "any", "d", "flag", "ch")] == ["root", 3, 9, 42, 1.5, True, "q"]


@pytest.mark.parametrize("id", ["J28", "J29", "J40", "J18"])
def test_what_nobody_registered_is_written_again_as_it_came(id: str) -> None:
    part = "Throwable" if id in ("J29", "J40") else "Value"
    sent = json.loads(VECTORS[id])[part]
    (message,) = messages(id)
    value = message.body if part == "Value" else message.attributes[part]
    assert json.loads(Jrep().codec().formats[0].encode(value)) == sent
    if part == "Throwable":
        assert isinstance(value, JavaObject)
        assert value["message"] == {"J29": "boom", "J40": "hi"}[id]


@pytest.mark.parametrize("id", ["J28", "J40", "J18"])
def test_a_strict_reader_refuses_what_nobody_registered(id: str) -> None:
    (found,) = Jrep(types="strict").codec().decode(b"[%b]" % VECTORS[id].encode())
    assert isinstance(found, RemoteProtocolError)
    assert "not known" in found.text


def test_a_strict_reader_knows_the_types_of_java_itself() -> None:
    for id in VALUES.keys() - {"J18"}:
        assert messages(id, types="strict")[0].body == VALUES[id], id


def test_registered_types_become_objects_of_ours_and_go_back_as_they_came() -> None:
    types = JavaTypes()

    @types.portable("wiretest.Node", names={"letter": "ch"})
    @attrs.define(eq=False)
    class Node:
        name: str | None
        count: int
        big: Any
        next: Any
        kids: Any
        m: Any
        any: Any
        colour: Any
        bytes: Any
        d: float
        flag: bool
        letter: str

    codec = Jrep(java=types).codec()
    (message,) = codec.decode(VECTORS["J28"].encode())
    assert isinstance(message, Message)
    node = message.body
    assert isinstance(node, Node) and isinstance(node.kids[1], Node)
    assert node.next is node
    assert (node.name, node.count, node.letter, node.d) == ("root", 3, "q", 1.5)
    written = json.loads(codec.formats[0].encode(node))
    sent = json.loads(VECTORS["J28"])["Value"]
    assert set(written) == set(sent)
    for name in ("name", "count", "next", "any", "colour", "d", "flag", "ch"):
        assert written[name] == sent[name], name
    assert written["bytes"]["^Value"] == sent["bytes"]["^Value"]


def bare_structures(node: Any, top: bool = True) -> list[Any]:
    """Arrays and objects that stand where a real server wants a marker: in a part, or as an element."""
    if isinstance(node, list):
        return [node] if top else [found for item in node for found in bare_structures(item)]
    if not isinstance(node, dict):
        return []
    if "^EncodedType" not in node:
        return [node]
    content = node.get("^Value")
    if isinstance(content, list):
        return [found for item in content for found in bare_structures(item)]
    if isinstance(content, dict) and "Map" in node["^EncodedType"]:
        return [found for item in content.values() for found in bare_structures(item)]
    return []


BODY = {
    "text": "q\x0b\x1f\x7f\u2028",
    "numbers": [1, 2**40, 2**80, 1.5, 1e21, float("inf"), decimal.Decimal("1.10")],
    "nested": {"a": [[], {}, {1, 2}], None: None, 5: b"\x00\xff"},
    "when": datetime.datetime(2023, 11, 14, tzinfo=UTC),
}


@pytest.mark.parametrize("kind", [Kind.PUBLISH, Kind.REQUEST, Kind.NOTIFY, Kind.OPEN, Kind.ITEM])
def test_what_we_write_obeys_what_a_real_server_decodes(kind: Kind) -> None:
    message = Message(kind, "a.b", "id-1", body=BODY, headers={"x-a": "\x1d"}, ttl=1.5)
    payload = Jrep().codec().encode([message])
    assert re.findall(rb"\\u[0-9A-F]*[a-f]", payload) == []  # upper-case escapes only
    (parts,) = json.loads(payload)
    for name, value in parts.items():
        assert bare_structures(value) == [], name
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            assert name == "PolybusTtl" or name.startswith("PolybusN") or name == "PolybusHops"
    ids = [int(id) for id in re.findall(rb'"\^ObjectID":"(\d+)"', payload)]
    assert ids == list(range(1, len(ids) + 1))
    assert b"NaN" not in payload


def test_integers_keep_their_kind() -> None:
    def type_of(value: Any) -> str:
        return str(json.loads(Jrep().codec().formats[0].encode(value))["^EncodedType"])

    assert type_of(2**31 - 1) == type_of(-(2**31)) == "java.lang.Integer"
    assert type_of(2**31) == type_of(2**63 - 1) == type_of(-(2**63)) == "java.lang.Long"
    assert type_of(2**63) == type_of(-(2**63) - 1) == "java.math.BigInteger"


def test_an_answer_to_a_call_is_in_method_reply() -> None:
    codec = Jrep().codec()
    (call,) = messages("J51")
    (answer,) = json.loads(codec.encode([Message(Kind.RESPONSE, call.subject, call.id, body=5)]))
    assert answer.pop("ToSubject") == "wiretest.Svc:RPC.add:java.lang.Integer:java.lang.Integer::2:RespondTo:RPC"
    assert answer == {"MethodReply": {"^EncodedType": "java.lang.Integer", "^ObjectID": "-1", "^NumVal": 5}}
    void = Message(Kind.RESPONSE, call.subject, call.id)
    assert list(json.loads(codec.encode([void]))[0]) == ["ToSubject"]


def test_a_call_is_written_as_errai_writes_it() -> None:
    codec = Jrep().codec()
    call = Message(Kind.REQUEST, "wiretest.Svc:RPC.add:java.lang.Integer:java.lang.Integer:", "2", body=[2, 3])
    (written,) = json.loads(codec.encode([call]))
    (recorded,) = json.loads(VECTORS["J51"])
    assert written == recorded
