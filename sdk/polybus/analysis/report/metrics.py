"""Computes the metrics of a capture from its sums. The metrics are the contents of the report and of ``metrics.json``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import islice
from typing import Any, Final

import attrs
import pyarrow as pa

from polybus.capture.protocols.nats import DEAD_LETTER, DELIVERY, PUBLICATION
from polybus.capture.schema import OUTCOMES

from ...capture.store.compute import pc
from ..clocks import LAST_NS
from ..engine import Engine, on_driver
from ..ingest import RunCounts
from ..results import Output
from .journeys import follow_connections, told
from .listed import KIND_OF, in_order, listed, slowest, unanswered
from .names import Names, is_for
from .sums import STORE_NUMBERS, Sums, as_parquet
from .tables import BUCKETS_A_DECADE, FEW, MANY, METRICS, STACKED, broke_off

SHOWN_BYTES: Final = 48

Rows = list[dict[str, Any]]


def measure(engine: Engine, output: Output, names: Names | None = None) -> dict[str, Any]:
    names = names or Names()
    sums = Sums.of(output, names)
    sums.add(engine, output, names)
    with on_driver(engine) as here:
        tables, broke = _tables(here, sums, names)
    found = {name: shaped(name, rows) for name, rows in tables.items()}
    write_tables(output, found)
    journeys, followed = told(engine, output, sums), follow_connections(engine, output, sums, found["sessions"])
    sums.keep(output.storage)
    times = [row[name] for row in found["kinds"] for name in ("first_ns", "last_ns") if row[name] is not None]
    last = output.last
    return {
        "capture": last.capture,
        "runs": output.runs,
        "names": str(names),
        "settings": last.settings,
        **{"begin_ns": min(times, default=0), "end_ns": max(times, default=0), "window_ns": sums.width_ns},
        "counts": attrs.asdict(output.counts),
        "provisional": output.provisional,
        "totals": _totals(found, output.counts) | {"orphans": pc.sum(sums.shown["orphans"]["n"]).as_py() or 0, "broke": broke},
        **found,
        "journeys": journeys,
        "followed": followed,
        "gaps": last.gaps,
        "losses": last.losses,
    }


def _most(table: str, keys: str, numbers: str = "sum(n) as n", where: str = "true") -> str:
    """Return the SQL for the sums of a table by some keys, largest first."""
    groups = f"select {keys}, {numbers} from {{{table}}} where {where} group by all"
    return f"{groups} order by n desc, {keys} limit {{most}}"


def _by_latency(table: str, keys: str, summed: Mapping[str, str], where: str = "true") -> str:
    """Return the SQL for sums by some keys, with percentiles and maximum of the latency, which are accurate to its classes.

    `summed` contains the expressions to sum by name. A percentile is the longest latency of the class that contains it.
    """
    listed = ", ".join(f"sum({expression}) as {name}" for name, expression in summed.items())
    again = ", ".join(f"sum({name}) as {name}" for name in summed)
    least = {50: 1, 90: 1, 95: 1, 99: FEW}
    shares = (
        f"min(longest) filter (where upto * 100 >= {share} * whole and whole >= {enough}) as p{share}_ns"
        for share, enough in least.items()
    )
    return f"""
        select {keys}, {again}, {", ".join(shares)}, max(longest) as max_ns from (
            select {keys}, class, if(class is null, 0, sum(n)) as timed, if(class is null, null, max(value)) as longest,
                {listed},
                sum(timed) over (partition by {keys} order by class) as upto, sum(timed) over (partition by {keys}) as whole
            from {{{table}}} where {where} group by {keys}, class
        ) as counted
        group by all
    """


_SIZES: Final = "sum(n) as n, sum(nbytes) as nbytes"
_MEAN_WAY: Final = "cast(sum(way) as double) / nullif(sum(ways), 0) as way_ns"
_OF_SUBJECT: Final = {
    **{"n": "n", "answered": "if(class is null, 0, n)", "latency": "summed", "duplicates": "duplicates"},
    **{name.replace("-", "_"): f"if(outcome = '{name}', n, 0)" for name in OUTCOMES},
    **{"asked": "if(direction = 0, n, 0)", "seen": "if(views > 1, n, 0)", "way": "way", "ways": "ways"},
    **{"items": "coalesce(items, 0)", "views": "views * n"},
}


def _by_subject(kind: str) -> str:
    return f"""
        select *, cast(latency as double) / nullif(answered, 0) as mean_ns,
            cast(way as double) / nullif(ways, 0) as way_ns
        from ({_by_latency("exchanges", "protocol, subject", _OF_SUBJECT, f"kind = '{kind}'")}) as summed
        order by n desc, protocol, subject limit {{most}}
    """


def _asks(*by: str) -> str:
    """Return the SQL for the peers that send requests to each other, by some columns. The recorded program is `here`."""
    keys = ", ".join(("capture_id", "direction", "who", *by))
    ends = ("coalesce(nullif(who, ''), 'unknown peer')", "here")
    asker, answerer = (f"if(coalesce(direction, 0) != 0, {one}, {other})" for one, other in (ends, ends[::-1]))
    return f"""
        select *, if(alone, 'here', right(coalesce(capture_id, ''), 8)) as here, {asker} as asker, {answerer} as answerer
        from ({_by_latency("asks", keys, {"n": "n", "not_ok": "not_ok"})}) as summed,
            (select count(distinct coalesce(capture_id, '')) = 1 as alone from {{asks}}) as recordings
        order by n desc, asker, answerer, {keys} limit {{most}}
    """


def _apart(first: str, last: str, condition: str = "true") -> str:
    """Return the SQL for the time between the first and the last moment, limited to 64 bits."""
    first, last = (f"{one} filter (where {condition})" for one in (f"min({first})", f"max({last})"))
    return f"if({last} > {LAST_NS} + least({first}, 0), {LAST_NS}, {last} - {first})"


_OPENS: Final = "own and kind = 'open'"
_LENGTH: Final = _apart("first_mono_ns", "last_mono_ns")
_HANDSHAKE: Final = _apart("first_mono_ns", "last_mono_ns", _OPENS)
_IN_STORE: Final = ", ".join(f"{how}({name}) as {name}" for name, how in STORE_NUMBERS.items())

_QUERIES: Final = {
    "kinds": f"""
        select protocol, kind, direction, {_SIZES}, min(first_ns) as first_ns, max(last_ns) as last_ns from {{links}}
        group by all order by protocol, kind, direction
    """,
    "outcomes": """
        select protocol, outcome, match_quality, sum(n) as n, sum(duplicates) as duplicates, sum(repeats) as repeats
        from {exchanges} where kind = 'request' group by all order by protocol, outcome, match_quality
    """,
    "places": f"""
        select protocol, direction, views, sum(n) as n, {_MEAN_WAY} from {{exchanges}} where kind = 'request'
        group by all order by protocol, direction, views
    """,
    "latency": _by_subject("request"),
    "streams": _by_subject("stream"),
    "latency_over_time": _by_latency("paces", "window_ns", {"n": "n", "not_ok": "not_ok"}, "window_ns is not null")
    + "order by window_ns",
    # The small number keeps an exact power of ten out of the lower bucket.
    "latency_histogram": f"""
        select pow(10, bucket / {BUCKETS_A_DECADE}) as from_ns, sum(n) as n from (
            select floor(log10(greatest(class, 1)) * {BUCKETS_A_DECADE} + 1e-9) as bucket, n from {{exchanges}}
            where class is not null and kind = 'request'
        ) as found
        group by bucket order by bucket
    """,
    "throughput": f"""
        with busiest as (
            from {{windows}} select subject where subject is not null
            group by subject order by sum(n) desc, subject limit {STACKED}
        )
        select window_ns, busiest.subject, {_SIZES} from {{windows}} left join busiest using (subject)
        group by all order by window_ns, busiest.subject
    """,
    "errors": _most("exchanges", "protocol, subject, code, code_name", where="kind = 'request' and outcome = 'error'"),
    "orphans": _most("orphans", "protocol, subject"),
    "sessions": f"""
        select capture_id, conn_id, protocol, max(transport) as transport, max(peer) as peer, {_SIZES},
            case when min(first_who) filter (where known) = max(last_who) filter (where known)
                then max(last_who) filter (where known)
                when min(first_who) = max(last_who) then max(last_who) end as who,
            min(first_ns) as first_ns, max(last_ns) as last_ns, {_LENGTH} as length_ns,
            if(sum(n) filter (where {_OPENS}) > 1, {_HANDSHAKE}, null) as handshake_ns,
            sum(if(kind = 'heartbeat', n, 0)) as heartbeats,
            coalesce(max(closed) filter (where closed != 'closed'), max(closed)) as closed
        from (select *, own and kind in ('open', 'close') as known from {{links}}) as links group by all
    """,
    "asks": _asks("protocol", "subject"),
    "pairs": _asks(),
    "topics": _most("subjects", "protocol, subject, direction", _SIZES, "topic = 'publish'"),
    # A publication is unheard if a recording received it and none has forwarded it.
    "unheard": """
        select protocol, subject, max(came) as n from (
            select protocol, subject, capture_id, sum(if(direction = 1, n, 0)) as came, sum(if(direction = 0, n, 0)) as sent
            from {subjects} where topic = 'publish' group by all
        ) as places
        where came > 0 group by all having sum(sent) = 0 order by n desc, protocol, subject
    """,
    "clocks": f"""
        select capture_id, sum(n) as n, coalesce({_apart("least_ns", "most_ns")}, 0) as stepped_ns, 0 as ahead_ns
        from {{links}} group by all order by n desc, capture_id limit {{most}}
    """,
    "peers": _most("links", "peer, protocol, direction", _SIZES),
    "quarantine": _most("quarantine", "protocol, reason"),
    "store_publications": _most(
        "stores",
        "store",
        f"{_IN_STORE}, sum(had) as duplicates, sum(repeats) as sent_again",
        f"stored = '{PUBLICATION}'",
    ),
    "store_deliveries": _most(
        "stores",
        "store, durable",
        f"{_IN_STORE}, sum(firsts) as publications, sum(unanswered) as unsettled",
        f"stored = '{DELIVERY}'",
    ),
    # After a worker was killed before it ended the publication, the next worker stores the letter again.
    "store_letters": _most(
        "stores",
        "store, durable, reason",
        "count(*) as n, max(most_attempts) as most_attempts",
        f"stored = '{DEAD_LETTER}'",
    ),
}
"""The SQL of each table, over the tables of sums."""
_ALIKE: Final = f"""
    select {", ".join(KIND_OF)}, cast(sum(n) as bigint) as n from {{exchanges}} where kind = 'request' group by all
