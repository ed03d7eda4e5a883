"""polybus.testing: pair and Faults."""

from contextlib import suppress
from typing import Any

import pytest

from polybus import Bus, BusError, Context, Identity
from polybus.errors import DeadlineExceeded, Disconnected, Forbidden, LocalProtocolError
from polybus.protocols import Ubre
from polybus.testing import Faults, context, pair, protocol_suite, transport_suite
from polybus.transports import Memory
from tests.loops import virtual_time  # noqa: F401
from tests.refusal import refused
from tests.support import BOUND, eventually


def echoing(**options: Any) -> Bus:
    bus = Bus(**options)

    @bus.handle("echo")
    async def echo(body: Any, ctx: Context) -> Any:
        return [body, ctx.identity]

    return bus


async def test_both_ends_of_nats_are_clients_of_an_engine() -> None:
    bus = echoing()
    async with pair(bus, protocol="nats") as client, client.subscribe("news.>") as news:
        assert await client.request("echo", 7) == [7, None]
        await bus.publish("news.today", 1)
        assert (await news.receive(BOUND)).body == 1
        assert client.peers[0].protocol == "nats"
    with_identity = pair(bus, protocol="nats", identity="ann")
    await refused(with_identity, LocalProtocolError, match=r"identity= and faults= do not apply.*NatsEngine")


async def test_the_identity_is_what_handlers_see_and_authenticate_is_not_asked() -> None:
    bus = echoing(authenticate=lambda handshake: pytest.fail("it was asked"))
    async with pair(bus, identity="ann") as ann, pair(bus, identity=Identity({"id": 7}, key="bob")) as bob:
        assert await ann.request("echo", 1) == [1, "ann"]
        assert await bob.request("echo", 2) == [2, {"id": 7}]
        assert len(bus.peers_of("ann")) == len(bus.peers_of("bob")) == 1


async def _answered(faults: Faults) -> list[int]:
    """Which of thirty requests are answered when frames get lost."""
    async with pair(echoing(), faults=faults) as client:
        replies = [client.request("echo", number, timeout=BOUND) for number in range(30)]
        while True:  # answers come in order: after that of a later request there are none to come
            with suppress(DeadlineExceeded):
                await client.request("echo", "all before?", timeout=0.02)
                break
        return [number for number, reply in enumerate(replies) if reply.done()]


async def test_equal_seeds_give_equal_faults() -> None:
    once, again, other = [await _answered(Faults(seed=seed, drop=0.2)) for seed in (1, 1, 2)]
    assert once == again
    assert once != other
    assert 0 < len(once) < 30


@pytest.mark.parametrize(
    ("reconnect", "outcomes"),
    [(False, [0, 1, *[Disconnected] * 2]), (True, [0, 1, Disconnected, 3, 4, Disconnected, 6, 7, Disconnected])],
    ids=["", "with reconnect each connection anew"],
)
async def test_a_cut_comes_after_so_many_frames_and_is_a_disconnect(reconnect: bool, outcomes: list[Any]) -> None:
    async with pair(echoing(), faults=Faults(cut_after=5), reconnect=reconnect) as client:
        for number, outcome in enumerate(outcomes):
            try:
                assert (await client.request("echo", number, timeout=BOUND))[0] == outcome
            except BusError as error:
                assert type(error) is outcome


async def test_delays_keep_the_order() -> None:
    bus = echoing()
    async with pair(bus, faults=Faults(seed=1, delay=0.003)) as client, bus.subscribe("x") as received:
        for number in range(50):
            await client.publish("x", number)
        assert [(await anext(received)).body for _ in range(50)] == list(range(50))
        replies = [client.request("echo", number) for number in range(20)]
        assert [(await reply)[0] for reply in replies] == list(range(20))


async def test_leaving_while_frames_are_late_loses_none_that_were_sent() -> None:
    bus, heard = Bus(), []

    @bus.on("x")
    async def on_x(body: int) -> None:
        heard.append(body)

    async with bus:
        async with pair(bus, faults=Faults(seed=1, delay=0.02)) as client:
            for number in range(10):
                await client.publish("x", number)
        await eventually(lambda: heard == list(range(10)))


async def test_shares_outside_0_to_1_and_other_types_are_refused() -> None:
    for wrong in ({"drop": 1.5}, {"drop": -0.1}, {"duplicate": 2}, {"delay": -1}, {"cut_after": 0}):
        with pytest.raises(ValueError, match="must be"):
            Faults(**wrong)
    for name, kind in (("bus", "Bus"), ("client", "Bus"), ("faults", "Faults")):
        await refused(pair(**dict[str, Any](bus=Bus()) | {name: 0}), TypeError, f"{name}=.* must be {kind}")


def test_a_suite_leaves_out_what_it_is_told_with_a_reason_and_knows_its_own_tests() -> None:
    suite = protocol_suite(Ubre, skip={"test_headers_arrive": "this wire has none"})
    told = [mark.kwargs for mark in suite.test_headers_arrive.pytestmark if mark.name == "skip"]
    assert told == [{"reason": "this wire has none"}]
    for suite_of in (protocol_suite, lambda *of, skip: transport_suite(Memory, "memory://x", skip=skip)):
        with pytest.raises(ValueError, match="no tests of the suite"):
            suite_of(Ubre, skip={"test_nothing": ""})


# -- a context for a handler that is called as a function -----------------------------------------------------------------


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

    async def outer(ctx: Context) -> Any:
        return await ctx.bus.request("double", ctx.message.body)

    async with bus:
        made = context(bus=bus, subject="outer", body=21)
        assert await outer(made) == 42
        assert (made.message.subject, made.deadline, made.log.extra) == ("outer", None, {"subject": "outer", "peer": None})
