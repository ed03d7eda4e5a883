"""Addresses are one thing: whatever their spelling, in whatever place of the bus, and whether or not they have a name."""

from contextlib import AsyncExitStack
from typing import Any

import anyio
import pytest

from polybus import Bus, Forbidden, LocalProtocolError, Peer, Route, Unsupported, bridge, connect
from polybus.protocols import Csb, Ubre, Up, UProtocol
from polybus.protocols.up.names import UpNames
from polybus.protocols.up.samples import DIALECTS, Filters
from polybus.protocols.up.uuris import UUri, parse_entity
from polybus.subjects import canonical, matches
from polybus.testing import pair
from tests.support import BOUND, eventually

CAR, PHONE = "//car/10AB/3", "//phone/CD/4"
DOORS, HMI = "//VCU.VIN/body.access/1", "//HU.VIN/hmi/1"

ADDRESSES = (
    "//car/10AB/3/8001",
    "//car/10AB/3/8002",
    "//car/10AB/4/8001",
    "//car/110AB/3/8001",
    "//car/2/3/8001",
    "//car/10002/3/8001",
    "//bus/10AB/3/8001",
)
LAST = "//last/1/1/8001"
PATTERNS = {  # which of these each stands for
    "//car/10AB/3/8001": {0},
    "up://car/10ab/03/8001": {0},
    "//CAR/000010aB/3/8001": {0},
    "//car/10AB/3/FFFF": {0, 1},
    "//car/10AB/3/ffff": {0, 1},
    "//car/10AB/FF/8001": {0, 2},
    "//car/10ab/ff/ffff": {0, 1, 2},
    "//car/FFFF/3/8001": {0, 4},  # any type, instance 0
    "//car/1FFFF/3/8001": {3, 5},  # any type, instance 1
    "//car/FFFF10AB/3/8001": {0, 3},  # any instance of a type
    "//car/ffff0002/3/8001": {4, 5},
    "//car/FFFFFFFF/3/8001": {0, 3, 4, 5},
    "//*/10AB/3/8001": {0, 6},
    "up://*/FFFFFFFF/FF/FFFF": {0, 1, 2, 3, 4, 5, 6},
    "//*/FFFF/FF/8001": {0, 2, 4, 6},
    "//car/10ab/3/*": {0, 1},
    "//car/cafe/3/*": set(),
    "//car/10ab/>": {0, 1, 2},
    "//car/*/3/8001": {0, 3, 4, 5},
    "//car//3/8001": {0, 3, 4, 5},
    "//car/FFFF/>": {0, 1, 2, 4},
    "//car/FFFF/3/*": {0, 1, 4},
    "//car/2FFFF/3/8001": set(),
    "//car/FFFF0AB1/3/8001": set(),
    "//car/FFFE/3/8001": set(),
    "//car/10AB/FE/8001": set(),
    "//car/10AB/3/8003": set(),
    "//truck/FFFFFFFF/FF/FFFF": set(),
}  # fmt: skip


async def test_a_subscription_hears_the_addresses_that_its_pattern_stands_for() -> None:
    bus = Bus()
    async with AsyncExitStack() as stack:
        listener = await stack.enter_async_context(bus.serve("up+memory://patterns", protocol=Up(entity=CAR)))
        phone = await stack.enter_async_context(connect(listener.url, protocol=Up(entity=PHONE)))
        subscriptions = {one: await stack.enter_async_context(phone.subscribe(one)) for one in PATTERNS}
        last = await stack.enter_async_context(phone.subscribe(LAST))
        for address in (*ADDRESSES, LAST):
            await bus.publish(address)
        await anext(last)
        for pattern, subscription in subscriptions.items():
            heard = [(await anext(subscription)).subject for _ in range(len(subscription))]
            heard = [one for one in heard if one != LAST]
            assert heard == [ADDRESSES[place] for place in sorted(PATTERNS[pattern])], pattern


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_filter_on_a_fabric_and_a_single_match_agree_with_subscriptions(pattern: str) -> None:
    heard: list[str] = []
    names = UpNames((), parse_entity(PHONE), None, on_fabric=True)
    filters = Filters(DIALECTS["spec"], names, lambda found: heard.extend(found))
    filters.add(pattern)
    key = heard[-1].split("/")[1:6]
    for place, address in enumerate(ADDRESSES):
        uri = _uuri(address)
        assert matches(pattern, address) is (place in PATTERNS[pattern])
        parts = [uri.authority, *(f"{number:X}" for number in (uri.type, uri.instance, uri.version, uri.resource))]
        passes = all(given in ("*", part) for given, part in zip(key, parts, strict=True))
        assert passes is (place in PATTERNS[pattern])
    assert canonical(canonical(pattern)) == canonical(pattern)


