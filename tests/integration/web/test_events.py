"""uProtocol over HTTP: CloudEvents that a bus of ours, httpx and the cloudevents package post to an application."""

import json
from base64 import b64decode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx
import pytest
from anyio.from_thread import start_blocking_portal
from cloudevents.core.bindings import http as their_http
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent
from fastapi import FastAPI
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from polybus import (
    Backoff,
    Bus,
    Code,
    ConnectFailed,
    DeadlineExceeded,
    Disconnected,
    Forbidden,
    Limits,
    Message,
    NoHandler,
    RemoteProtocolError,
    RequestError,
    TooLarge,
    TooManyRequests,
    Unauthorized,
    Unavailable,
    Unsupported,
    connect,
)
from polybus.cli.app import run
from polybus.events import LinkDown, LinkUp
from polybus.fastapi import attach
from polybus.message import Kind
from polybus.plugins import Identity
from polybus.protocols import UProtocol
from polybus.protocols._protobuf import ANY
from polybus.protocols.uprotocol import IdFactory
from polybus.protocols.uprotocol.http import frames_of, from_http, to_http
from tests.refusal import refused
from tests.support import BOUND, eventually, next_event
from tests.unit.protocols.uprotocol.support import HI

from .support import Slow, Uvicorn, echoing, running

JSON = {"content-type": "application/cloudevents+json"}
VCU, ASKER = "//VCU.VIN/body.access/1", "//hu.veh7/hmi.app/1"
IDS, SOON = IdFactory(), Backoff(initial=0.001)
PARTS = "specversion id type source sink priority ttl reqid hash plevel x"
NAMES = ["content-type", *(f"ce-{name}" for name in PARTS.split())]


def make_bus(**options: Any) -> Bus:
    bus = echoing(**{"limits": Limits(close_timeout=0.2), **options})

    @bus.handle("fail")
    async def fail() -> None:
        raise RequestError(Code.FAILED_PRECONDITION, "the motor is cold", detail={"degrees": -20})

    return bus


@asynccontextmanager
async def serving(bus: Bus, adapter: Any = None, **options: Any) -> AsyncIterator[Uvicorn]:
    app = FastAPI()
    attach(app, bus, "/events", protocol=adapter or UProtocol(entity=VCU), **options)
    with anyio.fail_after(BOUND):
        async with running(app) as server:
            yield server


def url_of(server: Uvicorn) -> str:
    return f"uprotocol+http://127.0.0.1:{server.port}/events"


@asynccontextmanager
async def joined(bus: Bus, adapter: UProtocol | None = None, theirs: UProtocol | None = None) -> AsyncIterator[Bus]:
    async with serving(bus, theirs) as server:
        async with connect(url_of(server), protocol=adapter, backoff=SOON) as client:
            yield client


def event(type: str = "req.v1", subject: str = "echo", **more: Any) -> dict[str, Any]:
    made: dict[str, Any] = {"specversion": "1.0", "id": IDS.next(), "type": type, "data_base64": HI}
    if type == "req.v1":
        facts = {"source": f"{ASKER}/rpc.response", "sink": f"{VCU}/rpc.{subject}", "priority": "CS4", "ttl": 5000}
    else:
        facts = {"source": f"{ASKER}/{subject}#Message"}
    return {**made, **facts, **more}


@asynccontextmanager
async def posting(server: Uvicorn) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", timeout=BOUND) as http:
        yield http


async def post(http: httpx.AsyncClient, made: Any, **headers: str) -> httpx.Response:
    return await http.post("/events", content=json.dumps(made), headers={**JSON, **headers})


