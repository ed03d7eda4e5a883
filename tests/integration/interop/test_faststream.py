"""FastStream at the other end of a real NATS server: as client of ours, as service for ours, and as member of a group."""

from typing import Any

import pytest
from attrs import frozen

from polybus import Bus, Context, DeadlineExceeded, NoHandler, connect

from .faststream_peer import NatsBroker, NatsMessage, faststream
from .nats_servers import NatsServer

BODIES: list[Any] = [{"a": [1, None, 1.5]}, [], ["ü"], 7, -1.5, True, False]
"""What FastStream writes as JSON, of what JSON has. Text is text/plain to it, and nothing is no bytes."""


@frozen
class User:
    id: int
    name: str


async def test_our_request_reaches_their_handler_with_its_headers(server: NatsServer) -> None:
    seen: list[NatsMessage] = []

    def declare(broker: NatsBroker) -> None:
        @broker.subscriber("echo", queue="q")
        async def echo(body: Any, message: NatsMessage) -> Any:
            seen.append(message)
            return body

        @broker.subscriber("user.get")
        async def get_user(id: int, name: str) -> dict[str, Any]:  # FastStream takes the members of an object apart
            return {"id": id, "name": name}

    async with faststream(server.address, declare), connect(server.url) as bus:
        for body in BODIES:
            assert await bus.request("echo", body) == body
        assert await bus.request("echo", b"\x00\xff") == b"\x00\xff"
        assert await bus.request("user.get", User(7, "ü"), returns=User) == User(7, "ü")
        await bus.request("echo", 1, headers={"x-kind": "flash"}, timeout=30)
        assert seen[-1].headers["x-kind"] == "flash"
        assert 0 < int(seen[-1].headers["Polybus-Ttl"]) <= 30_000


async def test_a_handler_of_theirs_that_fails_answers_nobody_so_our_deadline_ends_it(server: NatsServer) -> None:
    def declare(broker: NatsBroker) -> None:
        @broker.subscriber("fail")
        async def fail(body: Any) -> None:
            raise ValueError("the password is swordfish")

        @broker.subscriber("strict")
        async def strict(body: int) -> int:
            return body

    async with faststream(server.address, declare), connect(server.url) as bus:
        for subject in ("fail", "strict"):
            with pytest.raises(DeadlineExceeded):
                await bus.request(subject, "no number", timeout=0.2)
        with pytest.raises(NoHandler):
            await bus.request("nobody", timeout=1000)
        assert bus.stats().pending == 0


async def test_their_request_reaches_our_handler_with_its_headers(server: NatsServer) -> None:
    bus, headers = Bus(), list[Any]()

    @bus.handle("echo")
    async def echo(body: Any, ctx: Context) -> Any:
        headers.append(ctx.message.headers)
        return body

    @bus.handle("user.get")
    async def get_user(user: User) -> User:
        return user

    async with connect(server.url, bus=bus), faststream(server.address) as theirs:
        for body in BODIES:
            answer = await theirs.request(body, "echo")
            assert await theirs.run(answer.decode()) == body
        answer = await theirs.request(b"\x00\xff", "echo")
        assert answer.body == b"\x00\xff"
        answer = await theirs.request({"id": 7, "name": "ü"}, "user.get", headers={"x-kind": "flash"}, correlation_id="c-1")
        assert await theirs.run(answer.decode()) == {"id": 7, "name": "ü"}
        answer = await theirs.request(1, "echo", headers={"x-kind": "flash"}, correlation_id="c-1")
        assert headers[-1]["x-kind"] == "flash"
        assert headers[-1]["correlation_id"] == "c-1"
        assert headers[-1]["content-type"] == "application/json"
