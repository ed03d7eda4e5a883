"""nats-py at the other end of a real NATS server: as client of ours, and as service for ours."""

from typing import Any

from polybus import Bus, Context, NotFound, connect
from tests.support import eventually
from tests.unit.opentelemetry.spans import Traces

from .nats_py_peer import Msg, NatsPy
from .nats_servers import NatsServer


async def test_the_context_of_a_trace_goes_to_them_and_comes_from_them_as_a_header(server: NatsServer, theirs: NatsPy) -> None:
    traces, heard = Traces(), list[str]()
    bus = traces.bus()

    @bus.on("news.*")
    async def news(title: str) -> None:
        heard.append(title)

    async def answer(message: Msg) -> None:
        await message.respond(b"1")

    asked = await theirs.subscribe("count", answer)
    told = await theirs.subscribe("told")
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with connect(server.url, bus=bus):
        assert await bus.request("count") == 1
        await bus.publish("told", 1)
        await eventually(lambda: len(told) == 1)
        await theirs.publish("news.today", b'"hello"', headers={"traceparent": parent})
        await eventually(lambda: heard == ["hello"] and len(traces.spans) == 3)
    for span, message in (traces.span("count", "CLIENT"), asked[0]), (traces.span("send told", "PRODUCER"), told[0]):
        assert message.headers is not None
        assert message.headers["traceparent"].startswith(f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}-")
    handled = traces.span("process news.*", "CONSUMER")
    assert handled.parent is not None and (handled.parent.span_id, handled.parent.is_remote) == (0xB7AD6B7169203331, True)


async def test_their_request_reaches_our_handler_and_its_answer_is_json(server: NatsServer, theirs: NatsPy) -> None:
    bus = Bus()

    @bus.handle("user.get")
    async def get_user(query: dict[str, Any], ctx: Context) -> Any:
        assert ctx.message.ttl is None
        return {"id": query["id"], "name": "ü"}

    @bus.handle("raw")
    async def raw(body: bytes) -> bytes:
        return body[::-1]

    async with connect(server.url, bus=bus):
        assert (await theirs.request("user.get", b'{"id":7}')).data == '{"id":7,"name":"ü"}'.encode()
        assert (await theirs.request("raw", b"\x00\xffabc")).data == b"cba\xff\x00"


async def test_an_error_of_ours_is_one_of_the_service_convention_for_them(server: NatsServer, theirs: NatsPy) -> None:
    bus = Bus()

    @bus.handle("fail")
    async def fail() -> None:
        raise NotFound("there is no\nuser 7", reason="no_user", detail={"id": 7})

    async with connect(server.url, bus=bus):
        answer = await theirs.request("fail")
        assert answer.headers is not None
        assert answer.headers["Nats-Service-Error"] == "there is no user 7"
        assert answer.headers["Nats-Service-Error-Code"] == "5"
        assert answer.headers["Polybus-Reason"] == "no_user"
        assert answer.data == b'{"id":7}'


async def test_our_request_reaches_their_service(server: NatsServer, theirs: NatsPy) -> None:
    async def echo(message: Msg) -> None:
        await message.respond(message.data)

    seen = await theirs.subscribe("echo", echo, queue="q")
    async with connect(server.url) as bus:
        assert await bus.request("echo", {"a": [1, None]}, timeout=20) == {"a": [1, None]}
        assert await bus.request("echo", b"\x00raw") == b"\x00raw"
        assert await bus.request("echo") is None
        assert seen[0].data == b'{"a":[1,null]}'
        assert seen[0].headers is not None
        assert 0 < int(seen[0].headers["Polybus-Ttl"]) <= 20_000


async def test_a_queue_group_is_shared_with_theirs(server: NatsServer, theirs: NatsPy) -> None:
    bus, ours = Bus(), list[int]()

    @bus.handle("work")
    async def work(body: int) -> str:
        ours.append(body)
        return "ours"

    async def answer(message: Msg) -> None:
        await message.respond(b'"theirs"')

    seen = await theirs.subscribe("work", answer, queue="q")
    async with connect(server.url, bus=bus), connect(server.url) as client:
        replies = [client.request("work", number) for number in range(200)]
        answers = [await reply for reply in replies]
        assert set(answers) == {"ours", "theirs"}
        assert len(ours) + len(seen) == 200
        assert sorted([*ours, *(int(message.data) for message in seen)]) == list(range(200))


async def test_publications_go_both_ways_with_their_headers(server: NatsServer, theirs: NatsPy) -> None:
    seen = await theirs.subscribe("news.>")
    async with connect(server.url) as bus, bus.subscribe("news.*") as news:
        await bus.publish("news.ours", {"a": 1}, headers={"x-kind": "äöü"})
        await bus.publish("news.plain", b"raw")
        await eventually(lambda: len(seen) == 2)
        assert (seen[0].subject, seen[0].data) == ("news.ours", b'{"a":1}')
        assert seen[0].headers is not None
        assert seen[0].headers["x-kind"].strip() == "äöü"
        assert (seen[1].data, [*(seen[1].headers or ())]) == (b"raw", ["Polybus-Echo"])  # for this bus listens, too
        own = [await anext(news), await anext(news)]  # from this bus itself, and not from the server again
        await theirs.publish("news.theirs", b'{"b":2}', headers={"X-Kind": "flash"})
        await theirs.publish("news.text", b"no JSON")
        message, text = await anext(news), await anext(news)
        assert (message.subject, message.body, message.headers) == ("news.theirs", {"b": 2}, {"X-Kind": "flash"})
        assert text.body == b"no JSON"
        assert [one.subject for one in own] == ["news.ours", "news.plain"]
        assert len(news) == 0
