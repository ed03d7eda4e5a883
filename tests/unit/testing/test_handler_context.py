"""Handlers called as plain functions, with a context made for the test."""

import pytest

from polybus import Bus, Context, Forbidden
from polybus.testing import context

pytestmark = pytest.mark.anyio


async def get(n: int, ctx: Context) -> str:
    if ctx.identity is None:
        raise Forbidden("sign in first")
    return f"{ctx.state[n]} for {ctx.identity}, {ctx.message.headers}, {ctx.peer}"


async def test_a_handler_is_called_with_an_identity_and_a_state() -> None:
    assert await get(1, context(identity="ann", state={1: "one"}, headers={"a": "b"})) == "one for ann, {'a': 'b'}, None"
    with pytest.raises(Forbidden):
        await get(1, context())


async def test_the_bus_of_the_context_may_be_one_with_handlers() -> None:
    bus = Bus()

    @bus.handle("double")
    async def double(n: int) -> int:
        return 2 * n

    async def outer(ctx: Context) -> int:
        answer: int = await ctx.bus.request("double", ctx.message.body)
        return answer

    async with bus:
        made = context(bus=bus, subject="outer", body=21)
        assert await outer(made) == 42
        assert (made.message.subject, made.deadline, made.log.extra) == ("outer", None, {"subject": "outer", "peer": None})
