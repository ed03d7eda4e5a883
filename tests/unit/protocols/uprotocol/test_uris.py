"""Addresses and ids: the vectors, the parts, and that every text is an address or a typed error. Ids keep order and time."""

import itertools
import random
import uuid
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polybus.protocols.uprotocol import IdFactory, id_time_ms
from polybus.protocols.uprotocol.names import UriError, parse_uri, read_uri


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("/climate.seat//heater#Heater", ("", "climate.seat", "", "heater", "", "Heater")),
        ("/climate.seat/1/heater.rear.left#Heater", ("", "climate.seat", "1", "heater", "rear.left", "Heater")),
        ("up://192.0.2.17/4/1/3", ("192.0.2.17", "4", "1", "3", "", "")),
        ("/4/1/32769", ("", "4", "1", "32769", "", "")),
    ],
)
def test_an_address_is_taken_apart(text: str, parts: tuple[str, ...]) -> None:
    uri = parse_uri(text)
    assert (uri.authority, uri.ue, uri.version, uri.resource, uri.instance, uri.message) == parts
    if uri.resource.isdigit():
        assert uri.number == int(uri.resource)


def test_scheme_and_authority_are_equal_in_any_case_and_with_brackets_or_without() -> None:
    lower = "up://cgw.veh7.example.net/climate.seat/1/rpc.SetHeat"
    assert parse_uri("UP://CGW.Veh7.Example.NET/climate.seat/1/rpc.SetHeat").key == parse_uri(lower).key
    assert parse_uri("//Host/a/1/B#C").key == parse_uri("up://hOST/a/1/B#C").key != parse_uri("//host/a/1/b#C").key
    strange, usual = read_uri("UP://2001:DB8::1/4/1/3"), parse_uri("//[2001:db8::1]/4/1/3")
    assert (strange.key, strange.entity, strange.text) == (usual.key, usual.entity, "UP://[2001:DB8::1]/4/1/3")
    assert not usual.strange


@pytest.mark.parametrize(
    ("text", "authority"),
    [
        ("up://oper@cgw.VEH7:8443/climate.seat/1/rpc.SetHeat", "oper@cgw.veh7:8443"),
        ("up://[2001:DB8::21]/4/1/3", "[2001:db8::21]"),
        ("//192.0.2.17/body.access/1/door#Door", "192.0.2.17"),
        ("up:/body.access/1/door#Door", ""),
    ],
)
def test_an_authority_is_read_with_user_and_port_in_lower_case(text: str, authority: str) -> None:
    assert parse_uri(text).authority == authority


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        *((text, "method") for text in ("/a/1/rpc.Get", "/a/1/rpc.user.get", "/4/1/3")),
        *((text, "response") for text in ("/a/1/rpc.response", "/4/1/0")),
        *((text, "topic") for text in ("/a/1/door#Door", "/a/1/door.front#Door", "/4/1/32768")),
        *((text, "") for text in ("/a/1/rpc", "/a/1/rpc.", "/a/1/door", "/a/1/rpc.Get#Door", "/a/1")),
    ],
)
def test_methods_topics_and_the_place_for_answers_are_told_apart(text: str, kind: str) -> None:
    uri = parse_uri(text)
    assert (uri.is_method, uri.is_response, uri.is_topic) == (kind == "method", kind == "response", kind == "topic")


@pytest.mark.parametrize(("version", "good"), [("1", True), ("1.2", True), ("1.2.3", False), ("", False), ("v1", False)])
def test_a_version_has_major_perhaps_minor_and_no_patch(version: str, good: bool) -> None:
    assert parse_uri(f"/a/{version}/x#X").is_versioned is good


@pytest.mark.parametrize(
    "text",
    [
        *("", "/", "//", "climate.seat/1/rpc.SetHeat", "https://cgw.veh7/climate.seat/1/rpc.SetHeat", "up:///a/1/x", "///a"),
        *("/4/1/heater", "/70000/1/3", "/4/1/70000", "/a/1/x/y", "/a/1/x y", "/a/1/x#", "/a/1/x#A#B", "/a/1/x?q=1", "/a/../x"),
        *("/a/%2e%2E/x", "//a b/c/1", "//host:x/c/1", "//2001:db8::1/4/1/3", "/a/1/gr\u00fcn", "/a/1/%zz", "//host/4/1/3"),
    ],
)
def test_what_breaks_the_grammar_is_refused_with_the_text_in_view(text: str) -> None:
    with pytest.raises(UriError, match=r"'"):
        parse_uri(text)


