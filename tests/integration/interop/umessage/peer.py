"""Runs in a virtual environment with up-python 0.2: makes and reads messages on request, one line of JSON each; or, with a
port, is an entity with that library's own classes for RPC, publications and notifications, over TCP."""

import asyncio
import json
import random
import string
import sys

from uprotocol.communication.calloptions import CallOptions
from uprotocol.communication.inmemoryrpcclient import InMemoryRpcClient
from uprotocol.communication.inmemoryrpcserver import InMemoryRpcServer
from uprotocol.communication.requesthandler import RequestHandler
from uprotocol.communication.simplenotifier import SimpleNotifier
from uprotocol.communication.simplepublisher import SimplePublisher
from uprotocol.communication.upayload import UPayload
from uprotocol.communication.ustatuserror import UStatusError
from uprotocol.transport.builder.umessagebuilder import UMessageBuilder
from uprotocol.transport.ulistener import UListener
from uprotocol.transport.utransport import UTransport
from uprotocol.transport.validator.uattributesvalidator import UAttributesValidator
from uprotocol.uri.serializer.uriserializer import UriSerializer
from uprotocol.uuid.factory.uuidfactory import Factories
from uprotocol.uuid.serializer.uuidserializer import UuidSerializer
from uprotocol.v1.uattributes_pb2 import UMessageType, UPayloadFormat
from uprotocol.v1.ucode_pb2 import UCode
from uprotocol.v1.umessage_pb2 import UMessage
from uprotocol.v1.uri_pb2 import UUri
from uprotocol.v1.ustatus_pb2 import UStatus

ME = UUri(authority_name="theirs", ue_id=0xCD, ue_version_major=4)
FORMATS = [UPayloadFormat.UPAYLOAD_FORMAT_RAW, UPayloadFormat.UPAYLOAD_FORMAT_SOMEIP, UPayloadFormat.UPAYLOAD_FORMAT_PROTOBUF]


def told(attributes):
    """The attributes as plain values; what is not there is left out."""
    found = {"type": attributes.type, "priority": attributes.priority, "payload_format": attributes.payload_format}
    for name in ("id", "reqid"):
        if attributes.HasField(name):
            found[name] = UuidSerializer.serialize(getattr(attributes, name))
    for name in ("source", "sink"):
        if attributes.HasField(name):
            uri = getattr(attributes, name)
            found[name] = [uri.authority_name, uri.ue_id, uri.ue_version_major, uri.resource_id]
    for name in ("ttl", "permission_level", "commstatus", "token", "traceparent"):
        if attributes.HasField(name):
            found[name] = getattr(attributes, name)
    return found


def uri(rng, first, last):
    name = "".join(rng.choices(string.ascii_lowercase + string.digits + "-._~", k=rng.randint(1, 40)))
    entity = rng.randint(0, 0xFFFE) << 16 | rng.randint(1, 0xFFFE)
    return UUri(authority_name=name, ue_id=entity, ue_version_major=rng.randint(1, 0xFE), resource_id=rng.randint(first, last))


