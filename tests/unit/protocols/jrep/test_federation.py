"""Buses over J.REP: what a foreign client sees, isolation of sessions, and what a real Errai fails (notes section 5)."""

import enum
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import anyio
import pytest

from polybus import Backoff, Bus, ConnectFailed, Context, Limits, Route, Unsupported, bridge, connect
from polybus._core.runtime.services import Services
from polybus.errors import Code, Conflict, RemoteError, ReservedSubject
from polybus.events import LinkUp
from polybus.protocols.jrep import BusState, JavaTypes, Jrep, RemoteInterface, bus_states
from polybus.testing import pair
from tests.support import BOUND, eventually, next_event

from .raw import Peer, raw

URL = "jrep+tcp://127.0.0.1:0"


def make_bus(**options: Any) -> Bus:
    bus = Bus(**options)

    @bus.handle("barrier")
    async def barrier() -> None:
        pass

    @bus.handle("echo")
    async def echo(body: Any) -> Any:
        return body

    return bus


@asynccontextmanager
async def federated(server: Bus, client: Bus | None = None, **options: Any) -> AsyncIterator[Bus]:
    """Two of our buses over J.REP in memory."""
    url = f"jrep+memory://federated-{id(server)}"
    with anyio.fail_after(BOUND):
        async with server.serve(url), connect(url, bus=client, **options) as connected:
            yield connected


@asynccontextmanager
async def foreign_server(serve: Callable[[Any], Awaitable[None]]) -> AsyncIterator[str]:
    """The URL of a server by hand; it ends with the block."""
    with anyio.fail_after(BOUND):
        async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener, anyio.create_task_group() as group:
            group.start_soon(listener.serve, serve)
            yield f"jrep+tcp://127.0.0.1:{listener.extra(anyio.abc.SocketAttribute.local_port)}"
            group.cancel_scope.cancel()


@asynccontextmanager
async def served(bus: Bus, clients: int = 1) -> AsyncIterator[list[Peer]]:
    """Foreign clients of a bus, associated."""
    with anyio.fail_after(BOUND):
        async with bus.serve(URL) as listener, AsyncExitStack() as stack:
            peers = [await stack.enter_async_context(raw(listener.url)) for _ in range(clients)]
            for peer in peers:
                await peer.associate()
            yield peers


async def test_a_foreign_client_is_told_of_handlers_and_exact_subscriptions() -> None:
    bus = make_bus()

    @bus.on("news.today")
    async def on_news(body: Any) -> None: ...

    @bus.on("other.*")
    async def on_other(body: Any) -> None: ...

    async with bus.serve(URL) as listener, raw(listener.url) as peer:
        finish = await peer.associate()
        assert set(finish["RemoteServices"].split(",")) == {"ServerBus", "ServerEchoService", "barrier", "echo", "news.today"}
        assert finish["CapabilitiesFlags"]
        assert "PolybusTtl" not in finish

        @bus.handle("late")
        async def late() -> None: ...

        told = await peer.hear("RemoteSubscribe")
        assert (told["ToSubject"], told["Subject"]) == ("ClientBus", "late")
        async with bus.subscribe("later"):
            assert (await peer.hear("RemoteSubscribe"))["Subject"] == "later"
        assert (await peer.hear("RemoteUnsubscribe"))["Subject"] == "later"
        async with bus.subscribe("later.*"):  # a pattern cannot be told, and that harms nobody
            assert await peer.nothing_more() == []


@pytest.mark.parametrize("later", [False, True], ids=["sync", "async"])
async def test_a_foreign_client_is_told_only_of_what_it_may_use(later: bool) -> None:
    def may(peer: Any, verb: str, subject: Any) -> bool:
        return not str(subject).startswith("admin.")

    async def may_later(peer: Any, verb: str, subject: Any) -> bool:
        await anyio.lowlevel.checkpoint()
        return may(peer, verb, subject)

    bus = make_bus(authorize=may_later if later else may)

    @bus.handle("admin.vault")
    async def vault() -> None: ...

    @bus.on("admin.news")
    async def on_news(body: Any) -> None: ...

    with anyio.fail_after(BOUND):
        async with bus.serve(URL) as listener, raw(listener.url) as peer:
            told = set((await peer.associate())["RemoteServices"].split(","))

            @bus.handle("admin.late")
            async def late() -> None: ...

            async with bus.subscribe("admin.later"), bus.subscribe("open.later"):
                while not {"barrier", "echo", "open.later"} <= told:
                    told.add((await peer.hear("RemoteSubscribe"))["Subject"])
                told |= {message["Subject"] for message in await peer.nothing_more()}
            assert told == {"ServerBus", "ServerEchoService", "barrier", "echo", "open.later"}