STRANGE = [
    ("up://2001:cb0:fc::abc/0/", "[2001:cb0:fc::abc]", "without brackets"),
    ("//2001:DB8::1/4/1/3", "[2001:db8::1]", "without brackets"),
    ("//2001:db8::1/body.access/1/door#Door", "[2001:db8::1]", "without brackets"),
    ("//1G1YZ23J9P5800001/0/3/32768", "1g1yz23j9p5800001", "is an IP address"),
    ("//mypc/1/1/1", "mypc", "is an IP address"),
]


@pytest.mark.parametrize(("text", "authority", "says"), STRANGE)
def test_what_up_python_writes_against_the_grammar_is_read_and_marked(text: str, authority: str, says: str) -> None:
    uri = read_uri(text)
    assert (uri.authority, says in uri.strange) == (authority, True)
    with pytest.raises(UriError, match=says):
        parse_uri(text)


def test_wildcards_make_a_pattern() -> None:
    assert parse_uri("//*/body.access/1/door.*#Door").is_pattern
    assert not parse_uri("/a/1/x%2A#X").is_pattern


@given(st.text(max_size=80) | st.text("up:/*.#@%a1", max_size=30))
def test_any_text_is_an_address_or_a_uri_error(text: str) -> None:
    try:
        uri = parse_uri(text)
    except UriError:
        return
    assert parse_uri(uri.key).key == uri.key


NOW = 1_700_000_000_123


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("1EC9414C-232A-6B00-B3C8-9F6BDECED846", 1_645_557_742_000),  # version 6: RFC 9562, appendix A.5
        ("017F22E2-79B0-7CC3-98C4-DC0C0C07398F", 1_645_557_742_000),  # version 7: RFC 9562, appendix A.6
        ("018bcfe5-687b-8000-9122-334455667788", NOW),  # version 8 of uProtocol
        ("018bcfe5-687b-8001-9122-334455667788", NOW),
        ("5b9fe861-8c1c-4899-9b07-ad1cde652e10", None),  # version 4 has none
    ],
)
def test_an_id_has_the_time_that_the_standards_say(text: str, milliseconds: int | None) -> None:
    assert id_time_ms(text) == milliseconds


@pytest.mark.parametrize("text", ["", "not-a-uuid", "018bcfe5687b80009122334455667788", "018bcfe5-687b-8000-1122-334455667788"])
def test_what_is_no_uuid_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match="UUID"):
        id_time_ms(text)


def test_an_id_has_the_time_of_the_clock_and_ten_thousand_in_a_millisecond_are_in_order() -> None:
    ids = IdFactory(clock=lambda: NOW * 1_000_000, rng=random.Random(1))
    first, second = ids.next(), ids.next()
    parsed = uuid.UUID(first)
    assert (parsed.version, parsed.variant, str(parsed)) == (8, uuid.RFC_4122, first)
    assert (parsed.int >> 64 & 0xFFF, uuid.UUID(second).int >> 64 & 0xFFF) == (0, 1)
    assert id_time_ms(first) == id_time_ms(second) == NOW
    assert first[18:] == second[18:] == ids.suffix
    ids = IdFactory(clock=lambda: NOW * 1_000_000)
    made = [ids.next() for _ in range(10_000)]
    assert len(set(made)) == 10_000
    assert made == sorted(made)
    assert id_time_ms(made[-1]) == NOW + 2  # 4,096 for each millisecond


def test_ids_of_two_makers_are_unique_and_in_order_while_the_clock_is_set_back() -> None:
    """A hundred thousand ids, with the clock going back by up to a second again and again."""
    steps = random.Random(7)
    times = list(itertools.accumulate(steps.choice((0, 0, 0, 1, 1, 2, 40, -30, -1000, 1000)) for _ in range(1000)))
    clock: Iterator[int] = iter([])
    makers = [IdFactory(clock=lambda: next(clock), rng=random.Random(seed)) for seed in (1, 2)]
    everything: set[str] = set()
    for maker in makers:
        latest = 0
        made: list[str] = []
        for step in times:
            now = NOW + step
            clock = itertools.repeat(now * 1_000_000)
            batch = [maker.next() for _ in range(50)]
            assert id_time_ms(batch[0]) in (max(now, latest), max(now, latest) + 1)
            latest = int(batch[-1][:8] + batch[-1][9:13], 16)
            made += batch
        assert made == sorted(made)
        everything.update(made)
    assert len(everything) == 100_000


@given(st.integers(-(2**70), 2**70))
def test_no_clock_makes_a_bad_id(now: int) -> None:
    assert id_time_ms(IdFactory(clock=lambda: now).next()) == min(max(now // 1_000_000, 0), 2**48 - 1)


@given(st.text(max_size=50))
def test_any_text_is_an_id_or_a_value_error(text: str) -> None:
    try:
        time = id_time_ms(text)
    except ValueError:
        return
    assert time is None or time >= -12_219_292_800_000
