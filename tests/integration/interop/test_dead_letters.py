"""Dead letters on real NATS servers: retried for their handler alone, after a crash each time, as bytes."""

import itertools
import json
import re
import sys
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from polybus import Bus, Cluster, Context, Limits, LocalProtocolError, Message, Retry, Store
from polybus.cluster.durable.administration import Administration
from polybus.cluster.durable.dead_letters import DeadLetter
from polybus.events import DeadLettered
from tests.integration.interop.nats_servers import VERSIONS, NatsServer, nats_server
from tests.support import BOUND, eventually, next_event

from .test_rest_copies import copied_whole, jetstream, until_stored

WORK = Store("work", "work.>")
SOON = Retry(attempts=2, backoff=(0.01,))
_names = itertools.count()


def shop_at(engine: NatsServer) -> tuple[str, Bus]:
    name = f"dead{next(_names)}"
    return name, Bus(cluster=Cluster(engine.url, name=name, stores=[WORK]))


async def letters(administration: Administration, count: int) -> list[DeadLetter]:
    found: list[DeadLetter] = []

    async def there() -> bool:
        found[:] = [letter async for letter in administration.letters()]
        return len(found) == count

    await eventually(there)
    return found


async def test_what_kills_its_worker_each_time_is_a_dead_letter_after_its_attempts(engine: NatsServer) -> None:
    name, bus = shop_at(engine)
    program = str(Path(__file__).with_name("dead_by_kill.py"))
    ends: list[int] = []
    async with bus:
        await bus.publish("work.deadly", 1)
        with anyio.fail_after(BOUND):
            async with anyio.create_task_group() as group:

                async def work() -> None:
                    while True:  # as a supervisor does
                        async with await anyio.open_process([sys.executable, program, engine.url, name]) as worker:
                            ends.append(await worker.wait())

                group.start_soon(work)
                (letter,) = await letters(Administration.of(bus), 1)
                group.cancel_scope.cancel()
    assert ends == [-9, -9]
    assert (letter.durable, letter.subject, letter.attempts, letter.body) == ("deadly", "work.deadly", 2, b"1")


async def test_a_retried_body_of_bytes_that_looks_like_json_stays_bytes(engine: NatsServer) -> None:
    _, bus = shop_at(engine)
    billed, broken = list[Any](), True

    @bus.on("work.placed", durable="billing", retry=SOON)
    async def bill(body: Any, message: Message) -> None:
        if broken:
            raise ValueError("no")
        billed.append((body, (message.headers or {})["x-shop"]))

    async with bus:
        await bus.publish("work.placed", b"[1]", headers={"x-shop": "7"})
        (letter,) = await letters(Administration.of(bus), 1)
        broken = False
        await Administration.of(bus).retry(letter)
        await eventually(lambda: billed == [(b"[1]", "7")])


async def test_no_attempt_comes_before_its_pause_is_over(engine: NatsServer) -> None:
    _, bus = shop_at(engine)
    attempts: list[tuple[int, float]] = []

    @bus.on("work.hard", durable="hard", retry=Retry(attempts=3, backoff=(0.3, 0.6)))
    async def hard(number: int, ctx: Context) -> None:
        attempts.append((ctx.attempt, anyio.current_time()))
        raise ValueError("no")

    async with bus:
        await bus.publish("work.hard", 1)
        await letters(Administration.of(bus), 1)
    assert [attempt for attempt, _ in attempts] == [1, 2, 3]
    first, second, third = (at for _, at in attempts)
    assert (second - first >= 0.3, third - second >= 0.6) == (True, True)


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("work", [False, True])
async def test_what_has_no_room_in_its_letter_is_kept_whole_beside_it_and_the_others_go_on(
    engine: NatsServer, work: bool, ordered: bool
) -> None:
    name = f"left{next(_names)}"
    cluster = Cluster(engine.url, name=name, stores=[Store("work", "work.>", work=work)])
    bus = Bus(cluster=cluster, limits=Limits(message=4 << 20))
    handled: list[tuple[int, str, Any]] = []
    repaired = False

    @bus.on("work.hard", durable="billing", retry=Retry(attempts=1), ordered=ordered)
    async def bill(text: str, ctx: Context) -> None:
        if len(text) > 1 and not repaired:
            raise ValueError("no bank")
        handled.append((len(text), str(ctx.message.id), (ctx.message.headers or {}).get("x-shop")))

    size = (1 << 20) - 200
    async with bus:
        administration = Administration.of(bus)
        await bus.publish("work.hard", "x" * size, id="order-1", headers={"x-shop": "7"})
        await bus.publish("work.hard", "x", id="order-2")
        [letter] = await letters(administration, 1)
        await eventually(lambda: handled)
        assert (letter.left_out, letter.body, letter.whole) == ("headers, body", b"", 1)
        assert handled.pop() == (1, "order-2", None)
        with pytest.raises(LocalProtocolError, match="has no dead letter 1"):
            await administration.letter(1)
        await until_stored(administration, 0 if work else 2)
        repaired = True
        await administration.retry(letter)
        await eventually(lambda: handled)
        assert handled == [(size, "order-1", "7")]
        assert (await administration.store("dead")).publications == 0
        await until_stored(administration, 0 if work else 3)


