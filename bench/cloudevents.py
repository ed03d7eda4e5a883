"""What a uProtocol event costs beside the cloudevents package: ``python -m bench.cloudevents``.

One JSON request of 535 bytes with ten attributes. Ours is read and checked by all rules of the document; theirs is read only.
Processor time of this process, the best of several turns.
"""

from __future__ import annotations

import base64
import json
import time
import timeit
from collections.abc import Callable

from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent

from polybus import Message
from polybus.protocols import UProtocol
from polybus.protocols._protobuf.any_body import pack

__all__ = ["main"]

SIZE, TURNS, ROUNDS = 535, 5000, 9
METHOD = "up://VCU.VIN.veh.up.gm.com/body.access/1/rpc.UpdateDoor"


def request() -> bytes:
    """The event."""
    event = {
        "specversion": "1.0",
        "id": "018bcfe5-687b-8001-8000-000000000007",
        "source": "up://VCU.VIN.veh.up.gm.com/MyAppp/1/rpc.response",
        "sink": METHOD,
        "type": "req.v1",
        "priority": "CS4",
        "ttl": 5000,
        "token": "t",
        "plevel": 2,
        "datacontenttype": "application/protobuf",
        "data_base64": base64.b64encode(pack("org.example.UpdateDoorRequest", b"x" * 43)).decode(),
    }
    event["token"] = "t" * (SIZE - len(json.dumps(event)) + 1)
    return json.dumps(event).encode()


def cost(function: Callable[[], object]) -> float:
    """Microseconds."""
    return min(timeit.repeat(function, timer=time.process_time, number=TURNS, repeat=ROUNDS)) / TURNS * 1e6


def main() -> None:
    """Print the table."""
    frame, theirs = request(), JSONFormat()
    codec = UProtocol().codec()
    (message,) = codec.decode(frame)
    (looked_at,) = codec.decode(frame)
    event = theirs.read(CloudEvent, frame)
    attributes, data = event.get_attributes(), event.get_data()
    assert isinstance(message, Message)
    assert isinstance(looked_at, Message)
    given, raw = looked_at.attributes, message.raw
    assert len(frame) == SIZE and json.loads(codec.encode([message])) == json.loads(frame)
    read, written = cost(lambda: theirs.read(CloudEvent, frame)), cost(lambda: theirs.write(event))
    made = cost(lambda: theirs.write(CloudEvent(dict(attributes), data)))
    decode, encode = cost(lambda: codec.decode(frame)), cost(lambda: codec.encode([message]))
    put_together = Message(message.kind, METHOD, message.id, raw, message.format, attributes=dict(given))
    again = cost(lambda: codec.encode([put_together]))
    adapter = UProtocol(entity=given["source"].rpartition("/")[0], token=given["token"], permission_level=2)
    session = adapter.session("client")
    question = Message(message.kind, METHOD, None, raw, message.format, None, 5.0)

    def send() -> None:
        session.forget(session.send(question, 0.0), 0.0)  # as when its answer is there
        session.frames_to_send()

    session.send(question, 0.0)
    new = json.loads(session.frames_to_send()[0])
    assert {**new, "id": given["id"]} == json.loads(frame)
    sent = cost(send)
    print(f"{len(frame)} bytes, microseconds of processor time")
    print(f"read:  {read:6.2f} cloudevents   {decode:6.2f} polybus, with all rules   {read / decode:5.1f} x")
    print(f"write: {written:6.2f} cloudevents   {encode:6.2f} polybus, what was read      {written / encode:5.1f} x")
    print(f"       {written:6.2f} cloudevents   {again:6.2f} polybus, from a dict of attributes   {written / again:5.1f} x")
    print(f"make:  {made:6.2f} cloudevents   {sent:6.2f} polybus, a new request      {made / sent:5.1f} x")


if __name__ == "__main__":
    main()