async def test_a_foreign_client_asks_and_is_answered_in_marked_values_and_by_the_echo_service() -> None:
    async with served(make_bus()) as (peer,):
        value = {"^EncodedType": "java.util.ArrayList", "^ObjectID": "1", "^Value": ["a", None]}
        await peer.say({"ToSubject": "echo", "Value": value, "ReplyTo": "echo:1:RespondTo:RPC", "ErrorTo": "ClientBusErrors"})
        assert await peer.hear() == {"ToSubject": "echo:1:RespondTo:RPC", "Value": value}
        await peer.say({"ToSubject": "ServerEchoService", "ReplyTo": "SSEAgent"})
        assert await peer.hear() == {"ToSubject": "SSEAgent"}


async def test_any_reply_subject_may_be_used_and_several_times_at_once() -> None:
    bus = make_bus()
    gate = anyio.Event()

    @bus.handle("slow")
    async def slow(body: Any) -> Any:
        await gate.wait()
        return body

    async with served(bus) as (peer,):
        for number in range(3):
            await peer.say({"ToSubject": "slow", "Value": str(number), "ReplyTo": "mine"})
        await peer.nothing_more()
        gate.set()
        answers = [await peer.hear() for _ in range(3)]
        assert sorted(answer["Value"] for answer in answers) == ["0", "1", "2"]
        assert {answer["ToSubject"] for answer in answers} == {"mine"}


async def test_an_error_has_all_that_an_errai_client_looks_for_and_no_stack() -> None:
    bus = make_bus()

    @bus.handle("fail")
    async def fail(body: Any) -> None:
        if body == "secret":
            raise ValueError("hunter2")
        raise Conflict("twice", reason="double", detail={"a": 1})

    async with served(bus) as (peer,):
        await peer.say({"ToSubject": "fail", "Value": "x", "ReplyTo": "f:1:RespondTo:RPC", "ErrorTo": "f:1:Errors:RPC"})
        error = await peer.hear()
        assert (error["ToSubject"], error["ErrorMessage"]) == ("f:1:Errors:RPC", "twice")
        assert error["AdditionalDetails"] == "FAILED_PRECONDITION (double)"
        thrown = error["Throwable"]
        assert (thrown["^EncodedType"], thrown["message"]) == ("java.lang.RuntimeException", "twice")
        assert thrown["stackTrace"]["^Value"] == []
        await peer.say({"ToSubject": "fail", "Value": "secret", "ReplyTo": "f:2:RespondTo:RPC", "ErrorTo": "f:2:Errors:RPC"})
        text = json.dumps(await peer.hear())
        assert "hunter2" not in text and "Traceback" not in text
        await peer.say({"ToSubject": "fail", "Value": "x", "ReplyTo": "f:3:RespondTo:RPC"})
        assert (await peer.hear())["ToSubject"] == "ClientBusErrors", "without ErrorTo the client's bus is told"


async def test_without_reply_to_it_goes_to_listeners_and_to_the_handler() -> None:
    bus, heard = make_bus(), list[Any]()

    @bus.handle("job")
    async def job(body: Any) -> str:
        heard.append(("handle", body))
        return "nobody reads this"

    @bus.on("job")
    async def on_job(body: Any) -> None:
        heard.append(("on", body))

    async with served(bus) as (peer,):
        await peer.say({"ToSubject": "job", "Value": "v"})
        assert await peer.nothing_more() == []
        await eventually(lambda: len(heard) == 2)
    assert sorted(heard) == [("handle", "v"), ("on", "v")]


async def test_a_client_cannot_disconnect_another_one_or_listen_to_the_buses() -> None:
    async with served(make_bus(), 2) as (ann, bob):
        await ann.say({"ToSubject": "ClientBus", "CommandType": "Disconnect", "Reason": "spoof"})
        for subject in ("ServerBus", "echo"):
            await ann.say({"ToSubject": "ServerBus", "CommandType": "RemoteSubscribe", "Subject": subject})
        complaints = await ann.nothing_more()
        assert {complaint["ToSubject"] for complaint in complaints} == {"ClientBusErrors"}
        await bob.say({"ToSubject": "echo", "Value": "secret", "ReplyTo": "e:1:RespondTo:RPC"})
        assert (await bob.hear())["Value"] == "secret"
        assert await ann.nothing_more() == [], "no copy of what another one asks"
        assert await bob.nothing_more() == []


