"""Cost of metrics and report, compared with the same numbers from plain SQL: ``python -m bench.metrics RESULTS``.

Works on a folder of results of `polybus analyse`. Compares the group-bys behind the tables of the report, as separate
statements in one DuckDB program over the same Parquet, with `Pipeline.report`, which also makes the journeys and the page.
They take turns, after a warm-up round; prints medians of processor time and wall time.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from statistics import median

import duckdb

from polybus.analysis import DuckEngine, Pipeline
from polybus.analysis.report.sums import SUMS
from polybus.analysis.storage import TableStorage

ROUNDS = 5
_SLOW = "order by latency_ns desc nulls first, request_time_ns"
STATEMENTS = (
    "select protocol, kind, direction, count(*), sum(nbytes), min(time_ns), max(time_ns) from events group by all",
    "select time_ns // 500000000, subject, count(*), sum(nbytes) from events group by all",
    """select capture_id, conn_id, protocol, max(transport), max(peer), count(*), sum(nbytes), min(time_ns), max(time_ns),
        min(mono_ns), max(mono_ns), max(code_name) filter (kind = 'close') from events group by all""",
    "select peer, protocol, direction, count(*), sum(nbytes) from events group by all",
    "select protocol, subject, direction, count(*), sum(nbytes) from events where kind = 'publish' group by all",
    "select capture_id, count(*), max(time_ns - mono_ns) - min(time_ns - mono_ns) from events group by all",
    "select protocol, reason, count(*) from quarantine group by all",
    "select protocol, subject, count(*) from orphans group by all",
    "select protocol, outcome, match_quality, count(*), sum(duplicates), sum(attempts - 1) from exchanges group by all",
    """select kind, protocol, subject, count(*), count(latency_ns), avg(latency_ns), max(latency_ns), sum(duplicates),
        count_if(outcome = 'ok'), count_if(outcome = 'error'), count_if(outcome = 'late'), count_if(outcome = 'timeout'),
        quantile_disc(latency_ns, [0.5, 0.9, 0.95, 0.99]) from exchanges group by all""",
    """select request_time_ns // 500000000, count(*), count_if(outcome != 'ok'), quantile_disc(latency_ns, [0.5, 0.95])
        from exchanges group by all""",
    "select floor(log10(greatest(latency_ns, 1)) * 5), count(*) from exchanges group by all",
    "select protocol, subject, code, code_name, count(*) from exchanges where outcome = 'error' group by all",
    f"select * from exchanges where latency_ns is not null {_SLOW} limit 20",
    "select * from exchanges where latency_ns is null order by request_time_ns limit 20",
    f"""select * from exchanges
        qualify row_number() over (partition by protocol, subject, outcome, code {_SLOW}) <= 5""",
)


def plain(results: str) -> None:
    """Run the statements, over the current files."""
    connection = duckdb.connect()
    for table in ("events", "exchanges", "orphans", "quarantine"):
        made = f"read_parquet('{results}/{table}/**/*.parquet', hive_partitioning = true)"
        connection.execute(f"create view {table} as from {made}")
    for text in STATEMENTS:
        connection.sql(text).to_arrow_table()


def ours(results: str, capture: str) -> None:
    """Create metrics and report without earlier sums."""
    with DuckEngine() as engine:
        TableStorage(results).remove(SUMS)
        Pipeline(engine).report(capture, results)


def main(results: str) -> None:
    """Print the cost of both."""
    with open(f"{results}/metrics.json") as file:
        capture = json.load(file)["capture"]
    jobs: dict[str, Callable[[], None]] = {"plain": lambda: plain(results), "ours": lambda: ours(results, capture)}
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in jobs}
    for _ in range(ROUNDS + 1):
        for name, job in jobs.items():
            begin = time.process_time(), time.perf_counter()
            job()
            taken[name].append((time.process_time() - begin[0], time.perf_counter() - begin[1]))
    said = {name: [median(one[place] for one in rounds[1:]) for place in (0, 1)] for name, rounds in taken.items()}
    for name, (processor, clock) in said.items():
        print(f"{name}: {processor:.2f} s of the processor, {clock:.2f} s")
    print("ours / plain:", ", ".join(f"{ours / plain:.2f}" for ours, plain in zip(said["ours"], said["plain"], strict=True)))


if __name__ == "__main__":
    main(*sys.argv[1:])
