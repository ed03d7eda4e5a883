"""DataFrames onto a bus."""

import pickle
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import polybus
from polybus import sync
from polybus.spark import BusDataSource
from polybus.spark.source import ID_HEADER


def _collecting(count: int, send: Any) -> list[polybus.Message]:
    with sync.Bus() as bus, bus.serve("ubre+tcp://127.0.0.1:0") as listener, bus.subscribe("rows.>") as rows:
        send(listener.url)
        return [next(rows) for _ in range(count)]


def _id(message: polybus.Message) -> str:
    assert message.headers is not None
    return message.headers[ID_HEADER]


def test_a_data_frame_is_published_with_ids_that_stay_the_same(spark: SparkSession) -> None:
    frame = spark.range(0, 10, 1, 2).select(
        F.concat(F.lit("rows."), F.col("id")).alias("subject"), F.struct("id", (F.col("id") * 2).alias("twice")).alias("body")
    )

    def send(url: str) -> None:
        frame.write.format("polybus").mode("append").option("run", "monday").save(url)

    first, again = _collecting(10, send), _collecting(10, send)
    bodies = sorted((message.subject, message.body["id"], message.body["twice"]) for message in first)
    assert bodies == [(f"rows.{n}", n, 2 * n) for n in range(10)]
    ids = {_id(message): message.subject for message in first}
    assert len(ids) == 10
    assert all(name.startswith("monday-") for name in ids)
    assert ids == {_id(message): message.subject for message in again}


def test_what_is_published_another_time_has_other_ids_if_nobody_names_the_run() -> None:
    def prefixes() -> set[str]:
        writers = [BusDataSource({"path": "ubre+tcp://127.0.0.1:1"}).writer(_schema("subject string, data string"), False)]
        return {pickle.loads(pickle.dumps(writer))._run for writer in writers * 2}

    first, second = prefixes(), prefixes()
    assert len(first) == len(second) == 1, "each task of one has the same"
    assert first != second


def test_a_stream_is_published_with_the_number_of_its_batch_in_the_ids(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.range(0, 6, 1, 1).select(
        F.lit("rows.x").alias("subject"), F.to_json(F.struct("id")).cast("binary").alias("data")
    )
    frame.withColumn("datacontenttype", F.lit("application/json")).write.parquet(str(tmp_path / "in"))

    def send(url: str) -> None:
        stream = spark.readStream.schema("subject string, data binary, datacontenttype string").parquet(str(tmp_path / "in"))
        query = (
            stream.writeStream.format("polybus")
            .option("path", url)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(200)
        assert query.exception() is None

    found = _collecting(6, send)
    assert sorted(message.body["id"] for message in found) == list(range(6))
    assert {_id(message) for message in found} == {f"run-0-0-{n}" for n in range(6)}


def test_what_a_publication_needs_is_said() -> None:
    for options, column, overwrite, problem in (
        ({"path": ""}, "body", False, "no URL given"),
        ({}, "body", True, r"use mode\('append'\)"),
        ({"runn": "monday"}, "data", False, "unknown option 'runn' for publishing; use one of path, url, idHeader"),
        ({"timeout": "soon"}, "data", False, "timeout='soon' must be a number of seconds above 0"),
        ({}, "colour", False, "needs the columns subject, and body or data; given are subject, colour"),
    ):
        with pytest.raises(ValueError, match=problem):
            source = BusDataSource({"path": "ubre+tcp://127.0.0.1:1", **options})
            source.writer(_schema(f"subject string, {column} string"), overwrite)


def _schema(text: str) -> Any:
    from pyspark.sql.types import StringType, StructField, StructType

    return StructType([StructField(part.split()[0], StringType()) for part in text.split(", ")])
