"""What the text of a usual mistake says to do next."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from polybus import Bus, Limits, connect
from polybus.plugins import Handshake, Identity
from polybus.testing import pair
from tests.refusal import refused


def shop() -> Bus:
    bus = Bus(limits=Limits(message=20_000))

    @bus.handle("price", inline=True)
    def price(article: str) -> int:
        return 7

    @bus.handle("broken", inline=True)
    def broken() -> None:
        raise LookupError("no database")

    return bus


@pytest.mark.parametrize(
    ("ask", "next_step"),
    [
        (
            lambda bus: bus.request("price", "x" * 30_000),
            r"send less, or raise Limits\(message=\.\.\.\) at both ends; a stream",
        ),
        (lambda bus: bus.request("price", float("nan")), r"\(send None or a string\)"),
        (lambda bus: bus.request(7, "soup"), "subjects are strings here: write '7'"),
        (lambda bus: bus.request("broken"), r"internal error [0-9a-f]{8}; look for this id in the server's log$"),
        (lambda bus: bus.request("price", "soup", returns=str), "does returns= match the handler's return type?"),
    ],
)
async def test_a_request_that_cannot_be(ask: Callable[[Bus], Awaitable[Any]], next_step: str) -> None:
    async with pair(shop(), client=Bus(limits=Limits(message=20_000))) as client:
        with pytest.raises(Exception, match=next_step):
            await ask(client)


def only_ann(handshake: Handshake) -> Identity | None:
    return Identity("ann") if handshake.headers.get("authorization") == "Bearer ann" else None


@pytest.mark.native
async def test_a_server_that_refuses_what_is_brought() -> None:
    async with Bus(authenticate=only_ann).serve("ubre+ws://127.0.0.1:0/bus") as server:
        bob, ann = ({"authorization": f"Bearer {name}"} for name in ("bob", "ann"))
        await refused(connect(server.url, headers=bob), Exception, r"the server refused authorization: is it expired")
        csb = connect(server.url.replace("ubre", "csb"), headers=ann)
        await refused(csb, ConnectionError, r"the client offers 'csb', the server accepts ubre: begin the URL with ubre\+$")
