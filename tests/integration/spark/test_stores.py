"""What a recording of stored publications says, against what the program has counted, on a real server and by both engines."""

import re
from collections import Counter
from pathlib import Path
from typing import Any

import anyio
from pyspark.sql import SparkSession

from polybus import Bus, Cluster, Context, Retry, Store
from polybus.analysis import DuckEngine, Engine, Pipeline, open_tables
from polybus.events import DeadLettered
from polybus.spark import load
from polybus.spark.engine import SparkEngine
from tests.integration.interop.nats_servers import nats_server
from tests.support import bounded, eventually

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "stores.md"
ORDERS = 12
"""Of which each third is handled at its first, second or third attempt."""


class Program:
    """A shop whose bus records, and counts what its handlers do."""

    def __init__(self, url: str, folder: Path) -> None:
        self.runs: Counter[tuple[str, int]] = Counter()
        """By handler and attempt."""
        self.handled: Counter[str] = Counter()
        self.dead: Counter[tuple[str, str]] = Counter()
        """By handler and reason."""
        self._folder = folder
        self._bus = bus = Bus(cluster=Cluster(f"{url}/shop", stores=[Store("orders", "orders.>")]))

        @bus.on("orders.placed", durable="billing", retry=Retry(attempts=3, backoff=0.01), concurrency=4)
        async def bill(order: int, ctx: Context) -> None:
            self.runs["billing", ctx.attempt or 0] += 1
            if (ctx.attempt or 0) <= order % 3:
                raise RuntimeError("the bank does not answer")
            self.handled["billing"] += 1

        @bus.on("orders.bad", durable="audit", retry=Retry(attempts=2, backoff=0.01))
        async def audit(order: Any, ctx: Context) -> None:
            self.runs["audit", ctx.attempt or 0] += 1
            raise ValueError(order)

        @bus.on("orders.odd", durable="typed")
        async def typed(order: int) -> None:
            self.handled["typed"] += 1

    async def run(self) -> None:
        bus = self._bus
        async with bus.record(self._folder), bus:
            events = bus.events()
            for number in range(ORDERS):
                await bus.publish("orders.placed", number, id=f"order {number}")
            await bus.publish("orders.placed", 0, id="order 0")
            await bus.publish("orders.bad", "poison")
            for body in ("text", 7):
                await bus.publish("orders.odd", body)
            async for event in events:
                if isinstance(event, DeadLettered):
                    _, _, said = event.reason.partition("durable ")
                    durable, _, reason = said.partition(": ")
                    self.dead[durable, reason] += 1
                    if self.dead.total() == 2:
                        break
            await eventually(lambda: self.handled.total() == ORDERS + 1)


def test_attempts_redeliveries_and_dead_letters_are_those_that_the_program_has_counted(
    spark: SparkSession, tmp_path: Path
) -> None:
    folder = tmp_path / "captures"
    with nats_server("wheel", f'jetstream {{ store_dir: "{tmp_path / "js"}" }}\n') as engine:
        program = Program(engine.url, folder)
        anyio.run(bounded(program.run))
    with DuckEngine() as duck:
        engines: dict[str, Engine] = {"duckdb": duck, "spark": SparkEngine(spark)}
        found = {name: Pipeline(one).run(folder, tmp_path / name).metrics for name, one in engines.items()}
    metrics = found["duckdb"]
    assert all(other == metrics for other in found.values())
    publications = {row["store"]: row for row in metrics["store_publications"]}
    assert publications["shop-orders"] == {
        **{"store": "shop-orders", "n": ORDERS + 4, "kept": ORDERS + 4, "duplicates": 1},
        **{"refused": 0, "unanswered": 0, "sent_again": 0},
    }
    deliveries = {row["durable"]: row for row in metrics["store_deliveries"]}
    runs, handled = {attempt: n for (name, attempt), n in program.runs.items() if name == "billing"}, program.handled["billing"]
    n, first = sum(runs.values()), runs[1]
    assert deliveries["billing"] == {
        **{"store": "shop-orders", "durable": "billing", "publications": ORDERS, "most_attempts": 3, "ended": 0},
        **{"n": n, "redelivered": n - first, "again": n - handled, "handled": handled, "unsettled": 0},
    }
    assert [deliveries["audit"][name] for name in ("n", "redelivered", "again", "ended")] == [2, 1, 1, 1]
    assert [deliveries["typed"][name] for name in ("n", "handled", "ended")] == [2, program.handled["typed"], 1]
    letters = {(row["durable"], row["reason"]): (row["store"], row["n"]) for row in metrics["store_letters"]}
    assert letters == {key: ("shop-orders", n) for key, n in program.dead.items()}
    assert len(letters) == 2
    report = (tmp_path / "duckdb" / "report.html").read_text()
    assert 'id="stores"' in report
    assert "2 dead letters in stores" in report
    [question] = re.findall(r"```sql\n(.*?)```", PAGE.read_text(), re.DOTALL)
    answer = open_tables(tmp_path / "duckdb").sql(question).fetchall()
    assert sum(n for durable, _, _, n in answer if durable == "billing") == deliveries["billing"]["n"]
    assert ("audit", 2, "TERM", 1) in answer
    load(spark, tmp_path / "spark", "exchanges").createOrReplaceTempView("exchanges")
    assert [tuple(row) for row in spark.sql(question).collect()] == answer
    assert metrics["totals"]["outcomes"]["unanswered"] == metrics["counts"]["orphans"] == 0
