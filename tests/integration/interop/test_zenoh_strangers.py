"""Real Zenoh with strangers on it: programs with one entity, samples that are too large, recordings."""

from pathlib import Path

import anyio
import anyio.to_thread
import psutil
import pytest
from msgspec.structs import replace

from polybus import Bus, Limits, connect
from polybus.capture import Capture, decode
from polybus.protocols.up.uuris import parse_uuri
from tests.support import eventually

from .test_zenoh import CAR, DIALECTS, HERE, PHONE, SEAT, bare, car_bus, message_of, up
from .zenoh_peer import zenoh_peer


async def test_of_two_programs_with_one_entity_both_are_asked_and_the_second_answer_is_late() -> None:
    asked, released, twin = list[str](), anyio.Event(), Bus()

    def answering(bus: Bus, name: str) -> None:
        @bus.handle("UpdateDoor")
        async def update(position: int) -> str:
            asked.append(name)
            if name == "twin":
                await released.wait()
            return name

    car = Bus()
    answering(car, "car")
    answering(twin, "twin")
    async with (
        car.serve(HERE, protocol=up(CAR)) as listener,
        connect(listener.url, bus=twin, protocol=up(CAR)),
        connect(listener.url, protocol=up(PHONE)) as phone,
    ):
        await twin.peers[0].request("UpdateDoor", 1, timeout=10)  # it is on the fabric: others hear it
        asked.clear()
        assert await phone.request("UpdateDoor", 1, timeout=10) == "car"
        await eventually(lambda: sorted(asked) == ["car", "twin"])
        assert phone.stats().late == 0
        released.set()
        await eventually(lambda: phone.stats().late == 1)
        assert phone.stats().malformed == 0


async def test_more_than_a_message_may_have_is_not_even_copied_and_the_link_goes_on() -> None:
    phone = Bus(limits=Limits(message=10_000))
    good = up(CAR).fabric.sample(message_of())
    async with phone.serve(HERE, protocol=up(PHONE)) as listener, phone.subscribe("door.opened") as heard:
        with zenoh_peer(listener.url) as peer:
            peer.put(replace(good, attachment=bytes(5_000_000)))
            peer.put(replace(good, payload=bytes(5_000_000)))
            peer.put(good)
            assert (await anext(heard)).body == 1
            assert (phone.stats().malformed, phone.stats().links) == (2, 1)


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_bus_on_a_fabric_is_recorded_in_both_directions_without_its_tokens(dialect: str, tmp_path: Path) -> None:
    car = car_bus()
    asking = up(PHONE, dialect=dialect, token="s3cret-token")
    async with (
        car.serve(HERE, protocol=up(CAR, dialect=dialect)) as listener,
        car.record(tmp_path / "car") as recording,
        connect(bare(listener.url), protocol=asking, record=tmp_path / "phone") as phone,
        phone.subscribe("door.opened") as doors,
    ):
        asked = message_of(type=2, source=parse_uuri("//a/1/1/0"), sink=parse_uuri(f"{CAR}/B"), priority=5, ttl=1000)
        with zenoh_peer(listener.url) as stranger:
            stranger.put(replace(up(SEAT, dialect=dialect).fabric.sample(asked), attachment=b"\x07no message"))
            await eventually(lambda: car.stats().malformed == 1)
        assert await phone.request("UpdateDoor", 3, timeout=10) == 6
        assert (await anext(doors)).body == 3
        assert recording.stats().dropped == 0
    for name in ("car", "phone"):
        capture = Capture(tmp_path / name)
        assert b"s3cret" not in b"".join(path.read_bytes() for path in (tmp_path / name).rglob("*") if path.is_file())
        found = [decode(batch.rows) for batch in capture.batches()]
        assert sum(one.quarantine.num_rows for one in found) == 0
        events = [event for one in found for event in one.events.to_pylist()]
        # What is no message was none of the wire's frames.
        messages = [event for event in events if event["kind"] in ("publish", "request", "response", "notify")]
        assert sorted((event["kind"], event["subject"], event["source"]) for event in messages) == [
            ("publish", f"{CAR}/80CD", f"{CAR}/80CD"),
            ("request", f"{CAR}/B", f"{PHONE}/0"),
            ("response", f"{CAR}/B", f"{CAR}/B"),
        ]


async def test_no_socket_of_a_fabric_on_loopback_is_anywhere_else() -> None:
    before = {(one.laddr, one.raddr) for one in psutil.Process().net_connections("inet")}
    async with (
        car_bus().serve(HERE, protocol=up(CAR)) as listener,
        Bus().serve(f"{HERE}?connect=tcp/{listener.url.partition('//')[2]}", protocol=up(SEAT)),
        connect(listener.url, protocol=up(PHONE)) as phone,
    ):
        assert await phone.request("UpdateDoor", 1, timeout=10) == 2
        opened = [one for one in psutil.Process().net_connections("inet") if (one.laddr, one.raddr) not in before]
        assert len(opened) >= 4
        for one in opened:
            ends = [tuple(end) for end in (one.laddr, one.raddr)]  # the second is empty where it listens
            assert {end[0] for end in ends if end} == {"127.0.0.1"}, one
            assert one.type.name == "SOCK_STREAM", one  # nor does anybody listen to multicast
