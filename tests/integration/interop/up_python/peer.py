"""Runs in a virtual environment with up-python: makes and reads events on request, one line of JSON each."""

import json
import sys

from google.protobuf import any_pb2, wrappers_pb2
from uprotocol.cloudevent.datamodel.ucloudeventattributes import UCloudEventAttributesBuilder
from uprotocol.cloudevent.factory.cloudeventfactory import CloudEventFactory
from uprotocol.cloudevent.factory.ucloudevent import UCloudEvent
from uprotocol.cloudevent.serialize.cloudeventserializers import CloudEventSerializers
from uprotocol.cloudevent.validate.cloudeventvalidator import CloudEventValidator
from uprotocol.proto.uattributes_pb2 import UPriority
from uprotocol.proto.ustatus_pb2 import UCode, UStatus

ASKER, METHOD = "up://hu.veh7/hmi.app/1/rpc.response", "up://cgw.veh7/climate.seat/1/rpc.SetHeat"
TOPIC, LISTENER = "up://cgw.veh7/climate.seat/1/heater.rear_left#Heater", "up://hu.veh7/hmi.app/1"


def serializer(format):
    return CloudEventSerializers[format.upper()].serializer()


def make(kind, format, reqid=None, text="hi"):
    payload = any_pb2.Any()
    payload.Pack(wrappers_pb2.StringValue(value=text))
    attributes = UCloudEventAttributesBuilder().with_priority(UPriority.UPRIORITY_CS4).with_ttl(5000).build()
    if kind == "request":
        event = CloudEventFactory.request(ASKER, METHOD, CloudEventFactory.generate_cloud_event_id(), payload, attributes)
    elif kind == "response":
        event = CloudEventFactory.response(ASKER, METHOD, reqid, payload, attributes)
    elif kind == "failed":
        event = CloudEventFactory.failed_response(ASKER, METHOD, reqid, 14, attributes)
    elif kind == "publish":
        event = CloudEventFactory.publish(TOPIC, payload, attributes)
    else:
        event = CloudEventFactory.notification(TOPIC, LISTENER, payload, attributes)
    return {"hex": serializer(format).serialize(event).hex(), "id": event["id"]}


def read(format, hex):
    event = serializer(format).deserialize(bytes.fromhex(hex))
    attributes = {name: value for name, value in event.get_attributes().items() if name != "time"}
    result = CloudEventValidator.get_validator(event).validate(event)
    return {
        "attributes": attributes,
        "data": event.data.hex() if event.data else None,
        "valid": result.is_success(),
        "why": result.get_message(),
        "expired": UCloudEvent.is_expired(event),
        "failed": UCloudEvent.has_communication_status_problem(event),
        "payload": UCloudEvent.get_payload(event).SerializeToString().hex(),
    }


def reply(format, hex, answers="capitals"):
    """What a service made with up-python does: check a request, and answer it with its text in capitals; or "nothing", a
    "status" that says no, or a "failure" of the delivery."""
    asked = serializer(format).deserialize(bytes.fromhex(hex))
    result = CloudEventValidator.get_validator(asked).validate(asked)
    if not result.is_success():
        raise ValueError(result.get_message())
    value, payload = wrappers_pb2.StringValue(), any_pb2.Any()
    if answers == "capitals":
        UCloudEvent.get_payload(asked).Unpack(value)
        payload.Pack(wrappers_pb2.StringValue(value=value.value.upper()))
    elif answers == "status":
        payload.Pack(UStatus(code=UCode.PERMISSION_DENIED, message="no key"))
    attributes = UCloudEventAttributesBuilder().with_priority(UPriority.UPRIORITY_CS4).with_ttl(5000).build()
    asker, method = UCloudEvent.get_source(asked), UCloudEvent.get_sink(asked)
    if answers == "failure":
        event = CloudEventFactory.failed_response(asker, method, asked["id"], 14, attributes)
    else:
        event = CloudEventFactory.response(asker, method, asked["id"], payload, attributes)
    return {"hex": serializer(format).serialize(event).hex(), "token": UCloudEvent.get_token(asked)}


for line in sys.stdin:
    told = json.loads(line)
    try:
        answer = {"make": make, "read": read, "reply": reply}[told.pop("do")](**told)
    except Exception as error:
        answer = {"error": f"{type(error).__name__}: {error}"}
    print(json.dumps(answer), flush=True)
