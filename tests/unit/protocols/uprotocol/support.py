"""Shared by the tests of uProtocol."""

import base64
import json
from typing import Any

from polybus import Message, RemoteProtocolError
from polybus.protocols import UProtocol
from polybus.protocols.uprotocol.proto_event import cloud_event_classes

HI = "Ci90eXBlLmdvb2dsZWFwaXMuY29tL2dvb2dsZS5wcm90b2J1Zi5TdHJpbmdWYWx1ZRIECgJoaQ=="
"""``StringValue("hi")`` in an ``Any``."""
REQUEST: dict[str, Any] = {
    "specversion": "1.0",
    "id": "018bcfe5-687b-8001-8000-000000000007",
    "source": "up://hu.veh7/hmi.app/1/rpc.response",
    "sink": "up://cgw.veh7/climate.seat/1/rpc.SetHeat",
    "type": "req.v1",
    "priority": "CS4",
    "ttl": 5000,
    "token": "opaque-token",
    "plevel": 2,
    "data_base64": HI,
}
RESPONSE: dict[str, Any] = {
    "specversion": "1.0",
    "id": "018bcfe5-687b-8002-8000-000000000007",
    "source": "up://cgw.veh7/climate.seat/1/rpc.SetHeat",
    "sink": "up://hu.veh7/hmi.app/1/rpc.response",
    "type": "res.v1",
    "priority": "CS4",
    "ttl": 5000,
    "reqid": "018bcfe5-687b-8001-8000-000000000007",
    "data_base64": HI,
}
PUBLISH: dict[str, Any] = {
    "specversion": "1.0",
    "id": "018bcfe5-687b-8000-8000-000000000007",
    "source": "up://cgw.veh7/climate.seat/1/heater.rear_left#Heater",
    "type": "pub.v1",
    "priority": "CS1",
    "ttl": 10000,
    "data_base64": HI,
}

NOTIFICATION: dict[str, Any] = {**PUBLISH, "type": "notif.v1", "sink": "up://hu.veh7/hmi.app/1"}


class Clock:
    """Nanoseconds, from milliseconds that the test sets."""

    def __init__(self, ms: int = 1_700_000_000_123) -> None:
        self.ms = ms

    def __call__(self) -> int:
        return self.ms * 1_000_000


def without(event: dict[str, Any], name: str) -> dict[str, Any]:
    """An event that lacks an attribute."""
    return {key: value for key, value in event.items() if key != name}


GOOD: dict[str, dict[str, Any]] = {
    "a notification as every SDK of the time sent it": {**NOTIFICATION, "type": "pub.v1"},
    "a notification as the document types it": NOTIFICATION,
    "a notification, core-api 1.5.7": {**NOTIFICATION, "type": "not.v1"},
    "a notification, the current specification": {**NOTIFICATION, "type": "up-not.v1", "pformat": 1},
    "a response": RESPONSE,
    "a failed delivery": {**RESPONSE, "commstatus": 4},
    "the priority as up-python spells it": {**REQUEST, "priority": "UPRIORITY_CS4"},
    "binary with a dataschema": {**PUBLISH, "datacontenttype": "application/octet-stream", "dataschema": "/acme/frame/v1"},
    "the media type of the SDKs": {**PUBLISH, "datacontenttype": "application/x-protobuf"},
    "a ttl of 2^31": {**PUBLISH, "ttl": 2**31},
    "a ttl in text, as headers have it": {**PUBLISH, "ttl": "10000"},
}
"""Events that every reader takes."""
BAD: dict[str, dict[str, Any]] = {
    "a notification without a sink": without(NOTIFICATION, "sink"),
    "a request below CS4": {**REQUEST, "priority": "CS1"},
    "a request without a priority, which is CS0": without(REQUEST, "priority"),
    "a request from no place for answers": {**REQUEST, "source": "up://hu.veh7/hmi.app/1"},
    "a response without reqid": without(RESPONSE, "reqid"),
    "commstatus on a request": {**REQUEST, "commstatus": 4},
    "binary without a dataschema": {**PUBLISH, "datacontenttype": "application/octet-stream"},
}
"""Events that no reader takes."""


def to_protobuf(event: dict[str, Any]) -> Any:
    """The event in the generated class, built with nothing of ours."""
    made = cloud_event_classes()[0](
        id=event["id"], source=event["source"], spec_version=event["specversion"], type=event["type"]
    )
    for name, value in event.items():
        if name in ("id", "source", "type", "specversion", "data", "data_base64"):
            continue
        kind = "ce_integer" if isinstance(value, int) else "ce_uri_ref" if name in ("sink", "dataschema") else "ce_string"
        setattr(made.attributes[name], kind, value)
    if "data_base64" in event:
        made.proto_data.ParseFromString(base64.b64decode(event["data_base64"]))
    return made


def in_protobuf(event: dict[str, Any], data: bytes | None = None) -> bytes:
    made = to_protobuf(without(event, "data_base64"))
    if data is not None:
        made.binary_data = data
    return bytes(made.SerializeToString())


def decode(event: Any, **options: Any) -> Message:
    """The message of a JSON event."""
    frame = event if isinstance(event, bytes) else json.dumps(event).encode()
    (message,) = UProtocol(**options).codec().decode(frame)
    if isinstance(message, RemoteProtocolError):
        raise message
    return message
