"""A bus for the tests of `server.test.mjs`: ``served.py PORT``. It prints the messages that its handlers get."""

import datetime
import sys
from typing import Any

import anyio

from polybus import Backoff, Bus, Context, Forbidden, Handshake, Identity, Limits, NotFound, Peer, run


def authenticate(handshake: Handshake) -> Identity | None:
    token = handshake.headers.get("authorization", "").removeprefix("Bearer ")
    if token == "banned":
        raise Forbidden("not you")
    if token.startswith("short"):
        say(f"shown {token}")
        soon = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=5)
        return Identity(token, key="short", expires_at=soon)
    return None if token == "old" else Identity(token, key=token)


def authorize(peer: Peer, verb: str, subject: str | int) -> bool:
    return not str(subject).startswith("secret")


bus = Bus(limits=Limits(message=2 * 2**20), authenticate=authenticate, authorize=authorize)


def say(text: str) -> None:
    print(text, flush=True)


@bus.handle("add")
def add(numbers: list[int]) -> int:
    return sum(numbers)


@bus.handle("work")
async def work(body: dict[str, Any]) -> Any:
    say(f"run {body['id']}")
    await anyio.sleep(body.get("seconds", 0))
    return body["id"]


@bus.handle("fail")
def fail(kind: str) -> None:
    raise NotFound("no such thing", reason=kind, detail={"left": 0})


@bus.handle("forever")
async def forever() -> None:
    try:
        await anyio.sleep_forever()
    finally:
        say("forever stopped")


@bus.handle("count")
async def count(end: int) -> Any:
    number = 0
    try:
        while number < end:
            yield number
            number += 1
    finally:
        say(f"count stopped at {number}")


@bus.handle("tell")
async def tell(body: Any) -> None:
    await bus.publish("told.all", body)


@bus.handle("tick")
async def tick() -> Any:
    while True:
        yield 1
        await anyio.sleep(0.1)


@bus.handle("ask back")
async def ask_back(body: Any, ctx: Context) -> Any:
    assert ctx.peer is not None
    return await ctx.peer.request("page.where", body, headers={"by": "server"}, timeout=60)


@bus.on("seen.*")
async def seen(body: Any) -> None:
    say(f"seen {body}")


if __name__ == "__main__":
    run(bus, f"ubre+ws://127.0.0.1:{sys.argv[1]}/bus", retry=Backoff(initial=0.1, maximum=2))