async def test_a_relay_passes_on_with_all_parts_and_not_back() -> None:
    bus = make_bus()
    bus.relay("chat.>")
    async with served(bus, 2) as (ann, bob):
        for peer in (ann, bob):
            await peer.say({"ToSubject": "ServerBus", "CommandType": "RemoteSubscribe", "Subject": "chat.room"})
            await peer.nothing_more()
        node = {"^EncodedType": "x.Node", "^ObjectID": "1", "count": 3}
        await ann.say({"ToSubject": "chat.room", "Nick": "Ann", "Node": node, "Value": ["bare"]})
        assert await ann.nothing_more() == []
        (heard,) = await bob.nothing_more()
        assert heard["Nick"] == "Ann"
        assert {**heard["Node"], "^ObjectID": "1"} == node
        assert heard["Value"]["^EncodedType"] == "java.util.ArrayList", "a bare array is refused by real clients"
        assert heard["Node"]["^ObjectID"] != heard["Value"]["^ObjectID"]


@pytest.mark.parametrize("way", ["relay", "bridge"])
async def test_a_name_of_answers_is_left_out(
    way: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("x:Errors:RPC", "x:RespondTo:RPC", "x:Errors:RPC.m")
    hub, other, dead = make_bus(), make_bus(), list[Any]()
    hub.relay(">")
    entry = hub if way == "relay" else other
    over = bridge(other, hub, routes=[Route(">", "{rest}", kinds={"publish"})])
    async with hub.serve("jrep+memory://left-out"), entry.serve("ubre+memory://left-out-too"), other, over:
        async with (
            connect("jrep+memory://left-out") as peer,
            connect("ubre+memory://left-out-too") as source,
            peer.subscribe(">") as heard,
        ):
            monkeypatch.setattr(
                Services,
                "dead_letter",
                lambda services, peer, message, *_: dead.append(message.subject) if services is entry._services else None,
            )
            with anyio.fail_after(BOUND), caplog.at_level(logging.WARNING):
                for name in names:
                    for number in range(100):
                        await source.publish(name, number)
                await source.publish("fine", 1)
                async for message in heard:
                    assert message.subject == "fine"
                    break
            assert {record.levelname for record in caplog.records} == {"WARNING"}
            assert "as answers" in caplog.text
            assert [dead.count(name) for name in names] == [100, 100, 100]
            assert peer.stats().malformed == 0
            assert peer.peers[0].connected


async def test_hubs_in_a_ring_pass_a_message_once() -> None:
    hubs, heard = [make_bus(), make_bus()], list[Any]()

    @hubs[1].on("chat.room")
    async def on_chat(body: Any) -> None:
        heard.append(body)

    with anyio.fail_after(BOUND):
        for hub in hubs:
            hub.relay("chat.>")
        async with hubs[0].serve("jrep+memory://ring-0"), hubs[1].serve("jrep+memory://ring-1"):
            async with hubs[0].connect("jrep+memory://ring-1"), hubs[1].connect("jrep+memory://ring-0"):
                async with connect("jrep+memory://ring-0") as client:
                    await client.publish("chat.room", 1)
                    await client.publish("chat.room", 2)
                    await eventually(lambda: len(heard) >= 2)
                    for _ in range(5):
                        await client.request("barrier")
    assert heard == [1, 2]


async def test_a_foreign_server_is_bare_and_says_so_at_once() -> None:
    seen: list[dict[str, Any]] = []

    async def serve(stream: Any) -> None:
        peer = Peer(stream)
        try:
            while stream is not None:
                message = await peer.hear()
                seen.append(message)
                if message.get("CommandType") == "Associate":
                    await peer.finish_association("ServerBus,echo")
                elif "ReplyTo" in message:
                    await peer.say({"ToSubject": message["ErrorTo"], "ErrorMessage": "no", "AdditionalDetails": "<pre>"})
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            await stream.aclose()

    async with foreign_server(serve) as url, connect(url, bus=make_bus()) as client:
        with pytest.raises(RemoteError, match="no") as caught:
            await client.request("far", 1)
        assert caught.value.code is Code.UNKNOWN
        async with client.subscribe("exact"):
            pass
        with pytest.raises(Unsupported, match="exact subjects"):
            async with client.subscribe("pattern.*"):
                pass
        with pytest.raises(Unsupported):
            async with client.stream("lines"):
                pass
        await client.notify("told", 1)
    names = [message.get("CommandType", message["ToSubject"]) for message in seen]
    assert names[0] == "Associate"
    assert "_polybus.hello" not in names
    asked = next(message for message in seen if message["ToSubject"] == "far")
    assert not any(name.startswith("Polybus") for name in asked)
    told = next(message for message in seen if message["ToSubject"] == "told")
    assert set(told) == {"ToSubject", "Value"}
    announced = {message.get("Subject") for message in seen if message.get("CommandType") == "RemoteSubscribe"}
    assert {"barrier", "echo", "exact"} <= announced


@pytest.mark.parametrize(
    ("dialect", "word"), [("v3", ""), ("v3", "Heartbeat"), ("legacy", "RemoteSubscribe"), ("auto", ""), ("auto", "Heartbeat")]
)
async def test_a_server_that_stops_in_the_middle_costs_a_handshake_s_time(dialect: str, word: str) -> None:
    async def serve(stream: Any) -> None:
        async with stream:
            peer = Peer(stream)
            while True:
                try:
                    await peer.hear()
                    if word:
                        await peer.say({"ToSubject": "ClientBus", "CommandType": word, "Subject": "news"})
                except (anyio.EndOfStream, anyio.BrokenResourceError):
                    return

    client = make_bus(limits=Limits(handshake_timeout=0.2))
    async with foreign_server(serve) as url:
        with pytest.raises(ConnectFailed, match="did not complete in 0.2 s"):
            async with connect(f"{url}?dialect={dialect}", bus=client):
                pass


async def test_reserved_subjects_are_refused_by_the_call() -> None:
    async with federated(make_bus()) as client:
        for name in ("ServerBus", "clientbus", "ClientBusErrors"):
            with pytest.raises(ReservedSubject):
                _ = client.request(name)
            with pytest.raises(ReservedSubject):
                await client.publish(name, 1)
        with pytest.raises(ReservedSubject):
            async with client.subscribe("ServerBus"):
                pass
        assert await client.request("echo", "still here") == "still here"


async def test_a_reserved_name_that_a_bus_listens_to_does_not_break_its_links(caplog: pytest.LogCaptureFixture) -> None:
    client = make_bus()

    @client.on("ServerBus")
    async def on_bus(body: Any) -> None: ...

    with caplog.at_level(logging.WARNING):
        async with federated(make_bus(), client):
            assert await client.peers[0].request("echo", 1) == 1
    assert "gets no subscription to 'ServerBus'" in caplog.text


async def test_subjects_that_begin_with_local_stay_here() -> None:
    server, client, heard = make_bus(), make_bus(), list[Any]()

    @client.on("local:x")
    async def on_local(body: Any) -> None:
        heard.append(body)

    async with federated(server, client):
        async with server.subscribe("local:x") as there:
            await client.publish("local:x", 1)
            await client.peers[0].request("barrier")
            assert (heard, len(there)) == ([1], 0)
        with pytest.raises(ReservedSubject, match="belongs to"):
            async with client.subscribe("local:y"):
                pass
        assert client.peers[0].connected


def send_from(server: Bus, payload: bytes) -> None:
    (link,) = server._services.running.links
    assert link.transport is not None
    link.transport.send(payload)


async def test_a_session_that_has_expired_is_made_anew_with_its_subscriptions() -> None:
    server = make_bus()
    async with federated(server, backoff=Backoff(initial=0.001)) as client, client.subscribe("news") as news:
        events = client.events()
        send_from(server, b'[{"ToSubject":"ClientBus","CommandType":"SessionExpired"}]')
        assert (await next_event(events, LinkUp)).again
        await client.request("barrier")
        await server.publish("news", 1)
        assert (await anext(news)).body == 1


async def test_a_complaint_of_the_server_is_heard_by_whoever_listens() -> None:
    server, client, heard = make_bus(), Bus(), list[Any]()

    @client.on("ClientBusErrors")
    async def on_error(ctx: Context) -> None:
        heard.append(ctx.message.attributes["ErrorMessage"])

    async with federated(server, client):
        send_from(server, b'[{"ToSubject":"ClientBusErrors","ErrorMessage":"out of order"}]')
        await eventually(lambda: heard == ["out of order"])
    assert client.stats().malformed == 0


CALCULATOR = RemoteInterface("wiretest.Svc")
ADD = CALCULATOR.method("add", int, int, returns=int)


def make_calculator() -> Bus:
    bus = make_bus()

    @CALCULATOR.handle(bus)
    async def add(left: int, right: int) -> int:
        return left + right

    @CALCULATOR.handle(bus, "fire")
    def fire() -> None:
        pass

    return bus


async def test_a_gwt_style_client_calls_a_python_method() -> None:
    async with served(make_calculator()) as (peer,):
        marked = {"^EncodedType": "java.lang.Integer", "^ObjectID": "-1"}
        call = {
            "ToSubject": "wiretest.Svc:RPC",
            "CommandType": "add:java.lang.Integer:java.lang.Integer:",
            "ReplyTo": "wiretest.Svc:RPC.add:java.lang.Integer:java.lang.Integer::2:RespondTo:RPC",
            "ErrorTo": "wiretest.Svc:RPC.add:java.lang.Integer:java.lang.Integer::2:Errors:RPC",
            "MethodParms": {
                "^EncodedType": "java.util.ArrayList",
                "^ObjectID": "1",
                "^Value": [{**marked, "^NumVal": 2}, {**marked, "^NumVal": 3}],
            },
        }
        await peer.say(call)
        assert await peer.hear() == {"ToSubject": call["ReplyTo"], "MethodReply": {**marked, "^NumVal": 5}}
        call["MethodParms"]["^Value"].pop()  # type: ignore[index]
        await peer.say(call)
        assert "2 arguments" in (await peer.hear())["ErrorMessage"]
        call["CommandType"] = "divide:java.lang.Integer:"
        await peer.say(call)
        assert "divide" in (await peer.hear())["ErrorMessage"]
        await peer.say(
            {"ToSubject": "wiretest.Svc:RPC", "CommandType": "fire:", "ReplyTo": "wiretest.Svc:RPC.fire::6:RespondTo:RPC"}
        )
        assert await peer.hear() == {"ToSubject": "wiretest.Svc:RPC.fire::6:RespondTo:RPC"}


class Grade(enum.Enum):
    LOW = 1


async def test_enums_of_java_are_arguments_and_results() -> None:
    types, bus = JavaTypes(), Bus()
    types.portable("x.Grade")(Grade)
    grading = RemoteInterface("x.Grading", types)

    @grading.handle(bus)
    async def best(one: Grade, many: list[Grade], other: Grade | None) -> Grade:
        assert (one, many, other) == (Grade.LOW, [Grade.LOW], None)
        return one

    @bus.handle("grade")
    async def grade(body: Grade) -> dict[str, Grade]:
        return {"is": body}

    async with pair(bus, protocol=Jrep(java=types)) as client:
        assert await client.request(grading.method("best", Grade, list, Grade, returns=Grade), [Grade.LOW, [Grade.LOW], None])
        assert await client.request("grade", Grade.LOW, returns=dict[str, Grade]) == {"is": Grade.LOW}


async def test_the_five_states_follow_a_link() -> None:
    server, client, seen = make_bus(), Bus(), list[BusState]()
    assert await anext(bus_states(client)) is BusState.UNINITIALIZED
    with anyio.fail_after(BOUND):
        async with anyio.create_task_group() as group, client, AsyncExitStack() as serving:

            async def watch() -> None:
                async for state in bus_states(client):
                    seen.append(state)  # it is read meanwhile

            group.start_soon(watch)
            await eventually(lambda: seen)
            await serving.enter_async_context(server.serve("jrep+memory://states"))
            async with client.connect("jrep+memory://states", backoff=Backoff(initial=0.001)):
                await eventually(lambda: BusState.CONNECTED in seen)
                await server.peers[0].aclose("a hiccup")
                await eventually(lambda: seen.count(BusState.CONNECTED) == 2)
            await eventually(lambda: seen[-1] is BusState.LOCAL_ONLY)
            count = len(seen)
            async with client.connect("jrep+memory://states", backoff=Backoff(initial=60)):
                await eventually(lambda: seen[-1] is BusState.CONNECTED)
                await serving.aclose()
                await eventually(lambda: BusState.CONNECTION_INTERRUPTED in seen[count:])
            await eventually(lambda: seen[-1] is BusState.LOCAL_ONLY)
    assert seen[:2] == [BusState.LOCAL_ONLY, BusState.CONNECTED]
    assert BusState.CONNECTION_INTERRUPTED in seen[:count]
    assert seen[-2:] == [BusState.LOCAL_ONLY, BusState.UNINITIALIZED]