def make(kind, count, seed):
    rng, frames = random.Random(seed), []
    for _ in range(count):
        topic, method, entity = uri(rng, 0x8000, 0xFFFE), uri(rng, 1, 0x7FFF), uri(rng, 0, 0)
        if kind == "publish":
            builder = UMessageBuilder.publish(topic)
        elif kind == "notification":
            builder = UMessageBuilder.notification(topic, entity)
        elif kind == "request":
            builder = UMessageBuilder.request(entity, method, rng.randint(1, 2**31 - 1))
        else:
            builder = UMessageBuilder.response(method, entity, Factories.UPROTOCOL.create())
        if rng.random() < 0.5:
            builder.with_priority(rng.randint(1, 7))
        if kind != "request" and rng.random() < 0.5:
            builder.with_ttl(rng.choice([0, rng.randint(1, 2**31 - 1)]))
        if kind == "request" and rng.random() < 0.5:
            builder.with_token("".join(rng.choices(string.printable, k=rng.randint(0, 50))))
            builder.with_permission_level(rng.randint(1, 99))
        if kind == "response" and rng.random() < 0.5:
            builder.with_commstatus(rng.randint(0, 16))
        if rng.random() < 0.3:
            builder.with_traceparent("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
        payload = None
        if rng.random() < 0.8:
            payload = UPayload(data=rng.randbytes(rng.randint(0, 300)), format=rng.choice(FORMATS))
        message = builder.build_from_upayload(payload)
        frames.append([message.SerializeToString().hex(), told(message.attributes), payload.data.hex() if payload else None])
    return {"made": frames}


def read(frames):
    """What the library's validator and its classes say of messages."""
    found = []
    for frame in frames:
        message = UMessage.FromString(bytes.fromhex(frame))
        result = UAttributesValidator.get_validator(message.attributes).validate(message.attributes)
        payload = message.payload.hex() if message.HasField("payload") else None
        found.append([result.is_success(), result.get_message(), told(message.attributes), payload])
    return {"read": found}


class Wire(UTransport):
    """A connection to a bus: frames behind their length, and everything that comes goes to all listeners of its type."""

    def __init__(self, reader, writer):
        self.reader, self.writer, self.listeners = reader, writer, []

    def get_source(self):
        return ME

    async def send(self, message):
        frame = message.SerializeToString()
        self.writer.write(len(frame).to_bytes(4, "big") + frame)
        return UStatus(code=UCode.OK)

    async def register_listener(self, source_filter, listener, sink_filter=None):
        if listener not in self.listeners:
            self.listeners.append(listener)
        return UStatus(code=UCode.OK)

    async def unregister_listener(self, source_filter, listener, sink_filter=None):
        self.listeners.remove(listener)
        return UStatus(code=UCode.OK)

    async def close(self):
        self.writer.close()

    async def run(self):
        while True:
            size = int.from_bytes(await self.reader.readexactly(4), "big")
            frame = await self.reader.readexactly(size)
            if frame:
                for listener in self.listeners:
                    await listener.on_receive(UMessage.FromString(frame))


class Capitals(RequestHandler):
    def handle_request(self, message):
        text = json.loads(message.payload)
        if text == "refuse":
            raise UStatusError.from_code_message(UCode.PERMISSION_DENIED, "no")
        return UPayload(data=json.dumps(text.upper()).encode(), format=UPayloadFormat.UPAYLOAD_FORMAT_JSON)


class Told(UListener):
    """Publishes again what it is told, as the topic of this entity."""

    def __init__(self, publisher):
        self.publisher = publisher

    async def on_receive(self, message):
        if message.attributes.type in (UMessageType.UMESSAGE_TYPE_NOTIFICATION, UMessageType.UMESSAGE_TYPE_PUBLISH):
            kind = "told " if message.attributes.type == UMessageType.UMESSAGE_TYPE_NOTIFICATION else "heard "
            payload = UPayload(data=kind.encode() + message.payload, format=UPayloadFormat.UPAYLOAD_FORMAT_TEXT)
            await self.publisher.publish(topic(0x8001), CallOptions(timeout=5000), payload)


def topic(resource):
    return UUri(authority_name="theirs", ue_id=0xCD, ue_version_major=4, resource_id=resource)


async def entity(port, count):
    """Serves, listens, and asks the bus so many times; then says what came of it."""
    wire = Wire(*await asyncio.open_connection("127.0.0.1", port))
    running = asyncio.ensure_future(wire.run())
    publisher, notifier = SimplePublisher(wire), SimpleNotifier(wire)
    await InMemoryRpcServer(wire).register_request_handler(topic(0x7), Capitals())
    await wire.register_listener(None, Told(publisher))
    client, method = InMemoryRpcClient(wire), UriSerializer.deserialize("//ours/10AB/3/B")
    good = 0
    for number in range(count):
        payload = UPayload(data=b'{"n":%d}' % number, format=UPayloadFormat.UPAYLOAD_FORMAT_JSON)
        answer = await client.invoke_method(method, payload, CallOptions(timeout=30000))
        good += json.loads(answer.data) == number * 2
    try:
        await client.invoke_method(UriSerializer.deserialize("//ours/10AB/3/7FFF"), payload, CallOptions(timeout=30000))
        refused = 0
    except UStatusError as error:
        refused = error.get_code()
    said = UPayload(data=json.dumps([good, refused]).encode(), format=UPayloadFormat.UPAYLOAD_FORMAT_JSON)
    for _ in range(count):
        await notifier.notify(topic(0x8002), UriSerializer.deserialize("//ours/10AB/3/0"), payload=said)
    print("ready", flush=True)
    try:
        await running
    except asyncio.IncompleteReadError:
        pass


def main():
    if len(sys.argv) > 1:
        asyncio.run(entity(int(sys.argv[1]), int(sys.argv[2])))
        return
    for line in sys.stdin:
        wanted = json.loads(line)
        try:
            answer = {"make": make, "read": read}[wanted.pop("do")](**wanted)
        except Exception as error:
            answer = {"error": repr(error)}
        print(json.dumps(answer), flush=True)


main()
