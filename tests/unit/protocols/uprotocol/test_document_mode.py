"""What the document shows is read by default, and says so; strictly it is refused; and what is written is strict."""

import base64
import json
from typing import Any

import anyio
import pytest
from google.protobuf.wrappers_pb2 import StringValue

from polybus import Bus, Code, Message, RemoteProtocolError
from polybus.message import Kind
from polybus.protocols import UProtocol
from polybus.protocols._protobuf import pack
from polybus.protocols.uprotocol.http import Form, frames_of, from_http, http_of
from polybus.protocols.uprotocol.rules import RULES, TOLERATED
from tests.doubles.driven import Driven

from .support import HI, PUBLISH, REQUEST, decode, in_protobuf

# Section 4 of the document, byte for byte but for the comments that stand there for data.
DOOR, STATUS = StringValue(value="hi").SerializeToString(), b"\x08\x05\x12\x04gone"
PUBLICATION = b"""{
    "specversion": "1.0",
    "id" : "cf8b1bcd-30bd-43be-a8d3-ad1cde652e10",
    "source": "up://VCU.VIN.veh.up.gm.com/body.access/1/door.front_left#Door",
    "type": "pub.v1",
    "datacontenttype" : "application/protobuf",
    "dataschema": "/org.eclipse.uprotocol.vehicle.body.access.v1.Door",
    "priority" : "CS1",
    "ttl" : 10000,
    "data": %s
}"""
ANSWER = b"""{
    "specversion": "1.0",
    "id" : "5b9fe861-8c1c-4899-9b07-ad1cde652e10",
    "source": "up://VCU.VIN.veh.up.gm.com/body.access/1/rpc.UpdateDoor",
    "sink": "up://VCU.VIN.veh.up.gm.com/MyAppp/1/rpc.response",
    "type": "res.v1",
    "datacontenttype" : "application/protobuf",
    "dataschema": "/google.rpc.Status",
    "priority" : "CS4",
    "reqid" : "cf8b1bcd-30bd-43be-a8d3-ad1cde652e10",
    "ttl" : 50000,
    "data": %s
}"""
QUESTION = b"""{
    "specversion": "1.0",
    "id" : "cf8b1bcd-30bd-43be-a8d3-ad1cde652e10",
    "source": "up://VCU.VIN.veh.up.gm.com/MyAppp/1/rpc.response",
    "sink": "up://VCU.VIN.veh.up.gm.com/body.access/1/rpc.UpdateDoor",
    "type": "req.v1",
    "datacontenttype" : "application/protobuf",
    "dataschema": "/org.eclipse.uprotocol.vehicle.body.access.v1.UpdateDoorRequest",
    "priority" : "CS4",
    "ttl" : 50000,
    "data": %s
}"""
EXAMPLES = {
    "publish": (PUBLICATION, DOOR, Kind.PUBLISH, ["id.version"]),
    "notification, response": (ANSWER, STATUS, Kind.ERROR, ["id.version", "reqid.version"]),
    "request": (QUESTION, DOOR, Kind.REQUEST, ["id.version"]),
}


def quoted(data: bytes) -> bytes:
    return b'"' + base64.b64encode(data) + b'"'


def in_headers(event: bytes) -> dict[str, str]:
    given = json.loads(event)
    named = {name: str(value) for name, value in given.items() if name not in ("data", "datacontenttype")}
    return {"content-type": given.get("datacontenttype", ""), **{f"ce-{name}": value for name, value in named.items()}}


def all_forms(event: bytes, data: bytes) -> dict[str, Any]:
    """How to read an event in every form, with the mode of the reader."""
    whole, proto, headers = event % quoted(data), in_protobuf(json.loads(event % b"0"), data), in_headers(event % b"0")
    json_type, proto_type, batch_type = (f"application/cloudevents{it}" for it in ("+json", "+protobuf", "-batch+json"))

    def first(found: Any) -> Message:
        if isinstance(found[0], RemoteProtocolError):
            raise found[0]
        return found[0]  # type: ignore[no-any-return]

    def through(headers: dict[str, str], body: bytes, format: Any) -> Any:
        """As a server takes it, whose frames are of another format or the same."""

        def read(mode: Any) -> Message:
            adapter = UProtocol(mode=mode, format=format)
            return adapter.codec().read(frames_of(headers, body, adapter)[0])

        return read

    return {
        "json": lambda mode: decode(whole, mode=mode),
        "protobuf": lambda mode: decode(proto, mode=mode, format="protobuf"),
        "structured": lambda mode: first(from_http({"content-type": json_type}, whole, mode=mode)),
        "structured protobuf": lambda mode: first(from_http({"content-type": proto_type}, proto, mode=mode)),
        "binary": lambda mode: first(from_http(headers, data, mode=mode)),
        "batch": lambda mode: first(from_http({"content-type": batch_type}, b"[" + whole + b"]", mode=mode)),
        "binary, a server of json": through(headers, data, "json"),
        "binary, a server of protobuf": through(headers, data, "protobuf"),
        "structured, a server of json": through({"content-type": json_type}, whole, "json"),
        "structured protobuf, a server of json": through({"content-type": proto_type}, proto, "json"),
    }


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("name", EXAMPLES)
def test_the_examples_of_the_document_are_read_in_every_form_and_marked(name: str, packed: bool) -> None:
    event, data, kind, broken = EXAMPLES[name]
    type = "google.rpc.Status" if kind is Kind.ERROR else "google.protobuf.StringValue"
    whole = pack(type, data) if packed else data
    for form, read in all_forms(event, whole).items():
        for mode in ("document", "lenient"):
            message = read(mode)
            assert message.kind is kind, form
            assert set(broken) <= set(message.attributes[TOLERATED]), form
            assert ("data.member" in message.attributes[TOLERATED]) is (form in MISPLACED), form
            if kind is Kind.ERROR:
                assert (message.code, message.attributes["text"]) == (Code.NOT_FOUND, "gone"), form
            else:
                assert message.body == ("hi" if packed else data), form
        with pytest.raises(RemoteProtocolError, match=r"\((rule|document,) "):
            read("strict")


