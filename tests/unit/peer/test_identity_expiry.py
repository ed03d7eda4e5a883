"""Identities: their keys, and what happens when one expires while its link is up."""

import datetime
from collections.abc import Mapping
from typing import Any
from uuid import UUID

import pytest

from polybus import Backoff, Bus, Context, Disconnected, Handshake, Identity, Unauthorized, connect
from polybus.events import LinkUp
from tests.support import eventually, next_event
from tests.unit.answering import answering

SOON = datetime.timedelta(milliseconds=200)
QUICK = Backoff(0.01, 0.05)


def short_lived(handshake: Handshake) -> Identity | None:
    token = handshake.headers.get("authorization")
    return Identity(token, key=token, expires_at=datetime.datetime.now(datetime.UTC) + SOON) if token else None


def make_server() -> Bus:
    bus = answering(authenticate=short_lived)

    @bus.handle("who")
    async def who(body: object, ctx: Context) -> str:
        return str(ctx.identity)

    return bus


async def test_a_client_whose_headers_are_a_function_comes_back_with_a_new_token() -> None:
    tokens: list[str] = []

    def headers() -> Mapping[str, str]:
        tokens.append(f"token-{len(tokens) + 1}")
        return {"authorization": tokens[-1]}

    async with make_server().serve("ubre+ws://127.0.0.1:0/bus") as listener:
        async with connect(listener.url, headers=headers, backoff=QUICK) as bus:
            events = bus.events()
            first = await bus.request("who")  # on a slow machine the client may have come back already
            await eventually(lambda: len(tokens) > tokens.index(first) + 1)
            while not (await next_event(events, LinkUp)).again:
                pass
            assert tokens.index(await bus.request("who")) > 0


async def test_a_request_in_flight_when_a_token_is_replaced_is_told_of_a_lost_connection_not_of_a_refusal() -> None:
    async with make_server().serve("ubre+ws://127.0.0.1:0/bus") as listener:
        async with connect(listener.url, headers=lambda: {"authorization": "new"}, backoff=QUICK) as bus:
            with pytest.raises(Disconnected, match="expired") as caught:
                await bus.request("endless")
            assert caught.value.sent


async def test_a_client_with_a_fixed_token_is_told_and_does_not_come_back() -> None:
    async with make_server().serve("ubre+ws://127.0.0.1:0/bus") as listener:
        async with connect(listener.url, headers={"authorization": "fixed"}, backoff=QUICK) as bus:
            with pytest.raises(Unauthorized, match="expired"):  # perhaps already on entering
                async with bus.subscribe("news") as news:
                    await anext(news)
            with pytest.raises(Unauthorized, match="expired"):
                await bus.request("who")
            assert bus.stats().reconnects == 0


@pytest.mark.parametrize("key", [7, ["a"], UUID(int=7), b"ann"])
def test_a_key_that_is_not_a_string_is_refused_with_what_to_write(key: Any) -> None:
    with pytest.raises(TypeError, match=r"^key=.* must be str, not .*; for example Identity\(key=str\(user\.id\)\)$"):
        Identity("ann", key=key)
