"""UMessages over real Zenoh: buses with each other, and with samples that Zenoh's own library writes and hears."""

import math
import random
import socket
import ssl
import time
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from msgspec.structs import replace

from polybus import (
    Backoff,
    Bus,
    ConnectFailed,
    DeadlineExceeded,
    Disconnected,
    Limits,
    LocalProtocolError,
    Unsupported,
    connect,
)
from polybus.plugins import Identity, Sample
from polybus.protocols import Up
from polybus.protocols.up.uuris import parse_uuri
from polybus.protocols.up.wire import Attributes, WireIds, read_uuid, write_attributes, write_message
from polybus.transports.zenoh import transport
from tests.refusal import refused
from tests.support import BOUND, eventually, free_port
from tests.unit.protocols.up.test_samples import OPEN, PUBLICATION, ROWS

from .nats_servers import certified
from .zenoh_peer import zenoh_peer, zenoh_router

CAR, PHONE, SEAT = "//device1/10AB/3", "//device2/CD/4", "//device3/1/1"
NAMES = {"door.opened": f"{CAR}/80CD", "UpdateDoor": f"{CAR}/B", "sit": f"{SEAT}/7", "told": 0x8002}
HERE = "up+zenoh://127.0.0.1:0"
DIALECTS = ["spec", "cpp-1.0", "rust-0.6"]
SOON = Backoff(initial=0.02, maximum=0.1)


def up(entity: str, **options: Any) -> Up:
    return Up(entity=entity, names=NAMES, **options)


def bare(url: str) -> str:
    """A URL without the options, which the protocol object has."""
    return url.partition("?")[0]


def car_bus(**options: Any) -> Bus:
    bus = Bus(**options)

    @bus.handle("UpdateDoor")
    async def update(position: int) -> int:
        await bus.publish("door.opened", position)
        return 2 * position

    return bus


async def answered(bus: Bus) -> bool:
    try:
        await bus.request("UpdateDoor", 1, timeout=0.5)
    except DeadlineExceeded:
        return False
    return True


# -- buses -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_buses_ask_publish_and_notify_over_zenoh_in_each_dialect(dialect: str) -> None:
    car, told = car_bus(), list[str]()

    @car.handle("told")
    async def hear(text: str) -> None:
        told.append(text)

    async with (
        car.serve(HERE, protocol=up(CAR, dialect=dialect, peer=PHONE)) as listener,
        connect(bare(listener.url), protocol=up(PHONE, dialect=dialect, peer=CAR)) as phone,
        phone.subscribe("door.*") as doors,
    ):
        assert [await phone.request("UpdateDoor", number, timeout=10) for number in range(100)] == [*range(0, 200, 2)]
        heard = [await anext(doors) for _ in range(100)]
        assert [message.body for message in heard] == [*range(100)]
        assert heard[0].subject == "door.opened"
        assert heard[0].attributes["source"] == f"{CAR}/80CD"
        await phone.notify("told", "one")
        await eventually(lambda: told == ["one"])
        (peer,) = phone.peers
        assert (peer.transport, peer.protocol) == ("zenoh", "up")
        for bus in (car, phone):
            assert (bus.stats().malformed, bus.stats().dropped) == (0, 0)


async def test_two_routers_are_one_fabric_and_peers_need_none() -> None:
    async with (
        car_bus().serve(HERE, protocol=up(CAR)) as one,
        Bus().serve(f"{HERE}?connect=tcp/{one.url.partition('//')[2]}", protocol=up(SEAT)) as other,
        connect(other.url, protocol=up(PHONE)) as phone,
    ):
        await eventually(partial(answered, phone))  # the routers meet in a while
    async with (
        car_bus().serve(f"{HERE}?mode=peer", protocol=up(CAR)) as listener,
        connect(f"{listener.url}?mode=peer", protocol=up(PHONE)) as phone,
    ):
        assert await phone.request("UpdateDoor", 2, timeout=10) == 4


async def test_a_client_comes_back_with_its_subscriptions_when_its_router_does() -> None:
    port = free_port()
    url = f"up+zenoh://127.0.0.1:{port}"
    phone = Bus()
    async with car_bus().serve(url, protocol=up(CAR)):
        linked = connect(url, bus=phone, protocol=up(PHONE), backoff=SOON)
        peer = await linked.__aenter__()
    try:
        assert peer is not None
        async with phone.subscribe("door.opened") as doors:
            await eventually(lambda: phone.stats().links == 1 and not phone.peers[0].connected)
            async with car_bus().serve(url, protocol=up(CAR)):
                await eventually(lambda: phone.stats().reconnects == 1)
                await eventually(partial(answered, phone))  # what comes before a program has begun to listen is lost
                assert await phone.request("UpdateDoor", 7, timeout=10) == 14
                async for message in doors:
                    if message.body == 7:
                        break
    finally:
        await linked.__aexit__(None, None, None)


