"""Patterns of URIs: segments, stars in segments, empty segments, and one address in several spellings."""

import random

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polybus import Bus, LocalProtocolError
from polybus.subjects import SubjectIndex, canonical, check_pattern, is_pattern, matches

DOOR = "up://VCU.VIN/body.access/1/door.front_left#Door"


@pytest.mark.parametrize(
    ("pattern", "fits"),
    [
        (DOOR, True),
        ("//vcu.vin/body.access/1/door.front_left#Door", True),
        ("UP://Vcu.Vin/body.access/1/door.front_left#Door", True),
        ("//VCU.VIN/body.access/1/door.front_left#door", False),
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
    assert (index.size, index._root.empty, index._uris.empty, index._uris.globs) == (0, True, True, 0)


@pytest.mark.parametrize("name", ["a/b*c", "http://x/y", "a//b", "/a/b/c"])
def test_names_with_slashes_of_other_protocols_stay_what_they_are(name: str) -> None:
    assert not is_pattern(name)
    assert canonical(name) == name


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
    assert index._uris.empty and not index._uris.globs


@pytest.mark.anyio
async def test_a_handler_of_an_address_is_found_in_any_spelling() -> None:
    bus = Bus()

    @bus.handle("up://VCU.VIN/body.access/1/rpc.UpdateDoor")
    async def update() -> str:
        return "done"

    handler = bus._handler("//vcu.vin/body.access/1/rpc.UpdateDoor")
    assert handler is not None and handler.function is update
    assert bus._handler("//vcu.vin/body.access/1/rpc.updatedoor") is None
    async with bus:
        with anyio.fail_after(5):
            assert await bus.request("up://VCU.VIN/body.access/1/rpc.UpdateDoor") == "done"
