"""Copies of publications whose dead letter has not all of them: ordered handlers of a store of work, where it is not so simple.

Several workers at once, three servers of which one is lost, and users that may not do all that is needed.
"""

import itertools
import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest

from polybus import Bus, BusError, Cluster, Context, Limits, Store
from polybus._core.bus.bus import parts_of
from polybus.cluster.backbone import Backbone
from polybus.cluster.durable.administration import Administration
from polybus.cluster.durable.jetstream import JetStream, JetStreamError, config_of
from polybus.cluster.durable.stores import Stores, copy_of
from tests.support import eventually

from .nats_servers import VERSIONS, NatsServer, nats_cluster, nats_server

LARGE, MUCH = 100_000, Limits().message
_names = itertools.count()


def backbone_of(bus: Bus) -> Backbone:
    backbone = parts_of(bus).links.mesh
    assert isinstance(backbone, Backbone)
    return backbone


def jetstream(bus: Bus, seconds: float = 30.0) -> JetStream:
    return JetStream(backbone_of(bus), seconds)  # of three servers that have lost one, somebody has to be chosen first


async def copied_whole(bus: Bus, stream: str, number: int) -> bool:
    """True once an engine has copied a publication, and copies no more."""
    found = await jetstream(bus).find(f"STREAM.INFO.{copy_of(stream, number)}")
    return found is not None and not config_of(found).get("sources")


@pytest.fixture
def three(tmp_path: Path) -> Iterator[list[NatsServer]]:
    with nats_cluster(
        3, lambda number: f'server_name: "s{number}"\njetstream {{ store_dir: "{tmp_path}/{number}" }}'
    ) as servers:
        yield servers


async def until_stored(administration: Administration, count: int) -> None:
    async def stored() -> bool:
        return (await administration.store("work")).publications == count

    await eventually(stored)


class Faster(JetStream):
    """A worker that another one overtakes between its look for a copy and the making of one."""

    def __init__(self, bus: Bus, other: Bus, *what: Any) -> None:
        super().__init__(backbone_of(bus))
        self.other, self.what = other, what

    async def ask(self, word: str, members: dict[str, Any] | None = None) -> dict[str, Any]:
        if word.startswith("STREAM.CREATE."):
            assert await Stores(jetstream(self.other)).copy_one(*self.what)
        return await super().ask(word, members)


async def test_a_worker_that_another_one_has_overtaken_leaves_its_copy_there(engine: NatsServer) -> None:
    name = f"rest{next(_names)}"
    shop = Bus(cluster=Cluster(engine.url, name=name, stores=[Store("work", "work.>", work=True)]))
    other = Bus(cluster=Cluster(engine.url, name=name))
    what = f"{name}-work", 1, f"{name}.p.work.hard", {"retention": "limits", "storage": "file"}
    async with shop, other:
        await shop.publish("work.hard", 1)
        assert await Stores(Faster(shop, other, *what)).copy_one(*what)
        found = await jetstream(shop).ask(f"STREAM.INFO.{copy_of(f'{name}-work', 1)}")
        assert found["state"]["messages"] == 1
        assert not config_of(found).get("sources")


def worker_at(name: str, url: str, handled: list[tuple[int, str]], room: int = 64 << 10) -> Bus:
    """A worker, which has little room if nothing else is said."""
    worker = Bus(cluster=Cluster(url, name=name), limits=Limits(message=room))

    @worker.on("work.*", durable="billing", ordered=True, ack_wait=2)
    async def bill(text: str, ctx: Context) -> None:
        handled.append((len(text), str(ctx.message.id)))

    return worker