# -- a bus at both ends ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("content", "format"), [("structured", "json"), ("binary", "protobuf"), ("batch", "json")])
async def test_a_bus_asks_publishes_and_notifies_over_http(content: Any, format: Any) -> None:
    bus = make_bus()
    heard, told = list[Any](), list[Any]()
    bus.handle("told")(lambda body: told.append(body))

    @bus.on("news.*")
    async def on_news(message: Message) -> None:
        heard.append((message.subject, message.body, message.attributes["source"]))

    ours, theirs = UProtocol(entity=ASKER, content=content, format=format), UProtocol(entity=VCU, format=format)
    async with joined(bus, ours, theirs) as client:
        value = {"a": [1, None, "ü"], "b": 1.5}
        assert await client.request("echo", value) == value
        assert await client.request("echo", b"\x00\xff") == b"\x00\xff"
        assert await client.request("echo") is None
        with pytest.raises(RequestError) as failed:
            await client.request("fail")
        assert (failed.value.code, failed.value.text) == (Code.FAILED_PRECONDITION, "the motor is cold")
        assert failed.value.detail == {"degrees": -20}
        with pytest.raises(NoHandler):
            await client.request("nobody")
        for number in range(20):
            await client.publish("news.today", number)
        await client.notify("told", b"raw")
        for _ in range(2):
            client.publish_nowait("news.last", {"x": 1})
        await eventually(lambda: (len(heard), told) == (22, [b"raw"]))
    assert [body for subject, body, _ in heard if subject == "news.today"] == [*range(20)]
    assert ("news.last", {"x": 1}, f"{ASKER}/news.last#Message") in heard


async def test_requests_wait_side_by_side_and_a_slow_one_holds_up_nobody() -> None:
    bus = make_bus()
    slow = Slow(bus)
    async with joined(bus) as client:
        waiting = client.request("slow")
        assert [await client.request("echo", number) for number in range(30)] == list(range(30))
        replies = [client.request("echo", number) for number in range(100)]  # more than wait at the same time
        assert [await reply for reply in replies] == list(range(100))
        assert not waiting.done()
        slow.let_go.set()
        assert await waiting == "at last"
        assert len(bus.peers) == 1


async def test_a_cancelled_request_stops_its_handler() -> None:
    bus = make_bus()
    slow = Slow(bus)
    async with joined(bus) as client:
        reply = client.request("slow", timeout=1000)  # longer than this test may take
        await slow.began.wait()
        reply.cancel()
        await slow.stopped.wait()
        assert await client.request("echo", 1) == 1


async def test_the_deadline_goes_along_and_the_server_answers_it() -> None:
    bus = make_bus()
    Slow(bus)
    async with joined(bus) as client:
        with pytest.raises(DeadlineExceeded):
            await client.request("slow", timeout=0.05)
        assert await client.request("echo", 1) == 1


async def test_a_server_over_http_only_answers() -> None:
    bus = make_bus()
    async with joined(bus) as client:
        assert await client.request("echo", 1) == 1
        with pytest.raises(Unsupported, match="answer"):
            await bus.peers[0].request("anything")
        await refused(client.subscribe("news.*"), Unsupported, match="answer")
        await refused(client.stream("lines"), Unsupported, match="answer")
        await bus.publish("news.today", 1)  # reaches nobody, and is no error


async def test_a_draining_server_says_so_and_one_that_is_gone_too() -> None:
    bus = make_bus()
    slow = Slow(bus)
    async with serving(bus) as server:
        async with connect(url_of(server), backoff=SOON) as client:
            waiting = client.request("slow")
            await slow.began.wait()
            await bus.drain(0.01)
            with pytest.raises(Unavailable):
                await waiting
            with pytest.raises((Unavailable, Disconnected)):
                await client.request("echo", 1)
        await refused(connect(url_of(server)), ConnectFailed, match="503")
    await refused(connect(url_of(server)), ConnectFailed, match="127.0.0.1")


# -- who is let in ---------------------------------------------------------------------------------------------------------


