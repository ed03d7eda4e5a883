"""Patterns of URIs: segments, stars in segments, empty segments, and one address in several spellings."""

import random
import re
import sys
from collections.abc import AsyncIterator

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polybus import Bus, Channel, Forbidden, LocalProtocolError, Message, Peer, Route, bridge
from polybus._util.pattern_index import SubjectIndex
from polybus.protocols import Ubre, UProtocol
from polybus.subjects import canonical, check_pattern, glob_of, is_pattern, matches
from polybus.testing import pair
from tests.refusal import refused
from tests.support import eventually

DOOR = "up://VCU.VIN/body.access/1/door.front_left#Door"


@pytest.mark.parametrize(
    ("pattern", "fits"),
    [
        (DOOR, True),
        ("//vcu.vin/body.access/1/door.front_left#Door", True),
        ("UP://Vcu.Vin/body.access/1/door.front_left#Door", True),
        ("//VCU.VIN/body.access/1/door.front_left#door", False),
        ("//VCU.VIN/body.access/1/d%6For.front%5fleft#Door", True),
        ("//VCU.VIN/%62ody.access/%31/door.*#%44oor", True),
        ("//VCU.VIN/body.access/1/door%2Efront_left#Door", False),
        ("//VCU.VIN/body.access/1/*", True),
        ("//VCU.VIN/body.access/*/door.front_left#Door", True),
        ("//VCU.VIN/body.access//door.front_left#Door", True),
        ("//VCU.VIN/body.access/1/", True),
        ("//*/body.access/1/door.front_left#Door", True),
        ("//VCU.VIN/*/1/door.front_left#Door", True),
        ("//VCU.VIN/body.access/1/door.*#Door", True),
        ("//VCU.VIN/body.access/1/window.*#Window", False),
        ("//VCU.VIN/>", True),
        ("//VCU.VIN/body.access/2/*", False),
        ("/body.access/1/*", False),
        ("//*.VIN/body.access/1/*", True),
    ],
)
def test_a_pattern_fits_the_address_of_a_door(pattern: str, fits: bool) -> None:
    index: SubjectIndex[str] = SubjectIndex()
    index.add(pattern, "me")
    assert (index.match(DOOR) == ("me",)) is fits
    assert matches(pattern, DOOR) is fits
    index.remove(pattern, "me")
    assert index.match(DOOR) == ()
    assert (index.size, index._dotted.whole, index._uris.whole, index._uris.tails) == (0, {}, {}, {})


@pytest.mark.parametrize("name", ["a/b*c", "http://x/y", "a//b", "/a/b/c"])
def test_names_with_slashes_of_other_protocols_stay_what_they_are(name: str) -> None:
    assert not is_pattern(name)
    assert canonical(name) == name


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("//192.0.2.7/4/1/32768", "up://192.0.2.7/004/01/0032768", True),
        ("//192.0.2.7/4/1/3", "//192.0.2.7/4/1/30", False),
        ("//v/cafe/1/*", "//v/cafe/1/door#Door", True),
        ("//v/cafe/1/*", "//v/CAFE/1/8001", True),
        ("//v/facade/>", "//v/facade/2/rpc.Set", True),
        ("//v/cafes/1/*", "//v/Cafes/1/door#Door", False),
        ("/abc/1/*", "/ABC/1/x", False),
        ("/2026/01/05", "/2026/1/5", False),
    ],
)
def test_numbers_are_compared_as_numbers_and_names_as_names(one: str, other: str, same: bool) -> None:
    index: SubjectIndex[int] = SubjectIndex()
    index.add(one, 1)
    assert bool(index.match(other)) is matches(one, other) is same


def test_a_segment_has_two_stars_at_most() -> None:
    check_pattern("//a/b/1/x*y*z")
    with pytest.raises(LocalProtocolError, match="at most 2"):
        check_pattern("//a/b/1/*x*y*z")


SEGMENT = st.sampled_from(["a", "b", "ab", "*", "a*", "*b", "", ">"])


@given(st.lists(SEGMENT, min_size=1, max_size=4), st.lists(st.sampled_from(["a", "b", "ab", "aab"]), min_size=1, max_size=4))
def test_the_index_and_a_single_match_agree(pattern: list[str], subject: list[str]) -> None:
    text, address = "/" + "/".join(pattern), "/" + "/".join(subject)
    if ">" in pattern[:-1]:
        return
    index: SubjectIndex[int] = SubjectIndex()
    index.add(text, 1)
    assert bool(index.match(address)) is matches(text, address)