async def test_a_connection_that_is_cut_ends_what_waits_for_answers() -> None:
    car, asked = Bus(), anyio.Event()

    @car.handle("UpdateDoor")
    async def update() -> None:
        asked.set()
        await anyio.sleep_forever()

    async with car.serve(HERE, protocol=up(CAR)) as listener:
        async with connect(listener.url, protocol=up(PHONE), backoff=SOON) as phone:
            reply = phone.request("UpdateDoor", timeout=30)
            await asked.wait()
            await car.aclose()
            with pytest.raises(Disconnected, match="the other node disconnected"):
                await reply


async def test_a_request_waits_for_a_server_that_accepts_nodes_before_it_declares_its_filters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transport, "EARLY", math.inf)
    port, phone = free_port(), Bus()
    linked = connect(f"up+zenoh://127.0.0.1:{port}", bus=phone, protocol=up(PHONE), backoff=SOON)
    try:
        for reconnects in range(2):
            with zenoh_router(port, "up/*/*/*/*/*/device1/10AB/0/3/C") as server:
                if not reconnects:
                    await linked.__aenter__()
                await eventually(lambda: phone.peers[0].connected)
                replies = [phone.request(f"{CAR}/{method}", timeout=BOUND) for method in "BC"]
                await anyio.to_thread.run_sync(server.heard, 1)  # C, so B was written before unless it waits
                server.hear("up/*/*/*/*/*/device1/10AB/0/3/B")
                heard = await anyio.to_thread.run_sync(server.heard, 2)
                assert [sample.key[-1] for sample in heard] == ["C", "B"]
            for reply in replies:
                with pytest.raises(Disconnected):
                    await reply
    finally:
        await linked.__aexit__(None, None, None)


async def test_a_server_that_joins_a_router_loses_nothing_that_it_sends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "EARLY", math.inf)
    monkeypatch.setattr(transport, "_ROUTED", 1.0)  # however slow this machine is
    car, heard = car_bus(), list[str]()

    @car.on("//device3/1/1/8001")
    async def hear(body: str) -> None:
        heard.append(body)

    async with car.serve(HERE, protocol=up(CAR)) as one:
        seat = Bus()
        async with seat.serve(f"{HERE}?connect=tcp/{one.url.partition('//')[2]}", protocol=up(SEAT)) as other:
            await seat.publish("//device3/1/1/8001", "first")
            assert await other.peers[0].request("UpdateDoor", 2, timeout=BOUND) == 4
            await eventually(lambda: heard == ["first"])


# -- who may ---------------------------------------------------------------------------------------------------------------


async def test_the_fabric_is_let_in_once_as_one_peer() -> None:
    asked = list[str]()

    def authenticate(handshake: Any) -> Identity:
        asked.append(handshake.transport)
        return Identity("the fabric")

    car = car_bus(authenticate=authenticate)
    async with (
        car.serve(HERE, protocol=up(CAR)) as listener,
        connect(listener.url, protocol=up(PHONE)) as phone,
        connect(listener.url, protocol=up(SEAT)) as seat,
    ):
        assert [await bus.request("UpdateDoor", 1, timeout=10) for bus in (phone, seat)] == [2, 2]
        assert asked == ["zenoh"]
        assert [peer.identity for peer in car.peers] == ["the fabric"]


# -- failures ----------------------------------------------------------------------------------------------------------------


async def test_nobody_at_the_address_is_a_failed_connect() -> None:
    await refused(connect(f"up+zenoh://127.0.0.1:{free_port()}"), ConnectFailed, match=r"Unable to connect")


async def test_who_does_not_answer_is_given_up_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        await refused(connect(f"up+zenoh://127.0.0.1:{port}", limits=Limits(connect_timeout=0.2)), ConnectFailed)
        with anyio.move_on_after(0.1) as scope:  # whoever asks may give up before
            async with connect(f"up+zenoh://127.0.0.1:{port}", limits=Limits(connect_timeout=BOUND)):
                pass
        assert scope.cancelled_caught


async def test_an_address_that_is_taken_is_an_error_of_the_system() -> None:
    async with Bus().serve(HERE) as listener:
        await refused(Bus().serve(listener.url), OSError, match="cannot listen on zenoh://127")


async def test_other_protocols_tls_contexts_and_headers_have_no_form_here() -> None:
    await refused(Bus().serve("ubre+zenoh://127.0.0.1:0"), Unsupported, match="ubre has no form over zenoh")
    async with Bus().serve(HERE) as listener:
        await refused(connect(listener.url, headers={"x": "y"}), LocalProtocolError, match="zenoh carries no headers")
        await refused(connect(listener.url, tls=ssl.create_default_context()), LocalProtocolError, match=r"\?link=tls&ca=FILE")


async def test_zenoh_does_tls_by_files(tmp_path: Path) -> None:
    certified(tmp_path, "localhost")
    port = free_port()
    files = f"cert={tmp_path}/cert.pem&key={tmp_path}/key.pem"
    async with car_bus().serve(f"up+zenoh://localhost:{port}/?link=tls&{files}", protocol=up(CAR)) as listener:
        async with connect(f"{listener.url}&ca={tmp_path}/ca.pem", protocol=up(PHONE)) as phone:
            assert await phone.request("UpdateDoor", 4, timeout=10) == 8
        await refused(
            connect(f"up+zenoh://localhost:{port}", protocol=up(PHONE), limits=Limits(connect_timeout=0.5)), ConnectFailed
        )


