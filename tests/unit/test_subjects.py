"""What is a subject, what is a pattern, and what becomes of names that only foreign peers use."""

from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polybus import BadReply, BadRequest, Bus, Channel, Code, Kind, LocalProtocolError, Message, Unsupported
from polybus._util.pattern_index import SubjectIndex
from polybus.plugins.extensions import core_of
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


async def test_foreign_peers_may_use_names_with_empty_tokens_among_each_other() -> None:
    bus, heard = Bus(), []
    bus.relay("ordinary.>")
    bus._pubsub.relay.patterns.add("a..b", "a..b")  # what a peer of ours that knows no rule would relay

    @bus.on(">", inline=True)
    def on_any(message: Message) -> None:
        heard.append(message.subject)

    async with pair(bus) as one, pair(bus) as two:
        link = core_of(two.peers[0]).link
        link.write(Message(Kind.SUBSCRIBE, "a..b"), core_of(two.peers[0]))
        await eventually(lambda: any(core_of(peer).patterns for peer in bus.peers))
        core_of(one.peers[0]).link.write(Message(Kind.PUBLISH, "a..b", None, b"1"), core_of(one.peers[0]))
        core_of(one.peers[0]).link.write(Message(Kind.PUBLISH, "end", None, b"1"), core_of(one.peers[0]))
        await eventually(lambda: heard)
        assert heard == ["end"]  # no pattern matches such a name
        assert bus.stats().malformed == 0
        await eventually(lambda: two.stats().received >= 1)


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


async def test_an_item_that_does_not_fit_is_the_mistake_of_who_sent_it() -> None:
    bus = Bus()

    @bus.handle("double")
    async def double(ch: Channel[int, int]) -> None:
        async for number in ch:
            await ch.send(2 * number)

    @bus.handle("wrong")
    async def wrong(ch: Channel[Any, Any]) -> None:
        await ch.send("not a number")
        await anyio.sleep_forever()

    async with pair(bus) as client:
        for asker in (client, bus):
            async with asker.channel("double", receives=int) as channel:
                await channel.send(2)
                assert await anext(channel) == 4
                await channel.send("two")
                with pytest.raises(BadRequest, match="int") as caught:
                    await anext(channel)
                assert caught.value.code is Code.INVALID_ARGUMENT
            async with asker.channel("wrong", receives=int) as channel:
                with pytest.raises(BadReply, match="int"):
                    await anext(channel)
        assert bus.stats().failed == 0


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