def _uuri(text: str) -> UUri:
    host, *numbers = text.removeprefix("//").split("/")
    return UUri(host, *(int(number, 16) for number in numbers))


def heard_by(bus: Bus, pattern: str) -> list[object]:
    """The bodies that a subscription of a bus will hear."""
    heard = list[object]()

    @bus.on(pattern)
    async def hear(body: object) -> None:
        heard.append(body)

    return heard


def echoing(subject: str, bus: Bus | None = None) -> Bus:
    bus = bus or Bus()

    @bus.handle(subject)
    async def echo(body: object) -> object:
        return body

    return bus


SPELLINGS = (f"{CAR}/B", "//car/10ab/3/b", "up://car/000010Ab/03/000b")
NAMES = {"update": 0xB, "opened": 0x8001}


def wires(named: bool) -> list[Any]:
    """Server, client, the method and a topic in several spellings, and what each is called where it has a name."""
    names: Any = NAMES if named else {}
    return [
        pytest.param(
            Up(entity=CAR, names=names), Up(entity=PHONE, peer=CAR, names=names), SPELLINGS,
            tuple(one[:-1] + "8001" for one in SPELLINGS[:2]), id="up",
        ),
        pytest.param(
            UProtocol(entity=DOORS if named else "//other/x/1"), UProtocol(entity=HMI, peer=DOORS if named else None),
            (f"{DOORS}/rpc.update", "up://vcu.vin/body.access/1/rpc.update"),
            (f"{DOORS}/opened#Message", "UP://vcu.VIN/body.access/1/opened#Message"), id="uprotocol",
        ),
    ]  # fmt: skip


@pytest.mark.parametrize("registered", [0, 1])
@pytest.mark.parametrize(("server", "client", "methods", "topics"), [*wires(False), *wires(True)])
async def test_handlers_and_subscriptions_by_address_are_found_by_every_spelling(
    server: Any, client: Any, methods: Any, topics: Any, registered: int
) -> None:
    asked = list[tuple[str, str | int]]()

    def authorize(peer: Peer, verb: str, subject: str | int) -> bool:
        asked.append((verb, subject))
        return True

    bus, phone = echoing(methods[registered], Bus(authorize=authorize)), Bus()
    heard = heard_by(phone, topics[registered])
    named = bool(getattr(server, "names", ())) or server.entity == DOORS
    spoken = [*methods, *(["update"] if named else [])]
    async with bus.serve("up+memory://x" if type(server) is Up else "uprotocol+memory://x", protocol=server) as listener:
        async with connect(listener.url.partition("?")[0], bus=phone, protocol=client):
            for number, one in enumerate(spoken):
                assert await phone.request(one, number) == number
            for number, one in enumerate(said := [*topics, *(["opened"] if named else [])]):
                await bus.publish(one, number)
            await eventually(lambda: len(heard) == len(said))
    assert heard == [*range(len(said))]
    assert {subject for verb, subject in asked if verb == "request"} == {methods[registered]}
    deliveries = {subject for verb, subject in asked if verb == "deliver"}
    assert deliveries <= {canonical(topics[0]), "opened"}


@pytest.mark.parametrize("registered", ["update", f"{CAR}/B"])
async def test_a_request_without_authority_is_for_this_host(registered: str) -> None:
    bus = echoing(registered)
    async with bus.serve("up+memory://local", protocol=Up(entity=CAR, names=NAMES)) as listener:
        async with connect(listener.url, protocol=Up(entity=PHONE)) as phone:
            for spelling in ("up:/10ab/3/b", "/10AB/3/B"):
                assert await phone.request(spelling, 1) == 1


