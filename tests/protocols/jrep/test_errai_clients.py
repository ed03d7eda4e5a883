"""A server for Errai's own clients: what they subscribe while they connect, and what they may answer."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from polybus import Bus, DeadlineExceeded, Kind, Message, Peer
from polybus.errors import RequestError
from tests.support import BOUND, eventually

from .errai import ClientMessageBusImpl
from .raw import raw
from .test_federation import URL, make_bus
from .test_session import carry, messages, pair

pytestmark = pytest.mark.anyio


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
        await eventually(lambda: "barrier2" in (peer.patterns or ()))
        for subject in ("News", "More", "SSEAgent"):
            await bus.publish(subject, subject)
        await eventually(lambda: [message.get("Value") for message in client.heard] == ["News", "More", "SSEAgent"])
    assert bus.stats().malformed == 0


@pytest.mark.parametrize("name", ["ServerBus", "serverbus", "ServerEchoService", "AuthorizationService"])
@pytest.mark.parametrize("form", ["SubjectsList", "RemoteServices"])
async def test_a_list_of_subjects_with_a_reserved_one_is_refused_as_a_whole_and_told_with_a_throwable(
    name: str, form: str
) -> None:
    bus = make_bus()
    async with served(bus) as (client, peer):
        names: Any = ["News", name]
        await client.command("RemoteSubscribe", **{form: ",".join(names) if form == "RemoteServices" else names})
        await eventually(lambda: bool(client.heard))
        (told,) = client.heard
        assert told["ToSubject"] == "ClientBusErrors"
        assert name in told["ErrorMessage"]
        assert told["Throwable"]["^EncodedType"] == "java.lang.RuntimeException"
        assert told["Throwable"]["message"] == told["ErrorMessage"]
        assert not peer.patterns


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
        assert not any(name.startswith("ClientService") for name in client.remote)


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