"""


def _tables(engine: Engine, sums: Sums, names: Names) -> tuple[dict[str, Rows], int]:
    """Return the rows of each table, and the number of connections that were lost, including unlisted connections."""
    parts = {name: engine.hand(table) for name, table in _renamed(sums.shown, names).items()}
    found: dict[str, Rows] = {}
    for name, text in _QUERIES.items():
        schema = METRICS[name][1]
        found[name] = engine.rows(engine.sql(text, **parts, most=str(MANY))).select(schema.names).cast(schema).to_pylist()
    sessions = found["sessions"]
    sessions.sort(key=lambda row: (not broke_off(row), -row["n"], *in_order(row, ("capture_id", "conn_id", "protocol"))))
    heard = pc.unique(sums.shown["subjects"].filter(pc.equal(sums.shown["subjects"]["topic"], "subscribe"))["subject"])
    patterns = [names.of(one) for one in heard.to_pylist() if one is not None]
    unheard = (row for row in found["unheard"] if not any(is_for(one, row["subject"] or "") for one in patterns))
    for row in found["clocks"]:
        row["ahead_ns"] = (sums.now.clocks or {}).get(row["capture_id"], 0)
    rows = sums.shown_rows
    kinds = engine.rows(engine.sql(_ALIKE, **parts)).to_pylist()
    alike = {tuple(row[name] for name in KIND_OF): row["n"] for row in kinds}
    found |= {
        "sessions": sessions[:MANY],
        "unheard": list(islice(unheard, MANY)),
        "rows": [{**row, "alike": alike.get(tuple(row[name] for name in KIND_OF), 1)} for row in listed(rows)],
        "slowest": slowest(rows),
        "dead_letters": unanswered(rows),
        "quarantine_samples": sums.samples,
    }
    return found, sum(map(broke_off, sessions))


def _renamed(parts: Mapping[str, pa.Table], names: Names) -> dict[str, pa.Table]:
    found = dict(parts)
    for name in ("subjects", "windows", "orphans"):
        table, place = parts[name], parts[name].schema.get_field_index("subject")
        subjects = pc.unique(table["subject"])
        if renamed := names.renamed(one for one in subjects.to_pylist() if one is not None):
            spelled = pa.array([renamed.get(one, one) for one in subjects.to_pylist()], pa.string())
            found[name] = table.set_column(place, "subject", spelled.take(pc.index_in(table["subject"], subjects)))
    return found


def shaped(name: str, rows: Rows) -> Rows:
    if name == "quarantine_samples":  # a gap row has no frame
        frames = [(row, row["raw"] or b"") for row in rows]
        rows = [{**row, "raw_hex": frame[:SHOWN_BYTES].hex().upper(), "size": len(frame)} for row, frame in frames]
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
    for name, rows in tables.items():
        output.storage.write(f"metrics/{name}.parquet", as_parquet(pa.Table.from_pylist(rows, METRICS[name][1])))
