"""A server for Errai's own clients: what they subscribe while they connect, and what they may answer."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from polybus import Bus, Context, DeadlineExceeded, Kind, Limits, Message, Peer
from polybus.errors import BadReply, Code, RemoteError, RequestError
from polybus.events import DeadLettered
from polybus.plugins import Refused
from polybus.plugins.extensions import core_of
from polybus.protocols import Jrep
from tests.doubles.driven import Driven
from tests.support import BOUND, eventually

from .errai import ClientMessageBusImpl
from .raw import raw
from .test_federation import URL, make_bus
from .test_session import carry, hear, messages, pair


@asynccontextmanager
async def served(bus: Bus, *while_connecting: str) -> AsyncIterator[tuple[ClientMessageBusImpl, Peer]]:
    """A bus with one of Errai's clients, and the peer that it is there."""
    with anyio.fail_after(BOUND):
        async with bus.serve(URL) as listener, raw(listener.url) as stream, anyio.create_task_group() as group:
            client = ClientMessageBusImpl(stream)
            await client.start(*while_connecting)
            group.start_soon(client.listen)
            await eventually(lambda: bool(bus.peers))
            yield client, bus.peers[0]
            group.cancel_scope.cancel()


async def test_what_an_errai_client_subscribes_while_it_connects_is_not_lost() -> None:
    bus = make_bus()
    async with served(bus, "News", "More") as (client, peer):
        await client.command("RemoteSubscribe", Subject="barrier2")
        await eventually(lambda: "barrier2" in (core_of(peer).patterns or ()))
        for subject in ("News", "More", "SSEAgent"):
            await bus.publish(subject, subject)
        await eventually(lambda: [message.get("Value") for message in client.heard] == ["News", "More", "SSEAgent"])
    assert bus.stats().malformed == 0


@pytest.mark.parametrize("name", ["ServerBus", "serverbus", "ServerEchoService", "AuthorizationService"])
@pytest.mark.parametrize("form", ["SubjectsList", "RemoteServices"])
async def test_a_list_of_subjects_with_a_reserved_one_is_refused_as_a_whole_and_told(name: str, form: str) -> None:
    bus = make_bus()
    async with served(bus) as (client, peer):
        names: Any = ["News", name]
        await client.command("RemoteSubscribe", **{form: ",".join(names) if form == "RemoteServices" else names})
        await eventually(lambda: bool(client.heard))
        (told,) = client.heard
        assert told["ToSubject"] == "ClientBusErrors" and name in told["ErrorMessage"]
        assert told["Throwable"]["^EncodedType"] == "java.lang.RuntimeException"
        assert told["Throwable"]["message"] == told["ErrorMessage"]
        assert not core_of(peer).patterns


async def test_an_errai_client_answers_because_it_is_told_where_and_for_as_long_as_somebody_waits() -> None:
    bus = make_bus()
    async with served(bus) as (client, peer):
        client.services["ClientService"] = lambda message: {"Value": f"java says {message['Value']}"}
        assert await peer.request("ClientService", "q1") == "java says q1"
        client.services["ClientService"] = lambda message: {"ErrorMessage": "no such thing"}
        with pytest.raises(RequestError, match="no such thing"):
            await peer.request("ClientService", "q2")
        client.services.clear()
        with pytest.raises(DeadlineExceeded):
            await peer.request("ClientService", "q3", timeout=0.01)
        given_up = peer.request("ClientService", "q4")
        given_up.cancel()
        await eventually(lambda: sum(verb == "RemoteUnsubscribe" for verb, _ in client.told) == 8)
        said = {verb: {name for told, name in client.told if told == verb} for verb in ("RemoteSubscribe", "RemoteUnsubscribe")}
        assert len(said["RemoteUnsubscribe"]) == 8, "each is taken back once"
        assert said["RemoteUnsubscribe"] <= said["RemoteSubscribe"]
    assert bus.stats().malformed == 0


async def test_an_errai_client_that_says_back_what_is_withdrawn_has_done_nothing_wrong() -> None:
    bus = make_bus()
    async with served(bus) as (client, peer):
        for _ in range(250):
            async with peer.subscribe("alarm"), bus.subscribe("News"):
                pass
        await eventually(lambda: sum(told == ("RemoteUnsubscribe", "alarm") for told in client.told) == 250)
        await client.command("RemoteSubscribe", Subject="barrier2")
        await eventually(lambda: "barrier2" in (core_of(peer).patterns or ()))
        assert bus.stats().malformed == 0
        await client.command("RemoteUnsubscribe", Subject="alarm")
        await eventually(lambda: bus.stats().malformed == 1)
        assert len(bus.peers) == 1


