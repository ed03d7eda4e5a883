"""What is a subject, what is a pattern, and what becomes of names that only foreign peers use."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polybus import Bus, LocalProtocolError, Unsupported
from polybus._util.pattern_index import SubjectIndex
from polybus.subjects import check_pattern, check_subject, matches
from polybus.testing import pair
from tests.refusal import refused
from tests.support import eventually

EMPTY_TOKENS = ["a..b", ".a", "a.", ".", "..", "a.b..", "a..*"]


@pytest.mark.parametrize("text", EMPTY_TOKENS)
def test_a_name_with_an_empty_token_is_refused(text: str) -> None:
    for check in (check_subject, check_pattern):
        with pytest.raises(LocalProtocolError, match="empty token"):
            check(text)
    bus = Bus()
    for register in (bus.handle, bus.on, bus.subscribe, bus.relay):
        with pytest.raises(LocalProtocolError, match="empty token"):
            register(text)


@pytest.mark.parametrize(
    "text", ["a", "a.b", "a b", "a-b.c_d", "Ärger.ß", "//host/body.access/1/rpc.Set", "a//b", "a:b", "a.{b", "1"]
)
def test_other_names_are_allowed(text: str) -> None:
    check_subject(text)
    check_pattern(text)


@pytest.mark.parametrize(
    "text", ["a.*", "*", ">", "a.>", "{name}", "//host/*/1", "a\x00", "a\nb", "a\x7f", "\ud800", "", "a" * 1025]
)
async def test_a_wildcard_or_a_control_character_in_a_published_subject_is_told(text: str) -> None:
    async with pair(Bus()) as client:
        for send in (client.publish_nowait, client.request, client.stream):
            with pytest.raises(LocalProtocolError):
                send(text)
        for verb in (client.publish, client.notify, client.peers[0].publish):
            with pytest.raises(LocalProtocolError):
                await verb(text)


def test_a_handler_of_a_pattern_is_told_where_to_put_what_varies() -> None:
    with pytest.raises(LocalProtocolError, match="'tank.{id}' is a pattern.*put the variable part into the body"):
        Bus().handle("tank.{id}")


@pytest.mark.parametrize("pattern", ["room.{room-id}", "{}", "{7}", "{a}.{a}", "a.{b c}.d", "a.>.b"])
def test_a_name_in_braces_that_cannot_be_handed_over_is_told(pattern: str) -> None:
    for register in (Bus().on, Bus().subscribe):
        with pytest.raises(LocalProtocolError, match="pattern"):
            register(pattern)


@given(st.sampled_from(EMPTY_TOKENS), st.sampled_from(["*", "*.*", "*.*.*", ">", "a.*", "a.>", "a.*.b", "*.a", *EMPTY_TOKENS]))
def test_a_name_with_an_empty_token_is_matched_by_itself_alone(subject: str, pattern: str) -> None:
    index: SubjectIndex[int] = SubjectIndex()
    index.add(pattern, 1)
    assert matches(pattern, subject) == (pattern == subject) == bool(index.match(subject))
    index.remove(pattern, 1)
    assert not index.match(subject)


async def test_handlers_of_numbers_do_not_hinder_a_link_that_has_names(caplog: pytest.LogCaptureFixture) -> None:
    server, client, heard = Bus(), Bus(), list[Any]()

    @client.on(7, inline=True)
    def on_seven(body: Any) -> None:
        heard.append(body)

    client.handle(8, inline=True)(lambda: 8)
    async with pair(server, client=client):
        assert "gets no subscription to 7" in caplog.text
        assert await client.request(8) == 8
        caplog.clear()
        client.on(9, inline=True)(on_seven)
        await eventually(lambda: "9" in caplog.text)
        assert "failed" not in caplog.text
        await refused(client.subscribe(7), Unsupported, "7")
        with pytest.raises(Unsupported):
            await client.publish(7, "to nobody who could take it")
    assert heard == ["to nobody who could take it"]


@pytest.mark.parametrize(
    ("pattern", "token"),
    [
        *(("a*b", "a*b"), ("a.**", "**"), ("a.#", "#"), ("a.+", "+"), ("a.b>", "b>"), ("news.{x", "{x")),
        *(("news.x}", "x}"), ("a/+/b", "+"), ("a/#", "#")),
    ],
)
def test_wildcards_of_other_systems_are_warned_of_everywhere(
    pattern: str, token: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def hear(body: object) -> None: ...

    for give in (Bus().subscribe, Bus().relay, lambda pattern: Bus().on(pattern)(hear)):
        caplog.clear()
        give(pattern)
        (record,) = caplog.records
        assert record.levelname == "WARNING" and f"{token!r} is matched literally" in record.getMessage()


@pytest.mark.parametrize("pattern", ["a.*", "a.>", "*", ">", "a.{x}.b", "//a.b/c*/d", "//a.b/c#d/e+", 7, "a.b"])
def test_patterns_that_mean_what_they_say_are_not(pattern: str | int, caplog: pytest.LogCaptureFixture) -> None:
    Bus().subscribe(pattern)
    assert not caplog.records