@pytest.mark.parametrize(
    "pattern", ["//car/FFFF/3/B", "//car/10AB/FF/B", "//car/10AB/3/ffff", "//*/10AB/3/B", "//car/FFFF10AB/3/B"]
)
async def test_a_wildcard_where_no_pattern_may_stand_is_refused_there(pattern: str) -> None:
    bus = Bus()
    with pytest.raises(LocalProtocolError, match="pattern"):
        bus.handle(pattern)(lambda: None)
    async with bus:
        with pytest.raises(LocalProtocolError, match="pattern"):
            _ = bus.request(pattern)
        for verb in (bus.publish, bus.notify):
            with pytest.raises(LocalProtocolError, match="pattern"):
                await verb(pattern)


def test_an_address_in_another_spelling_has_one_handler() -> None:
    bus = Bus()
    bus.handle("//car/10ab/3/b")(lambda: None)
    with pytest.raises(TypeError, match="already handled"):
        bus.handle("up://car/010AB/03/B")(lambda: None)


@pytest.mark.parametrize("wire", [Ubre, Csb])
async def test_authorize_sees_one_spelling_of_an_address_and_of_a_pattern(wire: Any) -> None:
    asked = list[tuple[str, str | int]]()

    def authorize(peer: Peer, verb: str, subject: str | int) -> bool:
        asked.append((verb, subject))
        return False

    with anyio.fail_after(60):
        async with pair(Bus(authorize=authorize), protocol=wire()) as client:
            for spelling in SPELLINGS:
                with pytest.raises(Forbidden):
                    await client.request(spelling)
            for pattern in ("//CAR/FFFFFFFF/ff/8001", "//car//FF/8001", "up://car/*/*/8001"):
                with pytest.raises(Forbidden):
                    async with client.subscribe(pattern):
                        pass
            for topic in ("//car/10ab/3/8001", "//CAR/010AB/3/8001"):
                await client.publish(topic)
            with pytest.raises(Forbidden):
                await client.request("last")
    assert {subject for _, subject in asked} == {f"{CAR}/B", "//car/*/*/8001", "//car/10AB/3/8001", "last"}


@pytest.mark.parametrize("wire", [Ubre, Csb])
async def test_a_subscription_goes_on_when_one_in_another_spelling_ends(wire: Any) -> None:
    bus = Bus()
    async with pair(bus, protocol=wire()) as client, client.subscribe("//CAR/10ab/3/8001") as stays:
        async with client.subscribe("up://car/010AB/3/8001"):
            pass
        async with client.subscribe("last") as last:
            await bus.publish(f"{CAR}/8001", 1)
            await bus.publish("last")
            await anext(last)
            assert len(stays) == 1


async def test_members_of_a_group_may_spell_their_address_as_they_like() -> None:
    bus, heard = Bus(), list[object]()

    async def hear(body: object) -> None:
        heard.append(body)

    bus.on("//car/10ab/3/8001", group="g")(hear)
    bus.on("up://CAR/10AB/3/8001", group="g")(hear)
    async with bus, bus.subscribe("last") as last:
        for number in range(4):
            await bus.publish(f"{CAR}/8001", number)
        await bus.publish("last")
        await anext(last)
        await eventually(lambda: len(heard) >= 4)
    assert sorted(map(str, heard)) == ["0", "1", "2", "3"]


@pytest.mark.parametrize(
    ("source", "topic"),
    [
        ("//car/10ab/3/b", "//car/10ab/3/8001"),
        ("update", "opened"),
        ("//car/FFFF/3/B", "//*/10ab/FF/8001"),
        ("//car/10AB/3/>", None),
    ],
)
@pytest.mark.parametrize("transport", ["memory://route", "tcp://127.0.0.1:0"])
async def test_a_route_takes_an_address_in_every_spelling_and_by_name(source: str, topic: str | None, transport: str) -> None:
    left, right = Bus(), echoing("far")
    heard = heard_by(right, "far")
    routes = [Route(source, "far"), *([Route(topic, "far")] if topic else [])]
    async with (
        left.serve(f"up+{transport}", protocol=Up(entity=CAR, names=NAMES)) as listener,
        bridge(left, right, routes=routes),
    ):
        async with connect(listener.url, protocol=Up(entity=PHONE, peer=CAR, names={"mine": f"{CAR}/8001"})) as phone:
            assert await phone.request("//car/10ab/3/b", 1) == 1
            await phone.publish("//car/10ab/3/8001", 2)
            await phone.publish("mine", 3)
            await eventually(lambda: len(heard) == 2)
    assert heard == [2, 3]