async def test_an_errai_client_keeps_its_own_subscription_to_what_the_server_subscribes_no_more() -> None:
    bus = make_bus()
    async with served(bus) as (client, peer):
        await client.subscribe("News")
        await eventually(lambda: "News" in (core_of(peer).patterns or ()))
        async with bus.subscribe("News"):
            await eventually(lambda: "News" in client.remote)
        await bus.publish("News", "still heard")
        await eventually(lambda: [message.get("Value") for message in client.heard] == ["still heard"])
        assert client.subscriptions == {"News"}
        await client.command("RemoteUnsubscribe", Subject="News")
        await eventually(lambda: not core_of(peer).patterns)
        assert bus.stats().malformed == 0


@pytest.mark.parametrize("role", ["client", "server"])
def test_between_our_own_buses_nothing_is_said_of_where_answers_go(role: str) -> None:
    client, server = pair()
    asking, answering = (client, server) if role == "client" else (server, client)
    key = asking.send(Message(Kind.REQUEST, "far"), 0.0)
    (payload,) = asking.frames_to_send()
    assert [message["ToSubject"] for message in json.loads(payload)] == ["far"]
    answering.receive(payload, 0.0)
    (asked,) = messages(answering)
    answering.send(Message(Kind.RESPONSE, "far", asked.id), 0.0)
    carry(answering, asking)
    asking.forget(key, 0.0)
    assert asking.frames_to_send() == []


async def test_a_publication_that_somebody_here_takes_is_no_dead_letter_and_one_that_nobody_takes_is() -> None:
    bus, heard, dead = make_bus(), list[Any](), list[Any]()
    bus.relay("relayed")

    @bus.on("news.>")
    async def on_news(body: Any) -> None:
        heard.append(body)

    async def watch() -> None:
        async for event in bus.events():
            if isinstance(event, DeadLettered):
                dead.append(event.subject)

    async with served(bus) as (client, _), bus.subscribe("direct") as direct, anyio.create_task_group() as group:
        group.start_soon(watch)
        await anyio.wait_all_tasks_blocked()
        for subject in ("news.today", "direct", "relayed", "nobody"):
            await client.peer.say({"ToSubject": subject, "Value": subject})
        assert (await anext(direct)).body == "direct"
        await eventually(lambda: "nobody" in dead and bool(heard))
        assert dead == ["nobody"]
        group.cancel_scope.cancel()


UNREADABLE = {
    "half a surrogate pair": '"Value":"\\ud83d"',
    "a Date after the year 9999": '"Value":{"^EncodedType":"java.util.Date","^ObjectID":"1","^Value":"9223372036854775807"}',
    "not a number": '"Value":NaN',
    "no JSON at all": '"Value":tru',
    "a marker without its value": '"Value":{"^EncodedType":"java.lang.Integer","^ObjectID":"-1"}',
    "an error that says nothing": '"ErrorMessage":"\\udc00"',
}


@pytest.mark.parametrize("part", UNREADABLE.values(), ids=UNREADABLE)
async def test_an_answer_that_cannot_be_read_fails_its_request_at_once(part: str) -> None:
    async with served(make_bus()) as (client, peer):
        reply = peer.request("ClientService", "q", timeout=BOUND)
        await eventually(lambda: bool(client.heard))
        asked = client.heard[0]
        goal = asked["ErrorTo" if "Error" in part else "ReplyTo"]
        await client.peer.say(text=f'[{{"ToSubject":"{goal}",{part}}}]')
        with pytest.raises(BadReply, match="the answer to 'ClientService' is malformed"):
            await reply
        await eventually(lambda: ("RemoteUnsubscribe", asked["ReplyTo"]) in client.told)


