"""What the tests of uProtocol share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from polybus import Message, RemoteProtocolError
from polybus.protocols import UProtocol

VECTORS: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[3] / "vectors" / "uprotocol_vectors.json").read_text(encoding="utf-8")
)["vectors"]
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


def decode(event: Any, **options: Any) -> Message:
    """The message of a JSON event."""
    frame = event if isinstance(event, bytes) else json.dumps(event).encode()
    (message,) = UProtocol(**options).codec().decode(frame)
    if isinstance(message, RemoteProtocolError):
        raise message
    return message