async def test_each_request_shows_its_credentials_and_who_they_are_is_the_peer() -> None:
    asked: list[str] = []

    def authenticate(handshake: Any) -> Any:
        asked.append(handshake.transport)
        user = handshake.headers.get("authorization", "").removeprefix("Bearer ")
        return Identity({"user": user}, key=user) if user in ("ann", "bob") else None

    bus = make_bus(
        authenticate=authenticate, authorize=lambda peer, verb, subject: subject != "fail" or peer.identity["user"] == "bob"
    )
    async with serving(bus) as server, posting(server) as http:
        assert (await post(http, event())).status_code == 401
        for user in ("ann", "bob", "ann"):
            assert (await post(http, event(), authorization=f"Bearer {user}")).status_code == 200
        assert sorted(peer.identity["user"] for peer in bus.peers) == ["ann", "bob"]
        assert set(asked) == {"http"}
        await refused(connect(url_of(server)), Unauthorized)
        async with connect(url_of(server), headers={"authorization": "Bearer ann"}) as client:
            assert await client.request("echo", 1) == 1
            with pytest.raises(Forbidden):
                await client.request("fail")


async def test_a_crowd_waits_for_a_slow_authenticate_and_not_all_at_once() -> None:
    asking, most = 0, 0
    go = anyio.Event()
    go.set()

    async def authenticate(handshake: Any) -> Identity:
        nonlocal asking, most
        asking += 1
        most = max(most, asking)
        await go.wait()
        asking -= 1
        return Identity("anybody")

    bus = make_bus(authenticate=authenticate, limits=Limits(close_timeout=0.2, handshakes=3))
    async with serving(bus) as server, connect(url_of(server)) as client:
        go = anyio.Event()
        replies = [client.request("echo", number) for number in range(20)]
        await eventually(lambda: asking == 3)
        go.set()
        assert [await reply for reply in replies] == list(range(20))
    assert most == 3


async def test_who_asks_in_another_name_is_another_peer_and_a_silent_one_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    bus = make_bus()
    async with serving(bus) as server, posting(server) as http:
        await post(http, event())
        await post(http, event(source="//other.veh7/hmi.app/1/rpc.response"))
        assert len(bus.peers) == 2
        events = bus.events()
        monkeypatch.setattr("polybus.bindings.cloudevents_server._SILENCE", -1.0)
        seen = await next_event(events, LinkDown)
        assert seen.reason.startswith("no request for")


# -- what is posted by others ------------------------------------------------------------------------------------------------


async def test_the_answer_to_a_request_is_the_response_and_the_rest_is_accepted() -> None:
    bus = make_bus()
    async with serving(bus) as server, posting(server) as http, bus.subscribe("news") as news:
        asked = event()
        response = await post(http, asked)
        answer = response.json()
        assert (response.status_code, response.headers["content-type"]) == (200, "application/cloudevents+json")
        assert (answer["type"], answer["reqid"]) == ("res.v1", asked["id"])
        assert ANY.decode(b64decode(answer["data_base64"])) == "hi"
        assert (answer["source"], answer["sink"]) == (asked["sink"], asked["source"])
        response = await post(http, event("pub.v1", "news"))
        assert (response.status_code, response.content) == (202, b"")
        assert (await anext(news)).body == "hi"


async def test_a_batch_has_a_batch_for_an_answer() -> None:
    bus = make_bus()
    async with serving(bus) as server, posting(server) as http, bus.subscribe("news") as news:
        events = [event(), event("pub.v1", "news"), event("req.v1", "nobody"), {"specversion": "1.0"}]
        headers = {"content-type": "application/cloudevents-batch+json; charset=utf-8"}
        response = await http.post("/events", content=json.dumps(events), headers=headers)
        assert response.headers["content-type"] == "application/cloudevents-batch+json"
        answers = {answer["reqid"]: answer.get("commstatus") for answer in response.json()}
        assert answers == {events[0]["id"]: None, events[2]["id"]: Code.UNIMPLEMENTED}
        assert (await anext(news)).body == "hi"
        assert bus.stats().malformed == 1


async def test_a_batch_of_protobuf_goes_to_a_server_of_json_and_is_answered_in_its_own_form() -> None:
    messages = [Message(Kind.REQUEST, f"{VCU}/rpc.echo", body={"n": n}, ttl=5.0) for n in range(3)]
    content = to_http(messages, UProtocol(entity=ASKER, format="protobuf"), "batch")
    async with serving(make_bus()) as server, posting(server) as http:
        response = await http.post("/events", content=content.body, headers=dict(content.headers))
        assert response.headers["content-type"] == "application/cloudevents-batch+protobuf"
        answers = from_http(response.headers, response.content)
        assert [answer.body for answer in answers if isinstance(answer, Message)] == [{"n": 0}, {"n": 1}, {"n": 2}]


