"""Numbers about a capture, from its tables: what the report shows, and ``metrics.json`` holds."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import attrs
import pyarrow as pa
import pyarrow.parquet as pq

from polybus.capture.schema import OUTCOMES

from ..engine import Engine
from ..ingest import RunCounts
from ..results import TABLES, Output
from .journeys import Journeys
from .names import Names, by_name, is_for
from .queries import BUCKETS_A_DECADE, METRICS, OF_KIND, QUERIES
from .views import told_apart

WINDOWS: Final = 120
STEPS_S: Final = (
    0.01,
    0.1,
    0.5,
    1,
    2,
    5,
    10,
    30,
    60,
    300,
    600,
    1800,
    3600,
    21_600,
    86_400,
    604_800,
    2_592_000,
    31_536_000,
    315_360_000,
)
SHOWN_BYTES: Final = 48
"""Of a frame in quarantine."""

Rows = list[dict[str, Any]]


def measure(engine: Engine, output: Output, names: Names | None = None) -> dict[str, Any]:
    """The metrics of all that is there; the tables among them also go to ``metrics/`` as Parquet."""
    tables = {name: engine.read(output.storage, name, output.files(name), columns) for name, columns in TABLES.items()}
    names = names or Names()
    tables |= by_name(engine, tables, names)
    with told_apart(engine, tables["exchanges"], tables["orphans"]) as seen:
        tables["orphans"] = seen.orphans
        for kind, name in (("request", "exchanges"), ("stream", "streams")):
            tables[name] = engine.sql(OF_KIND.replace("{kind}", kind), exchanges=seen.exchanges)
        found, times = _asked(engine, tables)
        [orphans] = engine.rows(engine.sql("select count(*) as n from {orphans}", orphans=seen.orphans)).to_pylist()
        for row in found["clocks"]:
            row["ahead_ns"] = seen.clocks.get(row["capture_id"], 0)
        found["unheard"] = _not_subscribed(engine, tables["events"], found["unheard"], names)
        write_tables(output, found)
        journeys = Journeys(engine, tables["events"], seen.views).found()
    last = output.last
    return {
        "capture": last.capture if last is not None else "",
        "runs": output.runs,
        "names": str(names),
        "settings": last.settings if last is not None else {},
        **times,
        "counts": attrs.asdict(output.counts),
        "provisional": output.provisional,
        "totals": _totals(found, output.counts) | {"orphans": orphans["n"]},
        **found,
        "journeys": journeys,
        "gaps": last.gaps if last is not None else [],
        "losses": last.losses if last is not None else [],
    }


def _asked(engine: Engine, tables: dict[str, Any]) -> tuple[dict[str, Rows], dict[str, int]]:
    """The answers of all queries, and the times that they are about."""

    def ask(name: str, **values: int) -> Rows:
        text = QUERIES[name]
        for value, number in values.items():
            text = text.replace(f"{{{value}}}", str(number))
        used = {table: rows for table, rows in tables.items() if f"{{{table}}}" in text}
        return shaped(name, engine.rows(engine.sql(text, **used)).to_pylist())

    kinds = ask("kinds")
    times = [row[name] for row in kinds for name in ("first_ns", "last_ns") if row[name] is not None]
    begin, end = min(times, default=0), max(times, default=0)
    # Windows of time so wide that there are not too many.
    width = round(next((step for step in STEPS_S if end - begin <= step * 1e9 * WINDOWS), STEPS_S[-1]) * 1e9)
    with ThreadPoolExecutor(engine.at_once) as pool:
        answers = {name: pool.submit(ask, name, width=width) for name in QUERIES if name != "kinds"}
        found = {"kinds": kinds} | {name: answer.result() for name, answer in answers.items()}
    return found, {"begin_ns": begin, "end_ns": end, "window_ns": width}


def _not_subscribed(engine: Engine, events: Any, rows: Rows, names: Names) -> Rows:
    """Find the rows of subjects that no subscription is for."""
    if not rows:
        return []
    made = engine.sql("select distinct subject from {events} where kind = 'subscribe' and subject is not null", events=events)
    patterns = list(map(names.of, engine.rows(made)["subject"].to_pylist()))
    return [row for row in rows if not any(is_for(pattern, row["subject"] or "") for pattern in patterns)]


def shaped(name: str, rows: Rows) -> Rows:
    """Rows of a query as they are listed: what SQL says otherwise in each engine is said here."""
    if name == "latency_histogram":
        rows = [{"from_ns": 10 ** (row["bucket"] / BUCKETS_A_DECADE), "n": row["n"]} for row in rows]
    if name == "quarantine_samples":
        frames = [row["raw"] or b"" for row in rows]  # a row that marks nothing has none
        rows = [
            {**row, "raw_hex": frame[:SHOWN_BYTES].hex().upper(), "size": len(frame)}
            for row, frame in zip(rows, frames, strict=True)
        ]
    shaped: Rows = pa.Table.from_pylist(rows, METRICS[name][1]).to_pylist()
    return shaped


def _totals(found: dict[str, Rows], counts: RunCounts) -> dict[str, Any]:
    def sums(rows: Rows, key: str) -> dict[str, int]:
        counted = Counter[str]()
        for row in rows:
            counted[row[key]] += row["n"]
        return dict(sorted(counted.items()))

    kinds, outcomes, places = found["kinds"], found["outcomes"], found["places"]
    ends, views = sums(outcomes, "outcome"), sum(row["n"] * row["views"] for row in places)
    return {
        "events": sum(row["n"] for row in kinds),
        "bytes": sum(row["nbytes"] for row in kinds),
        "by_kind": sums(kinds, "kind"),
        "by_protocol": sums(kinds, "protocol"),
        "exchanges": sum(ends.values()),
        "streams": sum(row["n"] for row in found["streams"]),
        "views": views,
        "internal": counts.exchanges - views - sum(row["views"] for row in found["streams"]),
        "outcomes": {name: ends.get(name, 0) for name in OUTCOMES},
        "match_quality": sums(outcomes, "match_quality"),
        "duplicates": sum(row["duplicates"] for row in outcomes),
        "repeats": sum(row["repeats"] for row in outcomes),
    }


def write_tables(output: Output, tables: dict[str, Rows]) -> None:
    """Tables of `METRICS` as Parquet."""
    for name, rows in tables.items():
        buffer = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_pylist(rows, METRICS[name][1]), buffer)
        output.storage.write(f"metrics/{name}.parquet", buffer.getvalue().to_pybytes())