# -- samples -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "attributes", "body", "key", "attachment", "payload", "level"), ROWS)
async def test_recorded_samples_of_each_dialect_are_heard(
    name: str, attributes: str, body: str, key: str, attachment: str, payload: str, level: int
) -> None:
    sample = Sample(key, bytes.fromhex(attachment), bytes.fromhex(payload), level)
    device2, heard = Bus(), list[Any]()

    @device2.handle("//device2/CD/4/B")
    async def asked(body: Any) -> None:
        heard.append(body)

    @device2.on("door.opened")
    async def opened(body: bytes) -> None:
        heard.append(body)

    protocol = up(PHONE, dialect=name, clock=lambda: 1_700_000_000_123_000_000)
    async with device2.serve(HERE, protocol=protocol) as listener:
        with zenoh_peer(listener.url, "up/device2/CD/**") as peer:
            peer.put(sample)
            await eventually(lambda: len(heard) == 1)
            assert device2.stats().malformed == 0
            if level == 4:  # a request, whose answer is heard in the same dialect
                (answer,) = await anyio.to_thread.run_sync(peer.heard, 1)
                assert answer.key == key.replace(
                    "up/device1/3AB/4/3/0/device2/CD/0/4/B", "up/device2/CD/0/4/B/device1/3AB/4/3/0"
                ).replace("up/device1/403AB/3/0/device2/CD/4/B", "up/device2/CD/4/B/device1/403AB/3/0")
                assert answer.level == 4


def message_of(**attributes: Any) -> bytes:
    ids = WireIds(time.time_ns, random.Random(1))
    usual: dict[str, Any] = {"id": read_uuid(ids.next()), "type": 1, "source": parse_uuri(f"{CAR}/80CD"), "payload_format": 3}
    return write_message(write_attributes(Attributes(**usual | attributes)), b"1")


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_bad_samples_are_dropped_and_counted_and_end_nothing(dialect: str) -> None:
    fabric = up(CAR, dialect=dialect).fabric
    good = fabric.sample(message_of())
    bad = [
        replace(good, attachment=None),
        replace(good, attachment=b"\x01"),
        replace(good, attachment=b"\x07" + (good.attachment or b"")[1:]),
        replace(good, attachment=(good.attachment or b"") + b"\xff"),
        replace(good, payload=bytes(3000)),
        fabric.sample(message_of(id=bytes(16))),
        fabric.sample(message_of(type=7)),
        fabric.sample(message_of(priority=9)),
        replace(fabric.sample(message_of(source=parse_uuri("//evil/1/1/8001"))), key=good.key),
    ]
    phone = Bus(limits=Limits(message=2000))
    async with phone.serve(HERE, protocol=up(PHONE, dialect=dialect)) as listener, phone.subscribe("door.opened") as heard:
        with zenoh_peer(listener.url) as peer:
            for _ in range(30):  # more than Limits.bad_messages
                for sample in bad:
                    peer.put(sample)
            await eventually(lambda: phone.stats().malformed == 30 * len(bad))
            peer.delete(good.key)
            peer.delete(good.key, attachment=good.attachment)  # a deletion is no message, whatever it has with it
            peer.put(good)
            assert (await anext(heard)).body == 1
            assert phone.stats().malformed == 30 * len(bad) + 2
            assert phone.stats().links == 1
            assert phone.stats().received == 1


async def test_a_sample_whose_key_has_wildcards_is_refused_and_counted_once_by_however_many_filters_it_comes() -> None:
    good = up(CAR).fabric.sample(message_of())
    phone = Bus()
    async with (
        phone.serve(HERE, protocol=up(PHONE)) as listener,
        phone.subscribe("door.opened") as heard,
        phone.subscribe("//*/10AB/3/*"),
        phone.subscribe("//*/*/3/*"),
    ):
        with zenoh_peer(listener.url) as peer:
            peer.put(replace(good, key="up/**"))
            peer.put(good)
            assert (await anext(heard)).body == 1
            assert phone.stats().malformed == 1
            assert phone.stats().received == 1


async def test_what_this_side_writes_has_the_bytes_of_the_specification() -> None:
    car = Bus()
    async with car.serve(HERE, protocol=up("//device1/10AB/3", priorities={"door.*": "CS2"}, ttl=5.0)) as listener:
        with zenoh_peer(listener.url, "up/**") as peer:
            await anyio.to_thread.run_sync(peer.found)
            await car.publish("door.opened", bytes.fromhex(OPEN))
            (sample,) = await anyio.to_thread.run_sync(peer.heard, 1)
    assert sample.key == "up/device1/10AB/0/3/80CD/{}/{}/{}/{}/{}"
    assert (sample.payload.hex(), sample.level) == (OPEN, 2)
    # But for the id, which is new, and its form, which is bytes here.
    assert sample.attachment is not None
    assert sample.attachment.hex()[46:] == ("01" + PUBLICATION)[46:-2] + "06"
