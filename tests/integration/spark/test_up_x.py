"""A recording of UMessages through the pipeline: exchanges by the ids of their requests."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
from pyspark.sql import SparkSession

from polybus import Bus, NotFound, connect
from polybus.protocols import Up
from polybus.spark import Pipeline, load

NAMES = {"user.get": 0x7, "news.today": 0x8007}


async def _record(folder: Path) -> None:
    bus = Bus()

    @bus.handle("user.get")
    async def get(number: int) -> int:
        await bus.publish("news.today", number)
        if number == 8:
            raise NotFound("no such user")
        return number

    server, client = Up(entity="//house/1/1", names=NAMES), Up(entity="//phone/2/1", peer="//house/1/1", names=NAMES)
    async with bus.serve("up+memory://analysed", protocol=server) as listener:
        async with connect(listener.url, protocol=client, record=folder) as asker:
            for number in range(10):
                reply = asker.request("user.get", number)
                if number == 8:
                    with pytest.raises(NotFound):
                        await reply
                else:
                    assert await reply == number


def test_requests_of_up_are_exchanges_with_their_answers(spark: SparkSession, tmp_path: Path) -> None:
    anyio.run(_record, tmp_path / "captures")
    Pipeline(spark).run(tmp_path / "captures", tmp_path / "out", report=False)
    exchanges = load(spark, tmp_path / "out", "exchanges").collect()
    keys = ("protocol", "subject", "identity_key", "match_quality")
    assert {tuple(row[key] for key in keys) for row in exchanges} == {("up", "//house/1/1/7", "//phone/2/1/0", "unique")}
    assert sorted(row["outcome"] for row in exchanges) == ["error"] + ["ok"] * 9
    assert sorted(row["code"] for row in exchanges) == [0] * 9 + [5]
    events = load(spark, tmp_path / "out", "events").where("kind = 'publish'").collect()
    assert [row["subject"] for row in events] == ["//house/1/1/8007"] * 10
    assert load(spark, tmp_path / "out", "quarantine").count() == 0
