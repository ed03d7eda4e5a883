"""Peers that want more than they may have."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from polybus import Backoff, Bus, Forbidden, LocalProtocolError, NoHandler, Unauthorized, connect

from .processes import BOUND, control, eventually, loop_of, running
from .raw import RawPeer, raw_peer

pytestmark = pytest.mark.anyio

HOOKS = pytest.mark.parametrize("hook", ["sync", "async"])
REFUSALS = pytest.mark.parametrize(("how", "error"), [("unauthorized", Unauthorized), ("forbidden", Forbidden)])
KNOCK = "a knock at the door"
TRANSPORTS = pytest.mark.parametrize("transport", ["tcp", "ws"])


# -- authorize -----------------------------------------------------------------------------------------------------------


@HOOKS
async def test_a_wildcard_gives_only_the_subjects_that_deliver_allows(anyio_backend: Any, hook: str) -> None:
    async with running(authorize=hook, **loop_of(anyio_backend)) as server, connect(server.url) as bus:
        async with raw_peer(server) as bare, bus.subscribe(">") as ours:
            await bare.send({"subscribe": ">"})
            await bare.ask("echo", 1)
            for subject in ("news.a", "secret.b", "news.c", "secret.b", "news.a", "end"):
                await bus.request("publish", {"subject": subject, "first": 7})
            bare_heard, our_heard = [], []
            while "end" not in bare_heard:
                bare_heard.append((await bare.receive())["publish"])
            with anyio.fail_after(BOUND):
                while "end" not in our_heard:
                    our_heard.append((await anext(ours)).subject)
            assert bare_heard == our_heard == ["news.a", "news.c", "news.a", "end"]
        # Two peers, five publications of four subjects: remembered per peer and subject.
        assert (await control(bus))["counted"]["asked.deliver"] == 2 * 4


@HOOKS
async def test_what_is_forbidden_is_refused_and_the_rest_goes_on(anyio_backend: Any, hook: str) -> None:
    async with running(authorize=hook, **loop_of(anyio_backend)) as server, connect(server.url) as bus:
        with pytest.raises(Forbidden):
            await bus.request("vault")
        with pytest.raises(Forbidden):
            async with bus.subscribe("private.diary"):
                pass
        with pytest.raises(Forbidden):
            async with bus.subscribe("private.>"):
                pass
        await bus.publish("heard.before", 1)
        await bus.publish("closed.door", 1)
        await bus.publish("heard.after", 1)
        await eventually(lambda: _counted(bus, "heard.after", 1))
        counted = await control(bus)
        assert counted["counted"]["heard.before"] == 1
        assert counted["stats"]["refused"] >= 3
        assert await bus.request("echo", "still here") == "still here"


@HOOKS
async def test_a_hook_that_fails_refuses(anyio_backend: Any, hook: str) -> None:
    async with running(authorize=hook, **loop_of(anyio_backend)) as server, connect(server.url) as bus:
        with pytest.raises(Forbidden):
            async with bus.subscribe("trap"):
                pass
        async with bus.subscribe(">") as everything:
            await bus.request("publish", {"subject": "trap"})
            await bus.request("publish", {"subject": "end"})
            with anyio.fail_after(BOUND):
                assert (await anext(everything)).subject == "end"
        with pytest.raises(NoHandler):
            await bus.request("nobody.here")


async def _counted(bus: Bus, name: str, times: int) -> bool:
    return bool((await control(bus))["counted"][name] == times)


# -- answers that nobody may give ----------------------------------------------------------------------------------------


async def _asked(bus: Bus, victim: RawPeer, group: Any, outcome: list[Any], **question: Any) -> str:
    """Have the server ask `victim`; the id of the question as it arrived there."""
    await victim.ask("i.am", "victim")

    async def ask() -> None:
        outcome.append(await bus.request("ask", {"who": "victim", "subject": "secret.word", **question}, timeout=BOUND))

    group.start_soon(ask)
    while True:
        message = await victim.receive()
        if message.get("request") == "secret.word":
            return str(message["id"])


async def _useless_answers(bus: Bus) -> int:
    stats = (await control(bus))["stats"]
    return int(stats["late"] + stats["malformed"])


async def test_an_answer_of_another_peer_is_counted_and_has_no_effect(anyio_backend: Any) -> None:
    outcome: list[Any] = []
    async with (
        running(**loop_of(anyio_backend)) as server,
        connect(server.url) as bus,
        raw_peer(server) as victim,
        raw_peer(server) as forger,
        anyio.create_task_group() as group,
    ):
        id = await _asked(bus, victim, group, outcome)
        before = await _useless_answers(bus)
        await forger.send({"success": id, "body": "forged"}, {"fail": id, "body": "forged"})
        assert (await forger.ask("echo", "still here"))["body"] == "still here"
        assert await _useless_answers(bus) == before + 2
        assert outcome == []
        await victim.send({"success": id, "body": "true"})
        await eventually(lambda: outcome)
        assert outcome == [{"answer": "true"}]


async def test_a_guessed_id_is_counted_and_has_no_effect(anyio_backend: Any) -> None:
    outcome: list[Any] = []
    async with (
        running(**loop_of(anyio_backend)) as server,
        connect(server.url) as bus,
        raw_peer(server) as victim,
        anyio.create_task_group() as group,
    ):
        id = await _asked(bus, victim, group, outcome)
        token, _, number = id.partition("-")
        assert len(token) >= 10, "ids have a random part"
        guesses: list[Any] = [1, 2, 0, True, 1.0, None, "", "1", f"{token}-0", f"{token}-{int(number) + 1}", f"{token}-x"]
        guesses += [f"{token}-0{number}", f"{token}- {number}", f"{token}-{number}\n", id.swapcase(), [id], {"id": id}]
        before = await _useless_answers(bus)
        await victim.send(*({"success": guess, "body": "guessed"} for guess in guesses))
        assert (await victim.ask("echo", "still here"))["body"] == "still here"
        assert await _useless_answers(bus) == before + len(guesses)
        assert outcome == []
        await victim.send({"success": id, "body": "true"}, {"success": id, "body": "twice"})
        await eventually(lambda: outcome)
        assert outcome == [{"answer": "true"}]

        async def second_is_counted() -> bool:
            return await _useless_answers(bus) == before + len(guesses) + 1

        await eventually(second_is_counted)


async def test_an_answer_after_its_time_is_counted_and_has_no_effect(anyio_backend: Any) -> None:
    outcome: list[Any] = []
    async with (
        running(**loop_of(anyio_backend)) as server,
        connect(server.url) as bus,
        raw_peer(server) as victim,
        anyio.create_task_group() as group,
    ):
        id = await _asked(bus, victim, group, outcome, timeout=1.0)
        await eventually(lambda: outcome)
        assert outcome[0]["error"] == "DeadlineExceeded"
        before = (await control(bus))["stats"]["late"]
        await victim.send({"success": id, "body": "at last"})
        assert (await victim.ask("echo", "still here"))["body"] == "still here"
        assert (await control(bus))["stats"]["late"] == before + 1


# -- the door ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]"])
@TRANSPORTS
async def test_an_open_address_needs_authentication_or_a_spelled_out_exception(host: str, transport: str) -> None:
    url = f"ubre+{transport}://{host}:0"
    with pytest.raises(LocalProtocolError, match="authenticate.*insecure=True"):
        Bus().serve(url)
    Bus().serve(url, insecure=True)
    Bus(authenticate=lambda handshake: "anybody").serve(url)


@REFUSALS
async def test_who_is_refused_on_a_websocket_learns_why_at_the_door_and_does_not_knock_again(
    anyio_backend: Any, how: str, error: type[Exception]
) -> None:
    async with running(authenticate=how, urls=["ubre+ws://127.0.0.1:0"], **loop_of(anyio_backend)) as server:
        with anyio.fail_after(BOUND), pytest.raises(error):
            async with connect(server.url, wait=10 * BOUND):
                pass
        await eventually(lambda: KNOCK in server.log())
        assert server.log().count(KNOCK) == 1


@REFUSALS
async def test_who_is_refused_on_tcp_learns_why_and_does_not_knock_again(
    anyio_backend: Any, how: str, error: type[Exception]
) -> None:
    # Neither TCP nor UBRE has a handshake in which a server could welcome anybody: the refusal is the first thing that a
    # client hears, and connect() may be over by then. Everything begun before or after fails with it.
    async with running(authenticate=how, **loop_of(anyio_backend)) as server:
        with anyio.fail_after(BOUND), pytest.raises(error):
            async with connect(server.url, wait=10 * BOUND, backoff=Backoff(initial=0.01)) as bus:
                with pytest.raises(error):
                    await bus.request("echo", 1)
                await eventually(lambda: not bus.peers)
                with pytest.raises(error):
                    await bus.request("echo", 1)
                with pytest.raises(error):
                    await bus.publish("heard.of", 1)
                async with bus.subscribe("news"):
                    pass
        await eventually(lambda: KNOCK in server.log())
        assert server.log().count(KNOCK) == 1


async def test_who_has_the_token_gets_in(anyio_backend: Any) -> None:
    async with running(authenticate="unauthorized", urls=["ubre+ws://127.0.0.1:0"], **loop_of(anyio_backend)) as server:
        async with connect(server.url, headers={"authorization": "Bearer good"}) as bus:
            assert await bus.request("echo", 1) == 1