def test_an_answer_that_is_too_large_fails_its_request_too() -> None:
    client = Driven(Jrep().session("client", Limits(message=500)))
    client.start(0.0)
    client.receive(b'[{"ToSubject":"ClientBus","CommandType":"FinishAssociation","RemoteServices":"ServerBus"}]', 0.0)
    client.events()
    key = client.send(Message(Kind.REQUEST, "far"), 0.0)
    hear(client, {"ToSubject": f"far:{key}:RespondTo:RPC", "Value": "x" * 600})
    (event,) = client.events()
    assert isinstance(event, Refused)
    assert (event.error.reason, event.error.reply_id, event.error.close_code) == ("too_large", key, None)


def thrown(java: str, message: str | None, cause: Any = None, number: int = 1, **fields: Any) -> dict[str, Any]:
    """As Errai's ThrowableDefinition writes it."""
    stack = {"^EncodedType": "[Ljava.lang.StackTraceElement;", "^ObjectID": str(number + 1), "^Value": []}
    start = {"^EncodedType": java, "^ObjectID": str(number), "stackTrace": stack, "message": message, "cause": cause}
    return {**start, **fields}


SAID = "Error calling remote service: ClientService"


async def failed(client: ClientMessageBusImpl, peer: Peer, throwable: Any) -> RemoteError:
    error = {"ErrorMessage": SAID, "AdditionalDetails": "<br/>at Service.java", "Throwable": throwable}
    client.services["ClientService"] = lambda message: error
    with pytest.raises(RemoteError) as caught:
        await peer.request("ClientService", "q")
    return caught.value


async def test_an_error_says_which_exception_it_was_and_why() -> None:
    async with served(make_bus()) as (client, peer):
        cause = thrown("java.io.IOException", "disk", number=3)
        error = await failed(client, peer, thrown("com.acme.OutOfStock", "broken: x", cause, article=7))
        assert error.code is Code.UNKNOWN
        assert (error.reason, error.text) == ("com.acme.OutOfStock", "broken: x")
        assert str(error) == "UNKNOWN [com.acme.OutOfStock] ('ClientService'): broken: x"
        assert error.detail == {
            "message": "broken: x",
            "cause": {"class": "java.io.IOException", "message": "disk", "cause": None, "fields": {}},
            "fields": {"article": 7},
            "ErrorMessage": SAID,
            "AdditionalDetails": "<br/>at Service.java",
        }


async def test_an_exception_without_a_message_leaves_what_errai_says_of_every_failure() -> None:
    async with served(make_bus()) as (client, peer):
        error = await failed(client, peer, thrown("java.lang.NullPointerException", None))
        assert (error.reason, error.text, error.detail["message"]) == ("java.lang.NullPointerException", SAID, None)
        error = await failed(client, peer, None)
        assert (error.reason, error.text) == (None, SAID)
        assert error.detail == {"ErrorMessage": SAID, "AdditionalDetails": "<br/>at Service.java"}


async def test_an_exception_that_is_its_own_cause_is_told_all_the_same_and_can_be_passed_on() -> None:
    bus = make_bus()

    @bus.handle("through")
    async def through(ctx: Context) -> None:
        try:
            await bus.peers[0].request("ClientService", "q")
        except RequestError as error:
            raise error.relay() from None

    async with served(bus) as (client, peer), anyio.create_task_group():
        itself = {"^EncodedType": "x.Loop", "^ObjectID": "1"}
        error = await failed(client, peer, thrown("x.Loop", "round", itself))
        assert (error.reason, error.text) == ("x.Loop", "round")
        await client.peer.say({"ToSubject": "through", "ReplyTo": "t:RespondTo:RPC", "ErrorTo": "t:1:Errors:RPC"})
        await eventually(lambda: any(message["ToSubject"] == "t:1:Errors:RPC" for message in client.heard))
        assert client.heard[-1]["ErrorMessage"] == "round"


def test_empty_and_single_bytes_and_empty_tuples_are_no_shared_objects() -> None:
    """In Python there is one of each, in Java each is its own array or list (M13)."""
    values = Jrep().codec().formats[0]
    shared = bytes(range(3))
    pairs: list[list[Any]] = [[b"", b""], [b"a", b"a"], [(), ()], [frozenset(), frozenset()]]
    for value in pairs:
        written = json.loads(values.encode(value))["^Value"]
        assert len({one["^ObjectID"] for one in written}) == 2
        assert all("^Value" in one for one in written)
    again = json.loads(values.encode([shared, shared]))["^Value"]
    assert again[0]["^ObjectID"] == again[1]["^ObjectID"]