async def test_answers_that_are_too_much_together_are_not_kept() -> None:
    bus = make_bus(limits=Limits(close_timeout=0.2, outbox_bytes=300_000))

    @bus.handle("large")
    async def large() -> bytes:
        return b"x" * 100_000

    async with serving(bus) as server, posting(server) as http:
        headers = {"content-type": "application/cloudevents-batch+json"}
        response = await http.post("/events", content=json.dumps([event("req.v1", "large") for _ in range(5)]), headers=headers)
        assert (response.status_code, "Limits.outbox_bytes" in response.text) == (413, True)
        assert (await post(http, event("req.v1", "large"))).status_code == 200
        assert bus.stats().running == 0


@pytest.mark.parametrize("theirs", ["structured", "binary"])
async def test_the_cloudevents_package_asks_and_reads_the_answer(theirs: str) -> None:
    asked = event()
    data = asked.pop("data_base64")
    made = CloudEvent({**asked, "datacontenttype": "application/protobuf"}, b64decode(data))
    message = their_http.to_binary_event(made) if theirs == "binary" else their_http.to_structured_event(made)
    async with serving(make_bus()) as server, posting(server) as http:
        response = await http.post("/events", content=message.body, headers=message.headers)
        assert response.status_code == 200, response.text
        answer = their_http.from_http(their_http.HTTPMessage(dict(response.headers), response.content), JSONFormat())
        found = answer.get_attributes()
        assert (found["type"], found["reqid"], found["sink"]) == ("res.v1", asked["id"], asked["source"])
        assert ("ce-reqid" in response.headers) == (theirs == "binary")


@pytest.mark.parametrize(
    ("body", "headers", "status", "text"),
    [
        (b"{}", {"content-type": "application/json"}, 415, "not an event"),
        (b"hello", {"content-type": "text/plain"}, 415, "not an event"),
        (b"{", JSON, 400, "not the JSON of an event"),
        (json.dumps(event(type="what.v1")).encode(), JSON, 400, "type"),
        (json.dumps(event("pub.v1", priority="CS9")).encode(), JSON, 400, "priority"),
        (json.dumps({**event("polybus.subscribe.v1"), "subject": "x"}).encode(), JSON, 400, "posted"),
        (b'{"a":"' + b"x" * 2_000_000 + b'"}', JSON, 413, "more than 1048576 bytes"),
        (b"\xff", {"content-type": "application/cloudevents-batch+protobuf"}, 400, "CloudEventBatch"),
        (b"", {"ce-specversion": "1.0", "ce-id": 'x","a":"b', "ce-type": "pub.v1", "ce-source": "//a/b/1/c#D"}, 400, "UUID"),
        (json.dumps(event()).encode(), {**JSON, "origin": "https://evil.example"}, 403, "origins"),
        (json.dumps(event()).encode(), {**JSON, "host": "evil.example"}, 421, "hosts"),
    ],
    ids=["json", "text", "broken", "type", "priority", "extension", "large", "batch", "header", "origin", "host"],
)
async def test_what_cannot_be_taken_is_refused_with_its_reason(body: bytes, headers: Any, status: int, text: str) -> None:
    async with serving(make_bus()) as server, posting(server) as http:
        response = await http.post("/events", content=body, headers=headers)
        assert (response.status_code, text in response.text) == (status, True), response.text
        assert (await post(http, event())).status_code == 200


async def test_an_id_in_flight_is_no_other_request_s_and_free_afterwards() -> None:
    bus = make_bus()
    slow, asked = Slow(bus), event("req.v1", "slow")
    async with serving(bus) as server, posting(server) as http:
        statuses: list[int] = []

        async def ask() -> None:
            statuses.append((await post(http, asked)).status_code)

        async with anyio.create_task_group() as group:
            group.start_soon(ask)
            await slow.began.wait()
            refused = await post(http, asked)
            assert (refused.status_code, "still in flight" in refused.text) == (409, True)
            slow.let_go.set()
        await ask()
        assert statuses == [200, 200]


