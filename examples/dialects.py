"""A gateway between the three dialects of uProtocol's official libraries on Zenoh, which do not understand each other.

It receives every message on the fabric and writes it again in the other two forms, with the same source, sink and contents.
It remembers messages, so that two gateways do not pass one to and fro.
"""

import json
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import anyio
import anyio.to_thread
import zenoh

from polybus import Bus, Limits, RemoteProtocolError, connect
from polybus.plugins import Sample
from polybus.protocols import Up

FORMS = {
    "spec": Up(dialect="spec").fabric,  # up-rust from 0.7 on
    "cpp-1.0": Up(dialect="cpp-1.0").fabric,  # up-cpp
    "rust-0.6": Up(dialect="rust-0.6").fabric,  # up-rust before
}
LEVELS = (
    zenoh.Priority.BACKGROUND,
    zenoh.Priority.DATA_LOW,
    zenoh.Priority.DATA,
    zenoh.Priority.DATA_HIGH,
    zenoh.Priority.INTERACTIVE_LOW,
    zenoh.Priority.INTERACTIVE_HIGH,
    zenoh.Priority.REAL_TIME,
)


class DialectGateway:
    """A client of a router of Zenoh, such as ``tcp/127.0.0.1:7447``."""

    def __init__(self, router: str) -> None:
        config = zenoh.Config()
        settings = {"mode": "client", "connect/endpoints": [router], "scouting/multicast/enabled": False}
        for path, value in settings.items():
            config.insert_json5(path, json.dumps(value))
        self.passed_on = 0
        self._session: Any = zenoh.open(config)
        # If it is too slow, it drops the oldest messages.
        self._samples = self._session.declare_subscriber("up/**", zenoh.handlers.RingChannel(10_000))
        self._seen: OrderedDict[bytes, None] = OrderedDict()

    def ready(self) -> None:
        """Return when the router knows the subscriptions: it has answered a later query."""
        list(self._session.liveliness().get("none"))

    def run(self) -> None:
        """Pass messages on until closed. Blocks."""
        for sample in self._samples:
            attachment = None if sample.attachment is None else bytes(sample.attachment)
            level = LEVELS.index(sample.priority)
            self._pass_on(Sample(str(sample.key_expr), attachment, bytes(sample.payload), level))

    def _pass_on(self, sample: Sample) -> None:
        for name, form in FORMS.items():
            try:
                frame = form.frame(sample, Limits())
            except RemoteProtocolError:
                frame = None
            if frame is not None:  # else another dialect, or none
                if self._is_new(frame):
                    self._write(frame, [other for other in FORMS if other != name])
                return

    def _is_new(self, frame: bytes) -> bool:
        new = frame not in self._seen
        self._seen[frame] = None
        if len(self._seen) > 10_000:
            self._seen.popitem(last=False)
        return new

    def _write(self, frame: bytes, dialects: Sequence[str]) -> None:
        for name in dialects:
            written = FORMS[name].sample(frame)
            self._session.put(
                written.key,
                written.payload,
                attachment=written.attachment,
                priority=LEVELS[written.level],
                congestion_control=zenoh.CongestionControl.BLOCK,
                allowed_destination=zenoh.Locality.REMOTE,  # not to itself
            )
        self.passed_on += 1

    def close(self) -> None:
        """End `run`."""
        self._session.close()


# -- a vehicle of C++, a phone of today, a sensor of yesterday --------------------------------------------------------------

VEHICLE, PHONE, SENSOR = "//vehicle7/10AB/3", "//phone/CD/4", "//sensor/1/1"
NAMES = {"UpdateDoor": f"{VEHICLE}/B", "temperature": f"{SENSOR}/8001", "door.opened": f"{VEHICLE}/80CD"}

vehicle = Bus()


@vehicle.handle("UpdateDoor")
async def update(body: dict[str, int]) -> str:
    await vehicle.publish("door.opened", body)
    return f"door {body['door']} is open"


async def main() -> None:
    fabric = "up+zenoh://127.0.0.1:0"
    async with vehicle.serve(fabric, protocol=Up(entity=VEHICLE, names=NAMES, dialect="cpp-1.0")) as router:
        url = router.url.partition("?")[0]
        gateway = await anyio.to_thread.run_sync(DialectGateway, f"tcp/{url.partition('//')[2]}")
        async with anyio.create_task_group() as group:
            await anyio.to_thread.run_sync(gateway.ready)
            group.start_soon(anyio.to_thread.run_sync, gateway.run)
            try:
                async with (
                    connect(url, protocol=Up(entity=PHONE, names=NAMES)) as phone,
                    connect(url, protocol=Up(entity=SENSOR, names=NAMES, dialect="rust-0.6")) as sensor,
                    phone.subscribe("temperature") as temperatures,
                    sensor.subscribe("door.*") as doors,
                ):
                    print("the phone asks the vehicle:", await phone.request("UpdateDoor", {"door": 2}, timeout=5))
                    opened = await anext(doors)
                    print("the sensor hears the vehicle:", opened.subject, opened.body)
                    await sensor.publish("temperature", 21.5)
                    message = await anext(temperatures)
                    print("the phone hears the sensor:", message.body, "from", message.attributes["source"])
            finally:
                with anyio.CancelScope(shield=True):
                    await anyio.to_thread.run_sync(gateway.close)
    print("passed on:", gateway.passed_on)


anyio.run(main)
