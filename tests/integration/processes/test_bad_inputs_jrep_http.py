"""The list of bad inputs for J.REP over HTTP, against a real server process: posts and polls, and the negotiated WebSocket."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect as open_websocket
from websockets.exceptions import ConnectionClosed

from polybus import Bus, connect

from .processes import BOUND, Process, eventually, port_of, running
from .test_bad_inputs import CASES, LIMITS, Witness, messages
from .test_bad_inputs_jrep import EFFECTS, GOOD, GREETING, MORE, Effect

pytestmark = pytest.mark.anyio

JSON = {"content-type": "application/json; charset=utf-8"}
NOT_HERE = {"jrep-015"}
"""Without an Associate or ConnectToQueue there is no session that could end: see tests/integration/web/test_errai.py."""
BAD = {id: (b"".join(messages(CASES[id])), effect) for id, effect in EFFECTS.items() if id not in NOT_HERE} | MORE
POSTED = BAD | {"jrep-023": (BAD["jrep-023"][0], Effect(counted={"received": 100_001}))}
"""A post may have many messages, within `Limits.payload`; a frame of that size is refused."""


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    """uvicorn runs on asyncio."""
    return "asyncio", {"use_uvloop": False}


@pytest.fixture(scope="module")
async def server(anyio_backend: Any) -> AsyncIterator[Process]:
    """One server for all cases: it has to survive them all."""
    async with running(urls=["jrep+http://127.0.0.1:0"], limits=LIMITS) as process:
        yield process


@pytest.fixture(scope="module")
async def bystander(server: Process) -> AsyncIterator[Bus]:
    """A good connection that is there all the time."""
    async with connect(server.urls[0]) as bus:
        yield bus


@pytest.fixture
async def witness(server: Process, bystander: Bus) -> AsyncIterator[Witness]:
    witness = Witness(server, bystander)
    await witness.before()
    yield witness
    await witness.after()


class Line:
    """A client by hand; what it heard, over whichever channel."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.http = http
        self.heard: list[dict[str, Any]] = []

    async def post(self, body: bytes, **query: str) -> int:
        answer = await self.http.post("/in.1-1.erraiBus", params={"clientId": "1-1", **query}, content=body, headers=JSON)
        if answer.status_code == 200:
            self.heard += answer.json()
        return answer.status_code

    async def next(self) -> dict[str, Any]:
        while not self.heard:
            await self.post(b"[]", wait="1")
        return self.heard.pop(0)

    async def until_good(self) -> list[dict[str, Any]]:
        """What is said before the good question is answered."""
        before = []
        while (message := await self.next())["ToSubject"] != "good:1:RespondTo:RPC":
            before.append(message)
        return before


@asynccontextmanager
async def line_to(server: Process) -> AsyncIterator[Line]:
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port_of(server.urls[0])}", timeout=BOUND) as http:
        yield Line(http)


async def counted(witness: Witness, effect: Effect) -> None:
    async def all_counted() -> bool:
        counted = await witness.counted()
        refused = Counter({name.removeprefix("refused."): n for name, n in counted.items() if name.startswith("refused.")})
        return refused == Counter(effect.reasons) and all(counted[name] >= n for name, n in effect.counted.items())

    await eventually(all_counted)


def check_told(heard: list[dict[str, Any]], effect: Effect) -> None:
    complaints = [message["ErrorMessage"] for message in heard if message["ToSubject"] == "ClientBusErrors"]
    assert [effect.told in text for text in complaints] == [True] * bool(effect.told)


@pytest.mark.parametrize("name", POSTED)
async def test_a_bad_post_has_its_effect_and_no_other(server: Process, witness: Witness, name: str) -> None:
    bad, effect = POSTED[name]
    async with line_to(server) as line:
        await line.post(GREETING, phase="connection", wait="1")
        assert line.heard.pop(0)["CommandType"] == "FinishAssociation"
        status = await line.post(bad)
        if effect.closed is not None:
            while (message := await line.next()).get("CommandType") != "SessionExpired":
                assert message.get("CommandType") == "Disconnect", "the session is over, and says so"
        else:
            assert status == 200
            await line.post(GOOD)
            check_told(await line.until_good(), effect)
    await counted(witness, effect)


@pytest.mark.parametrize("name", [name for name in BAD if name != "no UTF-8"])  # a WebSocket closes on that by itself
async def test_a_bad_frame_of_a_negotiated_websocket_has_its_effect_and_no_other(
    server: Process, witness: Witness, name: str
) -> None:
    bad, effect = BAD[name]
    async with line_to(server) as line:
        await line.post(GREETING, phase="connection", wait="1")
        finish = line.heard.pop(0)
        cookies = "; ".join(f"{name}={value}" for name, value in line.http.cookies.items())
        claim = {
            "CommandType": "Associate",
            "ConnectionSessionKey": finish["ConnectionSessionKey"],
            "WebSocketToken": finish["WebSocketToken"],
        }
        headers = {"Cookie": cookies}
        async with open_websocket(finish["WebSocketURL"], additional_headers=headers, compression=None, proxy=None) as socket:
            await socket.send(json.dumps(claim))
            (verify,) = json.loads(await socket.recv())
            verify["ToSubject"] = "ServerBus"
            await line.post(json.dumps([verify]).encode())
            assert (await line.next())["CommandType"] == "WebsocketChannelOpen"
            await socket.send(json.dumps(claim))
            heard: list[dict[str, Any]] = []
            try:
                await socket.send(bad.decode())
                if effect.closed is None:
                    await socket.send(GOOD.decode())
                while not any(message["ToSubject"] == "good:1:RespondTo:RPC" for message in heard):
                    heard += json.loads(await socket.recv())
                assert effect.closed is None
                check_told(heard, effect)
            except ConnectionClosed as closed:
                assert effect.closed is not None
                assert closed.rcvd is None or closed.rcvd.code == effect.closed
    await counted(witness, effect)


async def test_a_post_of_another_site_s_page_is_refused(server: Process, witness: Witness) -> None:
    (bad,) = messages(CASES["jrep-033"])
    async with line_to(server) as line:
        line.http.headers["origin"] = "https://elsewhere.example"
        assert await line.post(bad, phase="connection") == 403
        assert await line.post(GREETING, phase="connection") == 403
    await counted(witness, Effect())