@pytest.mark.parametrize(
    ("patterns", "subject"),
    [
        ([".".join([*("a*"[n >> at & 1 == 0] for at in range(9)), *["*"] * 55]) for n in range(512)], "a." * 63 + "b"),
        ([".".join([*["*"] * 55, *("a*"[n >> at & 1 == 0] for at in range(8)), ">"]) for n in range(256)], "a." * 63 + "b"),
        ([f"/a/b/1/x*{number}" for number in range(2000)], "/a/b/1/y"),
    ],
    ids=["wildcards first", "wildcards last", "wildcards within"],
)
def test_a_look_up_takes_a_step_for_each_pattern_however_deep(patterns: list[str], subject: str) -> None:
    index: SubjectIndex[int] = SubjectIndex()
    for pattern in patterns:
        index.add(pattern, 1)
    calls: list[str] = []
    sys.setprofile(lambda frame, event, argument: calls.append(frame.f_code.co_name) if "call" in event else None)
    try:
        index.match(subject)
    finally:
        sys.setprofile(None)
    assert len(calls) < 6 * len(patterns) + 100


@given(st.from_regex(r"[xyz]{0,2}\*[xyz]{0,2}(\*[xyz]{0,2})?", fullmatch=True), st.text("xyz", max_size=8))
def test_a_star_in_a_segment_stands_for_any_characters(token: str, text: str) -> None:
    naive = re.compile(".*".join(map(re.escape, token.split("*"))))
    assert bool(glob_of(token).fullmatch(text)) is bool(naive.fullmatch(text))


def test_two_stars_in_a_segment_do_not_cost_the_square_of_its_length() -> None:
    assert not glob_of("x*y*z").fullmatch("x" + "y" * 300_000)  # else it would take minutes


def test_many_patterns_come_and_go_without_a_trace() -> None:
    steps = random.Random(3)
    index: SubjectIndex[int] = SubjectIndex()
    there: list[tuple[str, int]] = []
    for number in range(500):
        if there and steps.random() < 0.5:
            index.remove(*there.pop(steps.randrange(len(there))))
        else:
            segments = [steps.choice(["a", "*", "a*", "*b*", ""]) for _ in range(steps.randint(1, 4))]
            there.append(("//h/" + "/".join(segments), number))
            index.add(*there[-1])
        found = {item for pattern, item in there if matches(pattern, "//H/a/ab/b")}
        assert set(index.match("//H/a/ab/b")) == found
    for pattern, item in there:
        index.remove(pattern, item)
    assert not index._uris.whole


def with_doors() -> tuple[Bus, list[object]]:
    """A bus whose handlers answer with the subject that they see, and what they have been told."""
    bus, told = Bus(), list[object]()

    @bus.handle("//v/door/1/rpc.Open")
    async def opened(message: Message) -> object:
        return message.subject

    @bus.handle("//v/door/1/rpc.Told")
    async def tell(message: Message) -> None:
        told.append(message.subject)

    @bus.handle("//v/door/1/rpc.Angles")
    async def angles(message: Message) -> AsyncIterator[object]:
        yield message.subject

    @bus.handle("//v/door/1/rpc.Talk")
    async def talk(channel: Channel[object, object], message: Message) -> None:
        async for item in channel:
            await channel.send([message.subject, item])

    return bus, told


async def test_a_bus_finds_its_own_handlers_in_any_spelling_as_its_peers_do() -> None:
    bus, told = with_doors()
    async with pair(bus) as client:
        for asked in (client, bus):
            for start in ("//V", "up://v", "UP://V"):
                assert await asked.request(f"{start}/door/1/rpc.Open") == "//v/door/1/rpc.Open"
                await asked.notify(f"{start}/door/1/rpc.Told")
                async with asked.stream(f"{start}/door/1/rpc.Angles") as items:
                    assert [item async for item in items] == ["//v/door/1/rpc.Angles"]
                async with asked.channel(f"{start}/door/1/rpc.Talk") as ch:
                    await ch.send(1)
                    assert await anext(ch) == ["//v/door/1/rpc.Talk", 1]
        await eventually(lambda: told == ["//v/door/1/rpc.Told"] * 6)


