"""A client that offers ``polybus.closes`` is told by a close why it is not let in; others see a status of HTTP."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from starlette.applications import Starlette
from websockets import ConnectionClosed, InvalidStatus, Origin, Subprotocol, connect

from polybus import Bus, Forbidden, Handshake, Identity, Unavailable
from polybus.fastapi import attach
from tests.integration.web.support import OverAsgi, running

CLOSES = Subprotocol("polybus.closes")


def authenticate(handshake: Handshake) -> Identity | None:
    match handshake.headers.get("authorization"):
        case "Bearer banned":
            raise Forbidden("not you \u2014 " + "x" * 200)
        case "Bearer busy":
            raise Unavailable("come later")
        case "Bearer ann":
            return Identity("ann")
    return None


@asynccontextmanager
async def served(way: Any) -> AsyncIterator[str]:
    bus = Bus(authenticate=authenticate)
    if way is None:
        async with bus.serve("ubre+ws://127.0.0.1:0/bus") as listener:
            yield listener.url.removeprefix("ubre+")
    else:
        app = Starlette()
        attach(app, bus)
        async with running(app, ws=way) as server:
            yield f"ws://127.0.0.1:{server.port}/bus"


@pytest.mark.parametrize("way", [None, "auto", OverAsgi], ids=["own", "adopted", "asgi"])
async def test_a_refusal_can_be_read_by_who_asks_for_it(way: Any) -> None:
    async with served(way) as url:
        for token, status, code, words in (
            ("old", 401, 4401, "not authenticated"),
            ("banned", 403, 4403, "not you \u2014 xx"),
            ("busy", 503, 1013, "this server cannot authenticate you now"),
        ):
            offers: Any = ["ubre", f"polybus.token.{token}"]
            with pytest.raises(InvalidStatus) as refused:
                await connect(url, subprotocols=offers, proxy=None)
            assert refused.value.response.status_code == status
            async with connect(url, subprotocols=[*offers, CLOSES], proxy=None) as socket:
                assert socket.subprotocol == "polybus.closes"
                with pytest.raises(ConnectionClosed):
                    await socket.recv()
                assert socket.close_code == code
                assert socket.close_reason is not None and socket.close_reason.startswith(words)
        async with connect(url, subprotocols=[offers[0], CLOSES, Subprotocol("polybus.token.ann")], proxy=None) as socket:
            assert socket.subprotocol == "ubre"
        with pytest.raises(InvalidStatus):  # a page of another site learns nothing more
            await connect(url, subprotocols=[*offers, CLOSES], origin=Origin("https://other.example"), proxy=None)
