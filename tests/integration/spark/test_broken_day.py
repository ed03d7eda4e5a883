"""A broken day, as an operator meets it: the report names what was broken, and its numbers are those of the programs."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from polybus.analysis import DuckEngine, Engine
from polybus.analysis import Pipeline as AnyPipeline
from polybus.analysis.manifest import Output
from polybus.analysis.pipeline import Done
from polybus.analysis.report.hops import BY_ID
from polybus.analysis.storage import Storage
from polybus.capture import Capture
from polybus.capture.schema import EXCHANGES
from polybus.spark.engine import SparkEngine

from .broken_day import PROTOCOLS, SLOW, Log, live

NUMBER = re.compile(rb"n(\d{6})n")


def _truth(capture: Path) -> dict[tuple[Any, ...], int]:
    """Requests by where they were seen, with the number in their bodies: read from the bytes of the frames alone."""
    seen: dict[tuple[str, str, int], list[tuple[int, int]]] = {}
    for batch in Capture(capture).batches():
        for row in batch.rows.to_pylist():
            for number in set(NUMBER.findall(row["frame"] or b"")):
                seen.setdefault((row["capture_id"], row["conn_id"], int(number)), []).append((row["seq"], row["mono_ns"]))
    found = {}
    for (capture_id, conn_id, number), frames in seen.items():
        (asked, begin), *rest = sorted(frames)
        assert len(rest) <= 1
        answered, latency = (rest[0][0], rest[0][1] - begin) if rest else (None, None)
        found[capture_id, conn_id, asked, answered, latency] = number
    return found


def _exchanges(out: Path) -> list[dict[str, Any]]:
    storage = Storage(out)
    with DuckEngine() as engine:
        rows: list[dict[str, Any]] = engine.rows(
            engine.read(storage, "exchanges", Output(storage).files("exchanges"), EXCHANGES)
        ).to_pylist()
        return rows


@pytest.fixture(scope="module")
def day(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Log]:
    capture = tmp_path_factory.mktemp("day") / "capture"
    return capture, live(capture)


def test_every_count_pair_and_latency_is_that_of_the_programs_own_log_in_both_engines(
    spark: SparkSession, day: tuple[Path, Log], tmp_path: Path
) -> None:
    capture, log = day
    truth, made = _truth(capture), dict[str, Done]()
    with DuckEngine() as duckdb:
        engines: tuple[Engine, ...] = (duckdb, SparkEngine(spark))
        for engine in engines:
            name = type(engine).__name__
            made[name] = AnyPipeline(engine).run(capture, tmp_path / name)
            # What the library says on its own account, and streams, have no number.
            rows = [
                row for row in _exchanges(tmp_path / name) if row["kind"] != "stream" and "_polybus.hello" not in row["subject"]
            ]
            names = ("capture_id", "conn_id", "request_seq", "response_seq", "latency_ns")
            found = {tuple(row[column] for column in names): row for row in rows}
            assert found.keys() == truth.keys()
            _same_as_log(log, truth, found)
    one, other = made.values()
    assert one.metrics == other.metrics
    assert Path(one.report).read_bytes() == Path(other.report).read_bytes()
    _named(one.metrics)
    _ways(one.metrics["journeys"])


def _same_as_log(log: Log, truth: dict[tuple[Any, ...], int], found: dict[tuple[Any, ...], dict[str, Any]]) -> None:
    for key, number in truth.items():
        assert (key[-1] is None) == (number not in log.elapsed_ns)
        if key[-1] is not None:
            assert 0 < key[-1] <= log.elapsed_ns[number], "nobody has waited less than the frames say"
    ends = Counter[tuple[str, str]]()
    for row in found.values():
        ends[row["protocol"], row["outcome"] if row["outcome"] in ("ok", "error") else "lost"] += 1
    # Recorded at both ends and, over the bridge, on the further side of it, too.
    seen_in = {name: {name: 1} for name in PROTOCOLS} | {"bridge": {"ubre": 2, "uprotocol": 1}, "tunnel": {"csb": 2}}
    logged = Counter[tuple[str, str]]()
    for (link, _, outcome), n in log.outcomes.items():
        for protocol, times in seen_in.get(link, {}).items():
            logged[protocol, outcome] += n * times
    assert ends == logged


def _named(metrics: dict[str, Any]) -> None:
    """The verdict names what was planted: what is not there, the slow one, the lost ones, the kill and the large body."""
    said: dict[str, str] = {}
    for one in metrics["verdict"]:
        said[one["about"]] = f"{said.get(one['about'], '')} {one['text']}"
    asked = metrics["totals"]["exchanges"]
    assert re.search(rf"\b14 of {asked} requests \(.* %\) failed: tank\.get with NOT_FOUND \(7\)", said["failed"])
    assert re.search(rf"\b3 of {asked} requests \(.* %\) were given up by who had asked: tank\.lost \(2\), ", said["cancelled"])
    assert "tank.slow is slow: 5 % of its 25 answers" in said["slow"]
    assert "ubre: without a word, 1006 (1)" in said["broke"]
    assert "ubre: a message too large, 1009 (1)" in said["broke"]


def _ways(journeys: list[dict[str, Any]]) -> None:
    """A slow request is followed to its other end before the bridge, one in the tunnel to what carried it."""
    ways = [[(hop["protocol"], hop["direction"], hop["tunnel"]) for hop in row["hops"]] for row in journeys]
    over_the_bridge: list[Any] = [("ubre", 0, []), ("ubre", 1, [])]
    in_the_tunnel = [("csb", 0, ["plant.7"]), ("csb", 1, ["plant.7"])]
    assert over_the_bridge in ways
    # The far side is in another recording, and the same body has other bytes there: nothing says that it belongs to it.
    assert not any(row["may_be"] for row in journeys)
    place = ways.index(in_the_tunnel)
    assert journeys[place]["hops"][1]["known_by"] == BY_ID
    frames = journeys[place]["frames"]
    assert [frame["kind"] for frame in frames if not frame["carries"]] == ["request", "request", "response", "response"]
    assert [frame["protocol"] for frame in frames if frame["carries"]] == ["ubre"] * 4
    assert journeys[place]["latency_ns"] >= SLOW * 1e9