async def test_a_bridge_finds_the_handlers_of_its_other_side_in_any_spelling() -> None:
    left, (right, told) = Bus(), with_doors()
    routes = [Route("door.>", "//V/door/1/rpc.{rest}", kinds={"request", "stream"})]
    async with bridge(left, right, routes=routes), pair(left) as client:
        assert await client.request("door.Open") == "//v/door/1/rpc.Open"
        async with client.stream("door.Angles") as items:
            assert [item async for item in items] == ["//v/door/1/rpc.Angles"]
        await client.notify("door.Told")
        await eventually(lambda: told == ["//v/door/1/rpc.Told"])


SECRET = "//Other.X/e/1/rpc.Secret"
SPELLINGS = [SECRET, "//other.x/e/1/rpc.Secret", "UP://OTHER.X/e/1/rpc.Secret", "//other.X/%65/1/rpc.%53ecret"]
WIRES = [UProtocol, Ubre]


@pytest.mark.parametrize("wire", WIRES)
async def test_what_authorize_refuses_is_refused_in_every_spelling(wire: type[UProtocol | Ubre]) -> None:
    asked, nobody = list[tuple[str, str | int]](), "//other.x/e/1/rpc.Nobody"

    def authorize(peer: Peer, verb: str, subject: str | int) -> bool:
        asked.append((verb, subject))
        return subject not in (SECRET, nobody)

    bus = Bus(authorize=authorize)
    bus.handle(SECRET)(lambda: "secret")

    @bus.handle(SECRET + "s")
    async def secrets(message: Message) -> object:
        return message.subject

    async with pair(bus, protocol=wire()) as client:
        for spelling in SPELLINGS:
            for subject in (spelling, spelling.replace("Secret", "Nobody")):
                with pytest.raises(Forbidden):
                    await client.request(subject)
            with pytest.raises(Forbidden):
                async with client.stream(spelling) as items:
                    await anext(items)
            assert await client.request(spelling + "s") == SECRET + "s"
    assert {subject for verb, subject in asked if verb in ("request", "stream")} == {SECRET, SECRET + "s", nobody}


@pytest.mark.parametrize("wire", WIRES)
async def test_authorize_is_asked_about_publications_in_one_spelling(wire: type[UProtocol | Ubre]) -> None:
    secret, allowed, last = (f"//other.x/e/1/{name}#M" for name in ("t.x", "t.y", "t.z"))
    asked, heard, done = list[tuple[str, str | int]](), list[str | int](), anyio.Event()

    def authorize(peer: Peer, verb: str, subject: str | int) -> bool:
        asked.append((verb, subject))
        return subject != secret

    bus = Bus(authorize=authorize)

    @bus.on("//OTHER.x/>")
    async def hear(message: Message) -> None:
        heard.append(message.subject)
        if message.subject == last:
            done.set()

    async with pair(bus, protocol=wire()) as client:
        for name in (secret, allowed):
            for spelling in (name, name.replace("other", "Other"), "up:" + name.upper()[:9] + name[9:]):
                await client.publish(spelling, 1)
        await client.publish(last, 1)
        await done.wait()
        assert sorted(map(str, heard)) == [allowed] * 3 + [last] if wire is UProtocol else len(heard) == 4
        await refused(client.subscribe("up:" + secret.replace("other", "Other")), Forbidden)
        async with client.subscribe("up://Other.X/>") as got:
            for name in (secret, allowed, last):
                await bus.publish(name.replace("other", "OTHER"), 1)
            assert [canonical(str((await anext(got)).subject)) for _ in range(2)] == [allowed, last]
    assert {subject for _, subject in asked} == {secret, allowed, last, "//other.x/>"}


def test_one_address_in_two_spellings_has_one_handler() -> None:
    bus = Bus()
    bus.handle(SECRET)(lambda: None)
    with pytest.raises(TypeError, match=r"already handled by .* as '//Other.X"):
        bus.handle(SPELLINGS[1])(lambda: None)


@given(st.text(max_size=20))
def test_the_one_spelling_is_its_own(text: str) -> None:
    for subject in (text, f"//{text}", f"up://{text}/x", f"up:/{text}", f"//h/%2541%{text}", f"//h/1/%46/{text}"):
        assert canonical(canonical(subject)) == canonical(subject)