MISPLACED = {"json", "structured", "batch", "structured, a server of json"}


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"id": "5b9fe861-8c1c-4899-9b07-ad1cde652e10"}, "id.version"),
        ({"id": "6ba7b810-9dad-11d1-80b4-00c04fd430c8"}, "id.version"),
        ({"source": "/climate.seat/1/rpc.response"}, "source.authority"),
        ({"sink": "/climate.seat/1/rpc.SetHeat"}, "sink.authority"),
        ({"permission_level": 3, "plevel": None}, "plevel.name"),
    ],
)
def test_what_the_document_allows_is_read_and_named_in_all_forms(changes: dict[str, Any], rule: str) -> None:
    given = {name: value for name, value in {**REQUEST, **changes, "data": 0}.items() if value is not None}
    given.pop("data_base64")
    event = json.dumps({**given, "datacontenttype": "application/protobuf"}).encode().replace(b'"data": 0', b'"data": %s')
    for form, read in all_forms(event, base64.b64decode(HI)).items():
        if form == "binary" and "authority" in rule:
            continue  # alone, it belongs to no side whose own addresses could be known
        message = read("document")
        assert [one for one in message.attributes[TOLERATED] if not one.startswith("data")] == [rule], form
        assert message.attributes.get("plevel") == (3 if rule == "plevel.name" else 2)
        with pytest.raises(RemoteProtocolError, match=r"\((rule|document,) "):
            read("strict")


def test_what_keeps_the_rules_has_no_mark_and_nobody_else_can_set_it() -> None:
    assert TOLERATED not in decode(REQUEST).attributes
    assert TOLERATED not in decode({**REQUEST, "extra": 1}).attributes
    for value in (["id.version"], "id.version", None):
        with pytest.raises(RemoteProtocolError, match="polybus-lenient"):
            decode({**REQUEST, TOLERATED: value})
    with pytest.raises(RemoteProtocolError):
        from_http({**in_headers(json.dumps(PUBLISH).encode()), f"ce-{TOLERATED}": "x", "content-type": "text/plain"}, b"")
    tolerated = {"id.version", "reqid.version", "source.authority", "sink.authority", "plevel.name"}
    assert {rule.name for rule in RULES if rule.tolerated == 1} == tolerated


def test_what_was_read_leniently_is_written_without_the_mark() -> None:
    message = decode({**PUBLISH, "source": "/climate.seat/1/heater#Heater"})
    frame = UProtocol(entity="/climate.seat/1").codec().encode([message])
    assert b"lenient" not in frame
    frame = json.dumps({**REQUEST, "permission_level": 3, "plevel": None}).encode()
    headers = http_of([frame], UProtocol(), Form("binary", "json")).headers
    assert not any("lenient" in name for name in headers)


def test_an_id_without_time_never_expires_and_one_with_a_time_does() -> None:
    late = UProtocol(clock=lambda: (1_700_000_000_000 + 10**9) * 1_000_000)
    session = Driven(late.session("server"))
    for id in ("5b9fe861-8c1c-4899-9b07-ad1cde652e10", PUBLISH["id"]):
        session.receive(json.dumps({**PUBLISH, "id": id}).encode(), 0.0)
    kept, expired = session.events()
    assert isinstance(kept, Message) and not isinstance(expired, Message)
    assert (kept.expires, kept.ttl, kept.attributes["ttl"]) == (None, None, 10000)


async def test_a_bus_answers_the_examples_of_the_document() -> None:
    bus, told = Bus(), list[object]()

    @bus.handle("UpdateDoor")
    async def update(body: object, message: Message) -> str:
        told.append(message.attributes[TOLERATED])
        return "done"

    doors = UProtocol(entity="//VCU.VIN.veh.up.gm.com/body.access/1")
    local = QUESTION.replace(b"up://VCU.VIN.veh.up.gm.com", b"")
    with anyio.fail_after(60):
        async with bus.serve("uprotocol+tcp://127.0.0.1:0", protocol=doors) as listener:
            port = int(listener.url.partition("127.0.0.1:")[2].partition("?")[0].partition("/")[0])
            for event in (QUESTION, local):
                async with await anyio.connect_tcp("127.0.0.1", port) as raw:
                    frame = event % quoted(base64.b64decode(HI))
                    await raw.send(len(frame).to_bytes(4, "big") + frame)
                    answer = json.loads(await _frame(raw))
                    assert (answer["type"], answer["reqid"]) == ("res.v1", json.loads(frame)["id"])
                    assert decode({**answer, "source": json.loads(QUESTION % b"0")["sink"]}).body == "done"
    assert told == [["data.member", "id.version"], ["data.member", "id.version", "source.authority", "sink.authority"]]


async def _frame(raw: Any) -> bytes:
    data = b""
    while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], "big"):
        data += await raw.receive()
    return data[4:]


def test_an_unknown_mode_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="one of strict, document, lenient"):
        from_http({}, b"", mode="loose")