async def _tried_again(
    shop: Bus, name: str, url: str, administration: Administration, letters: list[Any], ids: list[str]
) -> None:
    """Have a worker with much room handle the letters, and see that no copy stays."""
    handled: list[tuple[int, str]] = []
    async with worker_at(name, url, handled, MUCH):
        for letter in letters:
            await administration.retry(letter)
        await eventually(lambda: len(handled) == len(ids))
    assert handled == [(LARGE, id) for id in ids]
    names = await jetstream(shop).streams(">")
    assert not [one for one in names if "-rest-" in one and one.startswith(f"{name}-")]


async def _found_together(url: str) -> None:
    """Wait until a stream can be on all three servers."""
    async with Bus().connect(url) as link:
        while True:
            probe = {"name": "probe", "subjects": ["probe"], "num_replicas": 3}
            with suppress(BusError):
                if "error" not in await link.request("$JS.API.STREAM.CREATE.probe", probe, timeout=2):
                    return
            await anyio.lowlevel.checkpoint()


async def test_with_three_servers_letters_and_copies_survive_the_loss_of_one(three: list[NatsServer]) -> None:
    name, handled = f"rest{next(_names)}", list[tuple[int, str]]()
    url = three[0].url
    await _found_together(url)
    shop = Bus(cluster=Cluster(url, name=name, wait=30, stores=[Store("work", "work.>", work=True, replicas=3)]))
    worker = worker_at(name, url, handled)
    async with shop:
        administration = Administration.of(shop)
        async with worker:
            await shop.publish("work.hard", "x" * LARGE, id="order-0")
            await shop.publish("work.hard", "x", id="order-1")
            await eventually(lambda: handled == [(1, "order-1")])
        replicas = {
            one: config_of(await jetstream(shop).ask(f"STREAM.INFO.{name}-{one}"))["num_replicas"]
            for one in ("work", "dead", "work-rest-1")
        }
        assert replicas == {"work": 3, "dead": 3, "work-rest-1": 3}
        three[2].kill()
        for one in replicas:  # each has a leader again
            await jetstream(shop).ask(f"STREAM.INFO.{name}-{one}")
            with suppress(JetStreamError):  # that of work has none
                await jetstream(shop).ask(f"STREAM.MSG.GET.{name}-{one}", {"last_by_subj": ">"})
        letters = [letter async for letter in administration.letters()]
        await _tried_again(shop, name, url, administration, letters, ["order-0"])


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("denied", ["STREAM.CREATE.shop-work-rest-1", "STREAM.UPDATE.shop-work-rest-1"])
async def test_a_worker_that_may_not_copy_waits_and_leaves_nothing_behind(
    version: str, denied: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    may = json.dumps({"publish": {"deny": [f"$JS.API.{denied}"]}})
    config = f"""
        jetstream {{ store_dir: "{tmp_path}" }}
        authorization {{ users: [{{user: all, password: p}}, {{user: few, password: p, permissions: {may}}}] }}
    """
    handled: list[tuple[int, str]] = []
    with nats_server(version, config) as server:
        full, few = (server.url.replace("://", f"://{user}:p@") for user in ("all", "few"))
        shop = Bus(cluster=Cluster(full, name="shop", stores=[Store("work", "work.>", work=True)]))
        worker = worker_at("shop", few, handled)
        async with shop:
            administration = Administration.of(shop)
            async with worker:
                await shop.publish("work.hard", "x" * LARGE, id="order-0")
                await shop.publish("work.hard", "x", id="order-1")
                await eventually(lambda: "stays stored until the letter is retried or dropped" in caplog.text)
                assert f"$JS.API.{denied}" in caplog.text
            assert handled == []
            assert (await administration.store("work")).publications == 2
            names = await jetstream(shop).streams(">")
            assert sorted(names) == ["shop-dead", "shop-work"]
            letters = [letter async for letter in administration.letters()]
            assert len(letters) == 1
            async with worker_at("shop", full, handled, MUCH):
                await administration.retry(letters[0])
                await eventually(lambda: len(handled) == 2)
                await until_stored(administration, 0)
            assert sorted(handled) == [(1, "order-1"), (LARGE, "order-0")]
