"""`Bus.use(hook, outgoing=True)`: what leaves is shown to a hook, which may add headers and is told how it ended."""

import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from attrs import define, field

from polybus import Bus, Context, Disconnected, LocalProtocolError, Message, NotFound, Outcome, ReservedSubject, connect
from polybus.testing import NatsEngine, pair
from tests.support import BOUND, eventually
from tests.unit.answering import answering


@define
class Hook:
    seen: list[tuple[str, str | int, str]] = field(factory=list)
    ended: list[Outcome] = field(factory=list)

    def __call__(self, message: Message) -> Callable[[Outcome], object]:
        assert message.headers is not None
        message.headers["x-tenant"] = "a"
        whom = "" if message.peer is None else message.peer.protocol
        self.seen.append((message.kind.value, message.subject, whom))
        return self.ended.append


def watched() -> tuple[Bus, Hook]:
    bus, hook = Bus(), Hook()
    bus.use(hook, outgoing=True)
    return bus, hook


@pytest.mark.parametrize("protocol", ["ubre", "csb", "jrep", "uprotocol"])
async def test_each_verb_is_shown_once_and_takes_the_header_along(protocol: str) -> None:
    server, headers = Bus(), dict[str, Any]()
    client, hook = watched()

    @server.handle("ask")
    @server.handle("tell")
    @server.on("news")
    async def note(ctx: Context) -> None:
        headers[str(ctx.message.subject)] = ctx.message.headers

    @server.handle("tail")
    async def tail(ctx: Context) -> AsyncIterator[int]:
        headers["tail"] = ctx.message.headers
        yield 1

    async with pair(server, protocol=protocol, client=client):
        await client.request("ask", headers={"x-own": "1"})
        await client.notify("tell")
        await client.publish("news")
        async with client.stream("tail") as items:
            assert [item async for item in items] == [1]
        await eventually(lambda: len(headers) == 4)
    kinds = {"request": "ask", "notify": "tell", "publish": "news", "open": "tail"}
    assert hook.seen == [(kind, subject, "" if kind == "publish" else protocol) for kind, subject in kinds.items()]
    assert headers.pop("ask") == {"x-own": "1", "x-tenant": "a"}
    assert headers == dict.fromkeys(("tell", "news", "tail"), {"x-tenant": "a"})
    assert hook.ended == [Outcome(received=1), Outcome(), Outcome(), Outcome(received=1)]


async def test_what_a_bus_asks_itself_is_shown_too() -> None:
    bus, hook = watched()
    got: list[Any] = []

    @bus.handle("ask")
    async def ask(ctx: Context) -> None:
        got.append(ctx.message.headers)
        raise NotFound("nothing")

    @bus.on("news")
    async def news(ctx: Context) -> None:
        got.append(ctx.message.headers)

    async with bus:
        with pytest.raises(NotFound):
            await bus.request("ask")
        with pytest.raises(NotFound):
            await bus.as_("ann").request("ask")
        await bus.publish("news", 1)
        await eventually(lambda: len(got) == 3)
    assert got == [{"x-tenant": "a"}] * 3
    assert [type(outcome.error).__name__ for outcome in hook.ended] == ["NotFound", "NotFound", "NoneType"]


async def test_what_the_bus_says_by_itself_is_not_shown() -> None:
    server = Bus()
    client, hook = watched()
    async with server.serve("ubre+tcp://127.0.0.1:0") as listener, connect(listener.url, bus=client):
        async with client.subscribe("news.*"):
            assert await client.peers[0].extended()
    assert hook.seen == []


async def test_between_the_nodes_of_a_cluster_headers_go_along_and_questions_to_nodes_are_not_shown() -> None:
    async with NatsEngine("tcp://127.0.0.1:0") as engine:
        one, hook = Bus(cluster=engine.url), Hook()
        other, got = Bus(cluster=engine.url), list[Any]()
        one.use(hook, outgoing=True)

        @other.handle("ask")
        async def ask(ctx: Context) -> int:
            got.append(ctx.message.headers)
            return 1

        async with other, one:
            await one.nodes()
            await one.user("ann").online()
            assert await one.request("ask") == 1
            with pytest.raises(Disconnected):
                await one.user("ann").request("page.title")
    assert hook.seen == [("request", "ask", "nats"), ("request", "page.title", "nats")]
    assert got == [{"x-tenant": "a"}]


async def test_what_a_hook_raises_is_raised_by_the_verb_and_the_others_are_told() -> None:
    bus, hook = watched()

    def refuse(message: Message) -> None:
        raise LookupError("no tenant")

    bus.use(refuse, outgoing=True)
    async with pair(Bus(), client=bus):
        with pytest.raises(LookupError):
            await bus.request("ask")
        with pytest.raises(LookupError):
            await bus.publish("news")
    assert [type(outcome.error) for outcome in hook.ended] == [LookupError, LookupError]


@pytest.mark.parametrize(
    ("added", "error"),
    [
        ({"ReplyTo": "x"}, ReservedSubject),
        ({"x": "a\nb"}, LocalProtocolError),
        ({"x": 1}, LocalProtocolError),
        ({"x": "a" * 100_000}, LocalProtocolError),
    ],
)
async def test_what_a_hook_adds_is_held_to_the_rules_of_headers(added: dict[str, str], error: type[Exception]) -> None:
    bus = Bus()

    def hook(message: Message) -> None:
        message.headers = {**(message.headers or {}), **added}

    bus.use(hook, outgoing=True)
    async with pair(Bus(), client=bus):
        with pytest.raises(error):
            await bus.request("ask")


async def test_a_hook_that_fails_when_it_is_told_the_outcome_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    client = Bus()
    client.use(lambda message: lambda outcome: 1 / 0, outgoing=True)
    async with pair(answering(), client=client):
        with caplog.at_level(logging.ERROR, "polybus"):
            assert await client.request("echo", 1, timeout=BOUND) == 1
    assert "outgoing hook failed" in caplog.text and "ZeroDivisionError" in caplog.text


class Middleman:
    async def __call__(self, *arguments: Any) -> Any: ...


@pytest.mark.parametrize("outgoing", [False, True])
def test_a_class_is_used_by_an_object_of_it(outgoing: bool) -> None:
    bus: Any = Bus()
    with pytest.raises(TypeError, match=r"bus\.use\(Middleman\): pass an instance instead of the class, bus\.use\(Middle"):
        bus.use(Middleman, outgoing=outgoing)


def test_what_is_awaited_is_no_hook_for_what_leaves() -> None:
    bus: Any = Bus()
    bus.use(Middleman())
    for hook in (Middleman(), Middleman().__call__):
        with pytest.raises(TypeError, match="pass a plain function: request\\(\\) does not wait"):
            bus.use(hook, outgoing=True)
    with pytest.raises(TypeError, match="def hook"):
        bus.use(5, outgoing=True)