@given(st.binary(max_size=200), st.dictionaries(st.sampled_from(NAMES), st.text(max_size=20), max_size=8))
def test_any_bytes_and_headers_are_frames_or_a_typed_error(body: bytes, headers: dict[str, str]) -> None:
    for format in ("json", "protobuf"):
        adapter = UProtocol(format=format)
        try:
            frames = frames_of(headers, body, adapter)
        except RemoteProtocolError:
            continue
        for frame in frames:
            try:
                adapter.codec().read(frame)
            except RemoteProtocolError:
                continue


@given(st.dictionaries(st.sampled_from(NAMES), st.text(max_size=60), max_size=10), st.binary(max_size=60))
def test_headers_near_an_event_become_one_or_a_typed_error(changed: dict[str, str], body: bytes) -> None:
    good = to_http([Message(Kind.REQUEST, f"{VCU}/rpc.echo", body=7, ttl=5.0)], UProtocol(entity=ASKER), "binary")
    headers = {**good.headers, **changed}
    for format in ("json", "protobuf"):
        adapter = UProtocol(format=format, mode="lenient")
        try:
            (frame,) = frames_of(headers, body or good.body, adapter)
        except RemoteProtocolError:
            continue
        assert adapter.codec().read(frame).attributes["id"] == headers["ce-id"].strip('"')


def test_the_doctor_says_that_a_server_over_http_only_answers(capsys: pytest.CaptureFixture[str]) -> None:
    with start_blocking_portal("asyncio") as portal:
        with portal.wrap_async_context_manager(make_bus().serve("uprotocol+http://127.0.0.1:0/events")) as listener:
            assert run(["doctor", listener.url]) == 0
    assert "only responds on this link" in capsys.readouterr().out


# -- servers that are not ours ----------------------------------------------------------------------------------------------


OTHERS = {
    "specversion": "1.0",
    "id": "018bcfe5-687b-8002-8000-000000000007",
    "type": "res.v1",
    "source": "/polybus/1/rpc.echo",
    "sink": "/polybus/1/rpc.response",
    "reqid": "018bcfe5-687b-8001-8000-000000000007",
}


@asynccontextmanager
async def foreign(answer: Any) -> AsyncIterator[str]:
    unknown = Route("/events", lambda request: Response(status_code=501), methods=["OPTIONS"])
    app = Starlette(routes=[Route("/events", answer, methods=["POST"]), unknown])
    with anyio.fail_after(BOUND):
        async with running(app) as server:
            yield url_of(server)


@pytest.mark.parametrize(
    ("response", "error", "text"),
    [
        (Response("busy", 429), TooManyRequests, "busy"),
        (Response("long", 413), TooLarge, "long"),
        (Response("gone", 404), NoHandler, "gone"),
        (Response("later", 503), Unavailable, "later"),
        (Response("late", 504), DeadlineExceeded, "deadline|time|late"),
        (Response(status_code=202), Unavailable, "without an event"),
        (Response("<html>", 200, media_type="text/html"), RequestError, "without an event"),
        (Response("oops", 500), RequestError, "oops"),
        (Response("who", 401), Unauthorized, "who"),
        (Response("x" * 3_000_000, 200), Disconnected, "more than"),
        (Response("[]", 200, media_type="application/cloudevents-batch+json"), RequestError, "no event for this"),
        (Response("{}", 200, media_type="application/cloudevents+json"), RequestError, "no event for this"),
        (Response(json.dumps(OTHERS), 200, media_type="application/cloudevents+json"), RequestError, "no event for this"),
        (Response("{", 200, media_type="application/cloudevents+json"), RequestError, "is not an event"),
    ],
    ids=["429", "413", "404", "503", "504", "202", "html", "500", "401", "endless", "none", "empty", "another's", "cut off"],
)
async def test_a_status_that_is_no_answer_becomes_its_error(response: Response, error: Any, text: str) -> None:
    async def answer(request: Request) -> Response:
        return response

    async with foreign(answer) as url, connect(url, backoff=SOON) as client:
        with pytest.raises(error, match=text):
            await client.request("echo", 1)