@pytest.mark.parametrize("pattern", ["//car/10ab/03/8001", "//car/FFFF/3/8001", "opened"])
async def test_a_relay_takes_an_address_in_every_spelling_and_by_name(pattern: str) -> None:
    bus, other = Bus(), Bus()
    bus.relay(pattern)
    heard = heard_by(other, "//CAR/10ab/3/8001")
    async with bus.serve("up+memory://relay", protocol=Up(entity=CAR, names=NAMES)) as listener:
        async with connect(listener.url, bus=other, protocol=Up(entity=PHONE)):
            async with connect(listener.url, protocol=Up(entity="//pad/1/1")) as pad:
                await pad.publish("//car/10ab/3/8001", 1)
                await eventually(lambda: heard == [1])


async def test_serves_names_an_address_in_any_spelling() -> None:
    one, other, bus = Bus(), Bus(), Bus()

    for name, server in (("one", one), ("other", other)):
        for method in ("//one/1A/1/b", "//other/1a/1/B"):
            server.handle(method)(lambda name=name: name)
    async with one.serve("up+memory://one", protocol=Up(entity="//one/1A/1")) as at_one:
        async with other.serve("up+memory://other", protocol=Up(entity="//other/1A/1")) as at_other:
            asker = Up(entity=PHONE)
            async with bus, bus.connect(at_one.url, protocol=asker, serves=["up://ONE/01a/FF/ffff"]):
                async with bus.connect(at_other.url, protocol=asker, serves=["//other/FFFF/1/0b"]):
                    assert await bus.request("//one/1a/1/B") == "one"
                    assert await bus.request("//other/1A/01/b") == "other"


@pytest.mark.parametrize("published", ["opened", f"{CAR}/8001", "up://car/10ab/03/8001"])
@pytest.mark.parametrize("pattern", ["opened", "//car/10ab/3/8001", "//car/FFFF/FF/8001", "/10AB/3/8001"])
async def test_a_bus_hears_its_own_publications_by_name_and_by_address(published: str, pattern: str) -> None:
    bus = Bus()
    heard = heard_by(bus, pattern)
    async with bus, bus.subscribe("opened") as subscription:
        async with bus.serve("up+memory://own", protocol=Up(entity=CAR, names=NAMES)):
            await bus.publish(published, 1)
            assert (await anext(subscription)).body == 1
            await eventually(lambda: heard == [1])


async def test_on_a_fabric_names_and_addresses_are_one_and_a_route_of_a_method_opens() -> None:
    car, far, phone = Bus(), echoing("far.update"), Bus()
    patterns = ("//car/10ab/3/8001", "//CAR/FFFF/FF/8001", "opened", "//*/FFFF10AB/3/ffff")
    heard = [heard_by(phone, pattern) for pattern in patterns]
    async with car.serve("up+zenoh://127.0.0.1:0", protocol=Up(entity=CAR, names=NAMES)) as listener:
        near = Up(entity=PHONE, peer=CAR, names={"update": 0xB, "opened": f"{CAR}/8001"})
        async with bridge(car, far, routes=[Route("update", "far.update")]), connect(listener.url, bus=phone, protocol=near):
            for method in ("update", "//car/10ab/3/b"):
                assert await phone.request(method, 1, timeout=BOUND) == 1
            with pytest.raises(Unsupported, match="is not a topic"):
                async with phone.subscribe("update"):
                    pass

            await car.publish("//car/10AB/3/8001", 1)
            await eventually(lambda: sum(map(len, heard)) == 4)
    assert heard == [[1]] * 4
