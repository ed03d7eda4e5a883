"""The WebSocket that is negotiated over HTTP, word by word: a client by hand at our server, a server by hand for our client."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as open_websocket
from websockets.exceptions import ConnectionClosed, InvalidStatus

from polybus import Limits, connect
from polybus.bindings.jrep_http import server as _errai_server
from polybus.events import LinkDown
from tests.refusal import refused
from tests.support import BOUND, eventually, next_event
from tests.unit.transports.errai_servlets import JSON, Jsr356Servlet
from tests.unit.transports.errai_servlets import serving as serving_servlet

from .test_errai import Client, _connections, another, make_bus, serving
from .test_errai_client import polls

LISTENS = "ClientBus,ClientBusErrors,news"


# -- our server ----------------------------------------------------------------------------------------------------------


def claim_of(finish: dict[str, Any], token: str | None = None) -> dict[str, str]:
    """The bare object with which a client claims its session: vector J55."""
    key = finish["ConnectionSessionKey"]
    return {"CommandType": "Associate", "ConnectionSessionKey": key, "WebSocketToken": token or finish["WebSocketToken"]}


@asynccontextmanager
async def socket_at(client: Client, url: str) -> AsyncIterator[ClientConnection]:
    cookies = "; ".join(f"{name}={value}" for name, value in client.http.cookies.items())
    async with open_websocket(url, additional_headers={"Cookie": cookies}, compression=None, proxy=None) as socket:
        yield socket


async def say(socket: ClientConnection, document: Any) -> None:
    await socket.send(json.dumps(document))


async def hear(socket: ClientConnection) -> dict[str, Any]:
    (message,) = json.loads(await socket.recv())
    return dict(message)


async def negotiate(client: Client, socket: ClientConnection, claim: dict[str, str], waiting: int = 0) -> str:
    """All steps; the token for the next time. What waits for the client comes by HTTP first."""
    await say(socket, claim)
    verify = await hear(socket)
    assert (verify["ToSubject"], verify["CommandType"]) == ("ClientBus", "WebsocketChannelVerify")
    returned = {"ToSubject": "ServerBus", "CommandType": "WebsocketChannelVerify", "WebSocketToken": verify["WebSocketToken"]}
    await client.post(returned)
    *before, opened = [await client.next() for _ in range(1 + waiting)]
    assert [message["Value"] for message in before] == ["waits"] * waiting
    assert (opened["ToSubject"], opened["CommandType"]) == ("ClientBus", "WebsocketChannelOpen")
    await say(socket, claim)
    return str(opened["WebSocketToken"])


async def test_a_client_that_polls_goes_over_to_a_websocket_and_back_and_over_again() -> None:
    bus = make_bus()
    async with serving(bus) as client:
        finish = await client.associate(LISTENS)
        assert finish["WebSocketURL"] == f"ws://{client.http.base_url.netloc.decode()}/websocket.bus"
        await bus.publish("news", "waits")
        async with socket_at(client, finish["WebSocketURL"]) as socket:
            token = await negotiate(client, socket, claim_of(finish), 1)
            await say(socket, claim_of(finish))  # as after WebsocketChannelOpen over the socket: it says nothing
            await say(socket, [{"ToSubject": "echo", "Value": "v", "ReplyTo": "r:1:RespondTo:RPC"}])
            assert await hear(socket) == {"ToSubject": "r:1:RespondTo:RPC", "Value": "v"}
            await bus.publish("news", "pushed")
            assert (await hear(socket))["Value"] == "pushed"
            client.heard.clear()
            await client.post()
            assert client.heard == [], "nothing comes by HTTP while the socket is there"
        (connection,) = _connections(bus)
        await eventually(lambda: connection._channel is None)
        await bus.publish("news", "by poll")
        assert (await client.next())["Value"] == "by poll"
        async with socket_at(client, finish["WebSocketURL"]) as socket:
            await negotiate(client, socket, claim_of(finish, token))
            await bus.publish("news", "again")
            assert (await hear(socket))["Value"] == "again"
        assert len(bus.peers) == 1


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ([{"CommandType": "ConnectToQueue"}], "bad command"),
        ([{"ToSubject": "x"}], "bad command"),
        ([[{"CommandType": "Associate"}]], "illegal handshake"),
        (["{"], "illegal handshake"),
        ([{"CommandType": "Associate"}], "bad session id"),
        ([{"CommandType": "Associate", "ConnectionSessionKey": "other", "WebSocketToken": "t"}], "bad session id"),
        (["key", {"WebSocketToken": "guessed"}], "bad negotiation key"),
        (["key", {"WebSocketToken": 5}], "bad negotiation key"),
        (["claim", "claim"], "bad negotiation key"),
    ],
    ids=str,
)
async def test_a_wrong_word_ends_the_socket_with_its_reason(words: list[Any], reason: str) -> None:
    async with serving(make_bus()) as client:
        finish = await client.associate(LISTENS)
        claim: dict[str, Any] = claim_of(finish)
        if words[0] == "key":
            words = [{**claim, **words[1]}]
        async with socket_at(client, finish["WebSocketURL"]) as socket:
            for word in words:
                await socket.send(word if word == "{" else json.dumps(claim if word == "claim" else word))
            answer = await hear(socket)
            while answer["CommandType"] == "WebsocketChannelVerify":
                answer = await hear(socket)
            assert (answer["CommandType"], answer["ErrorMessage"]) == ("WebsocketNegotiationFailed", reason)
            with pytest.raises(ConnectionClosed):
                await socket.recv()
        await client.post({"ToSubject": "echo", "Value": "still there", "ReplyTo": "r:1:RespondTo:RPC"})
        assert (await client.next())["Value"] == "still there"


async def test_a_token_serves_once_and_only_the_session_that_it_was_given_to() -> None:
    async with serving(make_bus()) as client, another(client, "9-9") as other:
        finish, others = await client.associate(LISTENS), await other.associate(LISTENS)
        await refused(open_websocket(finish["WebSocketURL"], proxy=None), InvalidStatus, match="403")
        async with socket_at(other, finish["WebSocketURL"]) as socket:  # a thief with the key and the token, not the cookie
            await say(socket, claim_of(finish))
            assert (await hear(socket))["ErrorMessage"] == "bad session id"
        async with socket_at(other, finish["WebSocketURL"]) as socket:
            await negotiate(other, socket, claim_of(others))
        async with socket_at(other, finish["WebSocketURL"]) as socket:
            await say(socket, claim_of(others))
            assert (await hear(socket))["ErrorMessage"] == "bad negotiation key"


async def test_a_wrong_token_over_http_does_not_open_the_channel() -> None:
    async with serving(make_bus()) as client:
        finish = await client.associate(LISTENS)
        async with socket_at(client, finish["WebSocketURL"]) as socket:
            await say(socket, claim_of(finish))
            await hear(socket)
            await client.post({"ToSubject": "ServerBus", "CommandType": "WebsocketChannelVerify", "WebSocketToken": "guessed"})
            answer = await client.next()
            assert (answer["CommandType"], answer["ErrorMessage"]) == ("WebsocketNegotiationFailed", "bad negotiation key")


async def test_few_negotiations_may_begin_at_once() -> None:
    bus = make_bus(limits=Limits(handshake_timeout=BOUND, close_timeout=0.05))
    async with serving(bus) as client:
        finish = await client.associate(LISTENS)
        url = finish["WebSocketURL"]
        async with socket_at(client, url), socket_at(client, url):
            await refused(socket_at(client, url), InvalidStatus, match="503")

        async def there_is_room() -> bool:
            try:
                async with socket_at(client, url) as socket:
                    await negotiate(client, socket, claim_of(finish))
            except InvalidStatus:
                return False
            return True

        await eventually(there_is_room)


async def test_a_negotiation_that_is_not_completed_is_cut() -> None:
    bus = make_bus(limits=Limits(handshake_timeout=0.3, close_timeout=0.05))
    async with serving(bus) as client:
        finish = await client.associate(LISTENS)
        for _ in range(3):  # each gives its place back
            async with socket_at(client, finish["WebSocketURL"]) as socket:
                with pytest.raises(ConnectionClosed):
                    await socket.recv()


async def test_a_session_whose_socket_is_lost_and_who_does_not_come_back_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_errai_server, "_AFTER_CHANNEL", 0.0)
    bus = make_bus()
    async with serving(bus) as client:
        finish = await client.associate(LISTENS)
        events = bus.events()
        async with socket_at(client, finish["WebSocketURL"]) as socket:
            await negotiate(client, socket, claim_of(finish))
        await next_event(events, LinkDown)
        assert bus.peers == []


# -- our client ----------------------------------------------------------------------------------------------------------


class Offering(Jsr356Servlet):
    """Offers a WebSocket and no events, and plays its part as told by `script`."""

    flags = "LongPolling,WebSockets"

    def __init__(self, script: str) -> None:
        super().__init__()
        self.script = script
        self.claims: list[dict[str, Any]] = []

    def command(self, key: tuple[str, str], message: dict[str, Any]) -> None:
        if message["CommandType"] != "WebsocketChannelVerify":
            super().command(key, message)
            return
        assert message["WebSocketToken"] == "54638e6c" and self.loop is not None
        self.verified = True
        word = "WebsocketNegotiationFailed" if self.script == "unconfirmed" else "WebsocketChannelOpen"
        opened = {"WebSocketToken": "next", "ErrorTo": "ClientBusErrors", "CommandType": word, "ToSubject": "ClientBus"}
        self.loop.call_later(0.1 if self.script == "late" else 0, self.queues[key].offer, opened)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "http" or b"JSESSIONID=s" in dict(scope["headers"])[b"cookie"]
        await super().__call__(scope, receive, send)

    async def respond(self, send: Any, body: bytes, status: int = 200, headers: Any = None) -> None:
        await super().respond(send, body, status, [*JSON, (b"set-cookie", b"JSESSIONID=s; path=/")])

    def claimed(self, claim: dict[str, Any], key: tuple[str, str] | None, outgoing: asyncio.Queue[bytes]) -> tuple[str, str]:
        self.claims.append(claim)
        mine = ("s", claim["ConnectionSessionKey"])
        if self.script == "closed":
            raise ConnectionResetError("the server dies")
        if self.script == "refused":
            failed = {"CommandType": "WebsocketNegotiationFailed", "ErrorMessage": "bad negotiation key"}
            outgoing.put_nowait(json.dumps([{"ToSubject": "ClientBus", **failed}]).encode())
        if key is not None and self.script != "jsr356":  # it has said all by HTTP
            self.queues[mine].socket = outgoing.put_nowait
        elif self.script != "silent":
            super().claimed(claim, key, outgoing)
        return mine

    def is_open(self) -> bool:
        return any(queue.socket for queue in self.queues.values())


@asynccontextmanager
async def offering(script: str = "good") -> AsyncIterator[tuple[Offering, str]]:
    server = Offering(script)
    with anyio.fail_after(BOUND):
        async with serving_servlet(server) as url:
            yield server, f"jrep+{url}"


@pytest.mark.parametrize("script", ["good", "jsr356", "late"])
async def test_our_client_negotiates_as_errai_s_own_does(script: str) -> None:
    async with offering(script) as (server, url), connect(url) as bus:
        await eventually(server.is_open)
        ((_, session),) = server.queues
        assert server.claims == [claim_of({"ConnectionSessionKey": session, "WebSocketToken": "93332e80"})] * 2
        posts = len(server.requests)
        assert await bus.request("EchoService", [1, "two"]) == [1, "two"]
        assert len(server.requests) == posts, "the socket carries it"
        assert bus.stats().malformed == 0


@pytest.mark.parametrize("script", ["refused", "unconfirmed", "silent", "closed", "elsewhere", "nowhere", "nonsense"])
async def test_without_a_websocket_our_client_polls(script: str) -> None:
    async with offering(script) as (server, url):
        places = {"elsewhere": "ws://localhost:1/websocket.bus", "nowhere": "ws://127.0.0.1:1/websocket.bus", "nonsense": "x"}
        server.url = places.get(script, server.url)
        async with connect(url) as bus:
            assert await bus.request("EchoService", 1) == 1
            await eventually(lambda: polls(server))
            assert await bus.request("EchoService", 2) == 2
            assert server.upgrades == (script not in places)


async def test_a_lost_websocket_is_a_lost_link_and_comes_back() -> None:
    async with offering() as (server, url), connect(f"{url}?frame=0") as bus:
        await eventually(server.is_open)
        events = bus.events()
        await bus.publish("news", "x" * server.most)  # too long for the endpoint
        await next_event(events, LinkDown)
        await eventually(lambda: server.upgrades == 2 and server.is_open())
        assert await bus.request("EchoService", "again") == "again"


async def test_a_channel_that_the_server_does_not_offer_is_said_so() -> None:
    async with offering("refused") as (_, url):
        async with connect(f"{url}?channel=websocket") as bus:
            event = await next_event(bus.events(), LinkDown)
            assert "cannot send messages over websocket" in event.reason