async def tell(client: Bus, verb: str) -> None:
    await (client.notify("told", 1) if verb == "notify" else client.publish("news", 1))


@pytest.mark.parametrize(("verb", "content"), [("publish", "structured"), ("notify", "binary"), ("publish", "batch")])
async def test_what_the_server_cannot_take_ends_the_link_with_its_reason_and_the_link_comes_back(
    verb: str, content: Any, caplog: pytest.LogCaptureFixture
) -> None:
    answers = [Response("the store is full", 503)]

    async def answer(request: Request) -> Response:
        return answers.pop() if answers else Response(status_code=202)

    async with foreign(answer) as url, connect(url, protocol=UProtocol(content=content, peer=VCU), backoff=SOON) as client:
        events = client.events()
        await tell(client, verb)
        down = await next_event(events, LinkDown)
        assert (down.code, down.reason) == (1006, "the server answered 503: the store is full")
        await next_event(events, LinkUp)
        await tell(client, verb)
        await client.drain(BOUND)
        assert client.stats().reconnects == 1
    assert {(record.name, record.levelname) for record in caplog.records} == {("polybus.link", "WARNING")}


@pytest.mark.parametrize(("verb", "status", "error"), [("publish", 401, Unauthorized), ("notify", 403, Forbidden)])
async def test_who_may_not_tell_a_server_is_told_so_and_does_not_try_again(
    verb: str, status: int, error: Any, caplog: pytest.LogCaptureFixture
) -> None:
    posted = 0

    async def answer(request: Request) -> Response:
        nonlocal posted
        posted += 1
        return Response("who are you", status)

    async with foreign(answer) as url, connect(url, backoff=SOON) as client:
        events = client.events()
        await tell(client, verb)
        down = await next_event(events, LinkDown)
        assert (down.code, down.reason) == (4000 + status, "who are you")
        for _ in range(2):
            with pytest.raises(error, match="who are you"):
                await client.request("echo", 1)
            with pytest.raises(error, match="who are you"):
                await client.notify("told", 1)
        assert (posted, client.stats().reconnects) == (1, 0)
    assert {(record.name, record.levelname) for record in caplog.records} == {("polybus.link", "WARNING")}


async def test_a_server_that_goes_away_while_it_is_told_is_named_in_the_reason(caplog: pytest.LogCaptureFixture) -> None:
    began = anyio.Event()

    async def answer(request: Request) -> Response:
        began.set()
        await anyio.sleep_forever()
        raise AssertionError

    app = Starlette(routes=[Route("/events", answer, methods=["POST"])])
    with anyio.fail_after(BOUND):
        async with running(app) as server:
            async with connect(url_of(server), backoff=SOON) as client:
                events = client.events()
                waiting = client.request("echo", 1)
                await client.publish("news", 1)
                await began.wait()
                for connection in list(server.server_state.connections):
                    connection.transport.abort()
                down = await next_event(events, LinkDown)
                assert down.reason.startswith(f"127.0.0.1:{server.port}: ")
                with pytest.raises(Disconnected, match="127.0.0.1") as lost:
                    await waiting
                assert lost.value.sent
    told = {(record.name, record.levelname) for record in caplog.records if record.name.startswith("polybus")}
    assert told == {("polybus.link", "WARNING")}


async def test_publications_that_wait_go_in_one_batch() -> None:
    seen: list[int] = []
    held = anyio.Event()

    async def answer(request: Request) -> Response:
        seen.append(len(from_http(request.headers, await request.body())))
        await held.wait()
        return Response(status_code=202)

    async with foreign(answer) as url, connect(url, protocol=UProtocol(content="batch")) as client:
        for number in range(50):
            await client.publish("news", number)
        await eventually(lambda: seen)  # the first one is on its way
        held.set()
        await client.drain(BOUND)
    assert sum(seen) == 50
    assert len(seen) <= 3
