"""The numbers of the report as SQL, which Spark and DuckDB run alike. Names in braces are tables, or the ns of a window."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from typing import Final

from polybus.capture.schema import OUTCOMES

from ..ranges import LAST_NS
from .metric_tables import METRICS
from .stores import STORE_QUERIES
from .views import FAR_NS, TIES, USERS

FEW: Final = 100
"""Below so many samples there is no p99."""
MANY: Final = 1000
"""Subjects, errors, peers, sessions and reasons beyond so many are left out of the numbers, the rarest first."""
SAMPLES: Final = 20
ROWS: Final = 400
"""Exchanges that the report shows one by one."""
ALIKE: Final = 5
"""Of these with the same protocol, subject, outcome and code."""
STACKED: Final = 8
"""Subjects that a plot of throughput tells apart; the others are one."""
DIGITS: Final = 6
"""Significant digits by which latencies are told apart for percentiles, so that counting them takes little room."""
BUCKETS_A_DECADE: Final = 5

OF_KIND: Final = "select * from {exchanges} where kind = '{kind}'"


def _most(table: str, keys: str, more: str = "", where: str = "true") -> str:
    """Number of rows by some keys, and more about them, of the keys that have the most rows."""
    return f"""
        select {keys}, count(*) as n {more} from {{{table}}} where {where}
        group by {keys} order by n desc, {", ".join(f"{key} nulls first" for key in keys.split(", "))} limit {MANY}
    """


def _apart(late: str, early: str) -> str:
    """The ns between two moments; as many as there are numbers for, where rows say what no clock says."""
    apart = f"cast({late} as decimal(20, 0)) - cast({early} as decimal(20, 0))"
    return f"cast(case when {apart} > {LAST_NS} then {LAST_NS} else {apart} end as bigint)"


def _percentile(share: int, few: int = 0) -> str:
    """The least latency that so many in 100 answers do not exceed, out of `_ranked`; null below `few` answers."""
    enough = f" and total >= {few}" if few else ""
    return f"min(case when value is not null and upto * 100 >= {share} * total{enough} then value end) as p{share}_ns"


def _ranked(keys: Sequence[str], more: Sequence[str], columns: str) -> str:
    """Exchanges by keys and by latency, with the number of answers up to that latency (`upto`), and of all (`total`).

    The latency of a class is the longest in it: of few answers each has its own.
    """
    named = ", ".join(keys)
    return f"""
        select *, sum(answered) over (partition by {named} order by value nulls first) as upto,
            sum(answered) over (partition by {named}) as total
        from (
            select {named}, max(latency_ns) as value, count(*) as n, count(latency_ns) as answered, {", ".join(more)}
            from (
                select *, {columns}
                    latency_ns - latency_ns % cast(power(10, case when length(cast(latency_ns as string)) > {DIGITS}
                        then length(cast(latency_ns as string)) - {DIGITS} else 0 end) as bigint) as class
                from {{exchanges}}
            ) as classed
            group by {named}, class
        ) as counted
    """


_ITS_OWN: Final = "kind = '{}' and coalesce(client, '') = ''"
"""Of a connection itself, and not of a client behind it."""
_BY_OUTCOME: Final = {name.replace("-", "_"): name for name in OUTCOMES}
_LISTED: Final = ", ".join(METRICS["slowest"][1].names)
_ALIKE: Final = "protocol, subject, outcome, code"
_BYTES: Final = ", sum(nbytes) as nbytes"
_WINDOW: Final = "time_ns - time_ns % {width}"


def _by_subject(*more: str) -> str:
    """Latencies and outcomes by subject, and the sums of some columns more."""
    sums = {
        **{name: f"count_if(outcome = '{outcome}')" for name, outcome in _BY_OUTCOME.items()},
        **{"duplicates": "sum(duplicates)", "asked": "count_if(direction = 0)", "seen": "count_if(views > 1)"},
        **{name: f"sum({name})" for name in more},
    }
    parts = {"summed": "sum(cast(latency_ns as decimal(20, 0)))", "way": "sum(cast(way_ns as decimal(20, 0)))"}
    found = sums | parts | {"ways": "count(way_ns)"}
    return f"""
        select protocol, subject, sum(n) as n, sum(answered) as answered, max(value) as max_ns,
            cast(sum(summed) as double) / nullif(sum(answered), 0) as mean_ns,
            {", ".join(f"sum({name}) as {name}" for name in sums)}, cast(sum(way) as double) / nullif(sum(ways), 0) as way_ns,
            {", ".join(map(_percentile, (50, 90, 95)))}, {_percentile(99, FEW)}
        from ({_ranked(("protocol", "subject"), [f"{text} as {name}" for name, text in found.items()], "")}) as ranked
        group by protocol, subject order by n desc, protocol nulls first, subject nulls first limit {MANY}
    """


QUERIES: Final = MappingProxyType(
    {
        "kinds": f"""
            select protocol, kind, direction, count(*) as n{_BYTES}, min(time_ns) as first_ns, max(time_ns) as last_ns
            from {{events}} group by protocol, kind, direction order by protocol nulls first, kind, direction
        """,
        "outcomes": """
            select protocol, outcome, match_quality, count(*) as n, sum(duplicates) as duplicates, sum(attempts - 1) as repeats
            from {exchanges} group by protocol, outcome, match_quality order by protocol nulls first, outcome, match_quality
        """,
        "places": """
            select protocol, direction, views, count(*) as n, cast(sum(cast(way_ns as decimal(20, 0))) as double)
                / nullif(count(way_ns), 0) as way_ns
            from {exchanges} group by protocol, direction, views order by protocol nulls first, direction, views
        """,
        "latency": _by_subject(),
        "streams": _by_subject("items", "views").replace("{exchanges}", "{streams}"),
        "latency_over_time": f"""
            select window_ns, sum(n) as n, sum(not_ok) as not_ok, {_percentile(50)}, {_percentile(95)}
            from ({
            _ranked(
                ("window_ns",),
                ("count_if(outcome != 'ok') as not_ok",),
                "at_ns - at_ns % {width} as window_ns,",
            )
        }) as ranked
            group by window_ns order by window_ns
        """,
        "latency_histogram": f"""
            select bucket, count(*) as n from (
                select cast(floor(log10(positive_ns) * {BUCKETS_A_DECADE}) as int) as bucket from (
                    select case when latency_ns > 1 then latency_ns else 1 end as positive_ns
                    from {{exchanges}} where latency_ns is not null
                ) as answered
            ) as placed
            group by bucket order by bucket
        """,
        "throughput": f"""
            select {_WINDOW} as window_ns, busiest.subject as subject, count(*) as n{_BYTES}
            from {{events}} as events left join (
                select subject, count(*) as n from {{events}} where subject is not null and {USERS}
                group by subject order by n desc, subject limit {STACKED}
            ) as busiest on events.subject = busiest.subject
            group by {_WINDOW}, busiest.subject order by window_ns, subject nulls first
        """,
        "errors": _most("exchanges", "protocol, subject, code, code_name", where="outcome = 'error'"),
        "slowest": f"""
            select {_LISTED} from {{exchanges}} where latency_ns is not null order by latency_ns desc, {TIES} limit {SAMPLES}
        """,
        # By the clock of the wall: each recording of a folder counts its frames from 0.
        "dead_letters": f"""
            select {_LISTED} from {{exchanges}} where latency_ns is null order by request_time_ns, {TIES} limit {SAMPLES}
        """,
        "orphans": _most("orphans", "protocol, subject"),
        "sessions": _most(
            "events",
            "capture_id, conn_id, protocol",
            f""", max(transport) as transport, max(peer) as peer{_BYTES}, min(time_ns) as first_ns, max(time_ns) as last_ns,
                {_apart("max(mono_ns)", "min(mono_ns)")} as length_ns,
                case when count_if({_ITS_OWN.format("open")}) > 1 then {
                _apart(*(f"{end}(case when {_ITS_OWN.format('open')} then mono_ns end)" for end in ("max", "min")))
            } end as handshake_ns,
                count_if(kind = 'heartbeat') as heartbeats,
                coalesce(max(case when {_ITS_OWN.format("close")} then code_name end),
                    max(case when {_ITS_OWN.format("close")} then 'closed' end)) as closed""",
        ),
        "topics": _most("events", "protocol, subject, direction", _BYTES, where=f"kind = 'publish' and {USERS}"),
        # Publications that came in where none went on; in several recordings they are the same.
        "unheard": f"""
            select protocol, subject, max(n) as n from (
                select protocol, subject, capture_id, count_if(direction = 1) as n, count_if(direction = 0) as passed
                from {{events}} where kind = 'publish' and {USERS} group by protocol, subject, capture_id
            ) as counted
            where n > 0 group by protocol, subject having sum(passed) = 0
            order by n desc, protocol nulls first, subject nulls first limit {MANY}
        """,
        "rows": f"""
            select {_LISTED}, capture_id, address, alike from (
                select *,
                    row_number() over (partition by {_ALIKE} order by latency_ns desc nulls first, {TIES}) as nth,
                    count(*) over (partition by {_ALIKE}) as alike
                from {{exchanges}}
            ) as numbered
            where nth <= {ALIKE}
            order by outcome = 'ok', nth, protocol nulls first, subject nulls first, outcome, code nulls first, {TIES}
            limit {ROWS}
        """,
        "clocks": _most(
            "events",
            "capture_id",
            f", {_apart('max(time_ns - mono_ns)', 'min(time_ns - mono_ns)')} as stepped_ns",
            f"time_ns between -{FAR_NS} and {FAR_NS} and mono_ns between -{FAR_NS} and {FAR_NS}",
        ),
        "peers": _most("events", "peer, protocol, direction", _BYTES),
        "quarantine": _most("quarantine", "protocol, reason"),
        "quarantine_samples": f"""
            select capture_id, seq, ts_ns, conn_id, protocol, reason, detail, bad.offset, raw from {{quarantine}} as bad
            order by capture_id, seq limit {SAMPLES}
        """,
        **STORE_QUERIES,
    }
)
"""By the names of `METRICS`."""