def rooms(engine: NatsServer, *, ordered: bool) -> tuple[str, Bus, Bus, Bus, list[tuple[int, Any]]]:
    """A bus with a store of work, a worker with little room and one with much, and what both have handled: size and id."""
    name = f"room{next(_names)}"
    bus = Bus(cluster=Cluster(engine.url, name=name, stores=[Store("work", "work.>", work=True)]))
    small = Bus(cluster=Cluster(engine.url, name=name), limits=Limits(message=64 << 10))
    large = Bus(cluster=Cluster(engine.url, name=name))
    handled: list[tuple[int, Any]] = []

    async def bill(text: str, ctx: Context) -> None:
        handled.append((len(text), ctx.message.id))

    for worker in (small, large):
        worker.on("work.*", durable="billing", ordered=ordered)(bill)
    return name, bus, small, large, handled


async def test_what_a_worker_has_no_room_for_stays_in_its_store_until_it_is_tried_again(
    engine: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    _, bus, small, large, handled = rooms(engine, ordered=False)
    async with bus:
        administration = Administration.of(bus)
        async with small:
            await bus.publish("work.hard", "x" * 100_000, id="order-1")
            await bus.publish("work.hard", "x", id="order-2")
            [letter] = await letters(administration, 1)
            await eventually(lambda: handled)
        assert handled == [(1, "order-2")]
        assert (letter.body, letter.left_out, letter.whole) == (b"", "headers, body", 0)
        assert (await administration.store("work")).publications == 1
        assert "stays stored until the letter is retried or dropped" in caplog.text
        async with large:
            await administration.retry(letter)
            await until_stored(administration, 0)
    assert handled == [(1, "order-2"), (100_000, "order-1")]


async def test_an_ordered_handler_goes_on_behind_what_its_worker_has_no_room_for(
    engine: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    name, bus, small, large, handled = rooms(engine, ordered=True)
    async with bus:
        administration = Administration.of(bus)
        async with small:
            await bus.publish("work.hard", "x" * 100_000, id="order-0")
            await eventually(lambda: copied_whole(bus, f"{name}-work", 1))
            for number, size in enumerate((1, 90_000, 2), 1):  # which the engine has not copied from the store
                await bus.publish("work.hard", "x" * size, id=f"order-{number}")
            await eventually(lambda: handled == [(1, "order-1"), (2, "order-3")])
        first, second = [letter async for letter in administration.letters()]
        assert [(letter.left_out, letter.whole) for letter in (first, second)] == [("headers, body", 0)] * 2
        await until_stored(administration, 0)
        assert "stays stored" not in caplog.text
        await administration.drop(second)
        async with large:
            await administration.retry(first)
            await eventually(lambda: len(handled) == 3)
        assert handled[2] == (100_000, "order-0")
        names = await jetstream(bus).streams(">")
        assert sorted(one for one in names if one.startswith(f"{name}-")) == [f"{name}-dead", f"{name}-work"]


async def test_a_stream_of_others_with_the_name_of_a_copy_stays_as_it_is(
    engine: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    name, bus, small, _, _ = rooms(engine, ordered=True)
    async with bus:
        administration, engine_api, theirs = Administration.of(bus), jetstream(bus), f"{name}-work-rest-1"
        await engine_api.ask(f"STREAM.CREATE.{theirs}", {"name": theirs, "subjects": [f"{name}.theirs"], "storage": "file"})
        async with small:
            await bus.publish("work.hard", "x" * 100_000, id="order-1")
            await eventually(lambda: "stays stored until the letter is retried or dropped" in caplog.text)
        [letter] = [letter async for letter in administration.letters()]
        await administration.drop(letter)
        found = await engine_api.ask(f"STREAM.INFO.{theirs}")
        assert found["config"]["subjects"] == [f"{name}.theirs"]
        assert (await administration.store("work")).publications == 0


def permissions_of_page() -> list[str]:
    """The subjects of the table in docs/reference/cluster.md, but for its last row: copies of what a worker has no room for."""
    page = (Path(__file__).parents[3] / "docs" / "reference" / "cluster.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| `$JS.")]
    return [subject for row in rows[:-1] for subject in re.findall(r"`(\$JS\.[^`]+)`", row)]


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_node_needs_no_more_permissions_than_the_page_says(version: str, tmp_path: Path) -> None:
    subjects = permissions_of_page()
    assert len(subjects) == 10
    few = f'{{ publish: {json.dumps(["shop.>", *subjects])}, subscribe: ["shop.>"] }}'
    users = f"{{ user: few, password: x, permissions: {few} }}"
    config = f'jetstream {{ store_dir: "{tmp_path}" }}\nauthorization {{ users: [ {users}, {{ user: all, password: x }} ] }}'
    done: list[tuple[int, int]] = []
    with nats_server(version, config) as server:
        url, whole = (server.url.replace("//", f"//{user}:x@") for user in ("few", "all"))
        bus = Bus(cluster=Cluster(url, name="shop", stores=[WORK]))
        owner = Bus(cluster=Cluster(whole, name="shop"))

        @bus.on("work.x", durable="billing", retry=SOON)
        async def bill(number: int, ctx: Context) -> None:
            if number == 7:
                raise ValueError("no")
            done.append((number, ctx.attempt))

        async with bus, owner:
            events = bus.events()
            for number in (1, 7):
                await bus.publish("work.x", number, id=str(number), timeout=BOUND)
            await eventually(lambda: done == [(1, 1)])
            await next_event(events, DeadLettered)
            assert [letter.body async for letter in Administration.of(owner).letters()] == [b"7"]
            async with bus.subscribe("work.>", start="all") as replay:
                assert [(await replay.receive(BOUND)).body for _ in range(2)] == [1, 7]
            async with bus.subscribe("work.x", durable="audit") as audit:
                (await audit.receive(BOUND)).ack()
            with pytest.raises(LocalProtocolError, match="already has id='1' for 'work.x'"):
                await bus.publish("work.y", 1, id="1", timeout=BOUND)
            await eventually(lambda: _durables(owner, {"billing", "audit"}))


async def _durables(bus: Bus, names: set[str]) -> bool:
    return (await Administration.of(bus).store("work")).durables.keys() == names


@pytest.mark.parametrize("concurrency", [1, 8])
@pytest.mark.parametrize("version", VERSIONS)
async def test_a_worker_that_may_not_acknowledge_says_so_once_and_takes_no_more(
    version: str, concurrency: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    allowed = '{ publish: ["shop.>", "$JS.API.>"], subscribe: ["shop.>"] }'
    users = f"{{ user: all, password: x }}, {{ user: few, password: x, permissions: {allowed} }}"
    config = f'jetstream {{ store_dir: "{tmp_path}" }}\nauthorization {{ users: [ {users} ] }}'
    with nats_server(version, config) as server:
        shop, few, other = (
            Bus(cluster=Cluster(server.url.replace("//", f"//{user}:x@"), name="shop", stores=[WORK]))
            for user in ("all", "few", "all")
        )
        handled: dict[Bus, list[int]] = {few: [], other: []}

        async def bill(number: int, ctx: Context) -> None:
            handled[ctx.bus].append(number)

        for worker in (few, other):
            worker.on("work.x", durable="billing", ack_wait=1, concurrency=concurrency)(bill)
        async with shop, few:
            for number in range(2):
                await shop.publish("work.x", number)
            await eventually(lambda: "may not acknowledge its publications" in caplog.text)
            await anyio.wait_all_tasks_blocked()  # what it had begun by then comes to its end
            before = [*handled[few]]
            for number in range(2, 5):  # it has asked for more before it was refused
                await shop.publish("work.x", number)
            async with other:
                await eventually(lambda: {*handled[other]} == {*range(5)})
        assert handled[few] == before
        assert caplog.text.count("may not acknowledge its publications") == 1
        assert "let this user publish to $JS.ACK.shop-work.billing.>" in caplog.text
