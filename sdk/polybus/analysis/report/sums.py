"""Sums for the metrics. A run reads new rows once and adds them to the sums of earlier runs.

Spark and DuckDB run the same SQL. All sums are integers, so that the result does not depend on the number of runs. Latencies
are counted in classes that are less than 1 % wide.

If there is one recording, an exchange is counted once it is final. If there are several, one recording's view of an exchange
may be read later than another's. The next run therefore re-examines the exchanges of the last minutes, or all exchanges if a
recording reaches farther back.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Self

import attrs
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from polybus.capture.errors import CaptureError
from polybus.capture.protocols.nats import DEAD_LETTER
from polybus.capture.schema import EXCHANGES, QUARANTINE

from ...capture.store.compute import pc
from ..clocks import LAST_NS
from ..engine import Engine, on_driver
from ..results import TABLES, Output
from ..storage import TableStorage
from .listed import KIND_OF, kept
from .names import Names, by_name
from .tables import ALIKE, METRICS, ROWS, SAMPLES
from .views import CROWDED_NS, DRAWN, FAR_NS, SLACK_NS, TIES, USERS, clocks_of, lost, told_apart

DIGITS: Final = 3
"""Number of significant digits in latency classes."""
MOST: Final = 500_000
"""Maximum rows in a table of sums. If there are more, the rarest rows lose their names and are counted without a name."""
WIDTHS_S: Final = tuple(
    map(float, "0.01 0.1 0.5 1 5 10 30 60 300 600 1800 3600 21600 86400 604800 6048000 60480000 604800000".split())
)
"""Lengths of time windows. Each is a multiple of the previous length, so that windows can be combined into longer windows."""
WINDOWS: Final = 120
SUMS: Final = "_sums"
_NOW: Final = f"{SUMS}/now.json"
_OURS: Final = re.compile(rf"{SUMS}/[0-9a-f]{{12}}")
_VERSION: Final = 4

_TEXT, _WHOLE, _SHORT, _TRUTH, _SUM = pa.string(), pa.int64(), pa.int32(), pa.bool_(), pa.decimal128(38, 0)


@attrs.frozen
class Part:
    keys: Mapping[str, pa.DataType]
    numbers: Mapping[str, str]
    """The other columns, which are sums, minima and maxima."""
    named: tuple[str, ...]
    """Keys that the rarest rows lose if the table is too long."""

    @property
    def schema(self) -> pa.Schema:
        kinds = {"summed": _SUM, "way": _SUM, "first_who": _TEXT, "last_who": _TEXT}
        numbers = {name: kinds.get(name, _WHOLE) for name in self.numbers}
        return pa.schema(list({**self.keys, **numbers}.items()))

    def added(self, tables: Iterable[pa.Table]) -> pa.Table:
        some = [self._shaped(table) for table in tables if len(table)]
        # A single one is grouped already.
        whole = some[0] if len(some) == 1 else self._grouped(pa.concat_tables([self.schema.empty_table(), *some]))
        if len(whole) <= MOST:
            return whole
        order = pc.sort_indices(whole, [("n", "descending")])
        kept, rest = whole.take(order[:MOST]), whole.take(order[MOST:])
        for name in self.named:
            place = rest.schema.get_field_index(name)
            rest = rest.set_column(place, rest.schema.field(place), pa.nulls(len(rest), rest.schema.field(place).type))
        return self._grouped(pa.concat_tables([kept, rest]))

    def _shaped(self, table: pa.Table) -> pa.Table:
        return table.select(self.schema.names).cast(self.schema)

    def _grouped(self, table: pa.Table) -> pa.Table:
        return self._shaped(grouped(table, list(self.keys), self.numbers))


def grouped(table: pa.Table, keys: Sequence[str], numbers: Mapping[str, str]) -> pa.Table:
    made = {f"{name}_{how}": name for name, how in numbers.items()}
    found = table.group_by(list(keys), use_threads=False).aggregate(list(numbers.items()))
    return found.rename_columns([made.get(name, name) for name in found.column_names])


_SIZES: Final = {"n": "sum", "nbytes": "sum"}
_LINK: Final = {"capture_id": _TEXT, "conn_id": _TEXT, "protocol": _TEXT, "transport": _TEXT, "peer": _TEXT}
_LINK_KEYS: Final = _LINK | {"kind": _TEXT, "direction": pa.int8(), "own": _TRUTH, "closed": _TEXT}
_SPAN: Final = dict.fromkeys(("first_ns", "first_mono_ns", "least_ns"), "min") | dict.fromkeys(
    ("last_ns", "last_mono_ns", "most_ns"), "max"
)
WHO: Final = {"first_who": "min", "last_who": "max"}
_BY: Final = {"kind": _TEXT, "protocol": _TEXT, "subject": _TEXT, "outcome": _TEXT, "code": _SHORT, "code_name": _TEXT}
_HOW: Final = {"match_quality": _TEXT, "direction": pa.int8(), "views": _SHORT, "class": _WHOLE}
_ENDS: Final = dict.fromkeys(("n", "summed", "duplicates", "repeats", "way", "ways", "items"), "sum") | {"value": "max"}
_STORED: Final = {"stored": _TEXT, "store": _TEXT, "durable": _TEXT, "reason": _TEXT, "letter": _WHOLE}
_ASKS: Final = {"capture_id": _TEXT, "direction": pa.int8(), "who": _TEXT, "protocol": _TEXT, "subject": _TEXT}
STORE_NUMBERS: Final = dict.fromkeys(
    "n kept had refused unanswered repeats firsts redelivered handled again ended".split(), "sum"
) | {"most_attempts": "max"}
PARTS: Final = {
    "links": Part(_LINK_KEYS, _SIZES | _SPAN | WHO, ("conn_id", "peer")),
    "subjects": Part(
        {"capture_id": _TEXT, "protocol": _TEXT, "subject": _TEXT, "topic": _TEXT, "direction": pa.int8()}, _SIZES, ("subject",)
    ),
    "windows": Part({"window_ns": _WHOLE, "subject": _TEXT}, _SIZES, ("subject",)),
    "exchanges": Part(_BY | _HOW, _ENDS, ("subject",)),
    "paces": Part({"window_ns": _WHOLE, "class": _WHOLE}, {"n": "sum", "not_ok": "sum", "value": "max"}, ("class",)),
    "asks": Part(_ASKS | {"class": _WHOLE}, {"n": "sum", "not_ok": "sum", "value": "max"}, ("who",)),
    "stores": Part(_STORED, STORE_NUMBERS, ("letter",)),
    "orphans": Part({"protocol": _TEXT, "subject": _TEXT}, {"n": "sum"}, ("subject",)),
    "quarantine": Part({"protocol": _TEXT, "reason": _TEXT}, {"n": "sum"}, ()),
}
"""Tables of sums: connections, subjects of publications and subscriptions, messages by time, exchanges, exchanges by time and
by peer, stores, answers without a request, and unreadable frames.
"""
_OF_EXCHANGES: Final = ("exchanges", "paces", "asks", "stores")
LISTED: Final = METRICS["rows"][1].remove(METRICS["rows"][1].get_field_index("alike"))


def _summed(made: Mapping[str, str], parts: Mapping[str, tuple[str, str]], also: str = "") -> str:
    """Return the SQL for some parts, each with a source and a condition. `made` contains the expressions of columns by name."""
    # A statement for each part reads only its own columns. Grouping sets compute all numbers for each: twice the time.
    names, selects = dict.fromkeys(name for part in parts for name in PARTS[part].schema.names), list[str]()
    for part, (source, where) in parts.items():
        own = PARTS[part].schema.names
        columns = (f"{made.get(name, name) if name in own else 'null'} as {name}" for name in names)
        by = ", ".join(made.get(name, name) for name in PARTS[part].keys)
        selects.append(f"select '{part}' as part, {also}{', '.join(columns)} from {source} where {where} group by {also}{by}")
    return " union all ".join(selects)


_OWNED: Final = f"""(
    select *, coalesce(client, '') = '' as own,
        case when own and kind = 'close' then coalesce(code_name, 'closed') end as closed,
        case when own and source != peer and (direction = 1 or nbytes = 0 and source != capture_id) then source end as who,
        case when time_ns between -{FAR_NS} and {FAR_NS} and mono_ns between -{FAR_NS} and {FAR_NS}
            then time_ns - mono_ns end as apart_ns
    from {{events}}
) as messages"""
_MESSAGES: Final = _summed(
    {
        **{"n": "count(*)", "nbytes": "cast(sum(nbytes) as bigint)", "topic": "kind"},
        **{"window_ns": "time_ns - time_ns % {width}", "least_ns": "min(apart_ns)", "most_ns": "max(apart_ns)"},
        **{f"first_{name}": f"min({of})" for name, of in (("ns", "time_ns"), ("mono_ns", "mono_ns"), ("who", "who"))},
        **{f"last_{name}": f"max({of})" for name, of in (("ns", "time_ns"), ("mono_ns", "mono_ns"), ("who", "who"))},
    },
    {
        "links": (_OWNED, "true"),
        "subjects": ("{events}", f"kind in ('publish', 'subscribe') and {USERS}"),
        "windows": (
            f"(select time_ns, nbytes, case when {USERS} then subject end as subject from {{events}}) as shown",
            "true",
        ),
    },
)
KIND: Final = ("settled", *KIND_OF)
_SETTLED: Final = "latency_ns is not null and code_name"
_CLASS: Final = """latency_ns - latency_ns % cast(power(10, case when length(cast(latency_ns as string)) > DIGITS
    then length(cast(latency_ns as string)) - DIGITS else 0 end) as bigint)"""
_CLASSED: Final = f"(select *, {_CLASS.replace('DIGITS', str(DIGITS))} as class from {{counted}}) as classed"
# Clients have a new port each time: such ports are left out of the names of peers.
_NAMED: Final = f"""(
    select *, {_CLASS.replace("DIGITS", "1")} as class,
        case when direction = 1 and identity_key != peer then identity_key when first_who is not null then first_who
            else regexp_replace(peer, ':(3[2-9]|[4-6][0-9])[0-9][0-9][0-9]$', '') end as who
    from (
        select /*+ broadcast(known) */ counted.*, known.first_who from {{counted}} as counted left join {{known}} as known
        on counted.capture_id = known.capture_id and counted.conn_id = known.conn_id
    ) as known
) as named"""
_EXCHANGES: Final = _summed(
    {
        **{"n": "count(*)", "value": "max(latency_ns)", "repeats": "sum(attempts - 1)", "ways": "count(way_ns)"},
        **{
            name: f"cast(sum(cast({of} as decimal(20, 0))) as decimal(38, 0))"
            for name, of in (("way", "way_ns"), ("summed", "latency_ns"))
        },
        **{"duplicates": "sum(duplicates)", "items": "sum(items)", "not_ok": "count_if(outcome != 'ok')"},
        **{"window_ns": "at_ns - at_ns % {width}", "letter": f"case when stored = '{DEAD_LETTER}' then store_seq end"},
        **{"kept": "count_if(latency_ns is not null and coalesce(code, 0) = 0)", "had": "count_if(code_name = 'DUPLICATE')"},
        **{"refused": "count_if(code != 0)", "unanswered": "count_if(latency_ns is null)", "most_attempts": "max(attempt)"},
        **{"firsts": "count_if(attempt = 1)", "redelivered": "count_if(attempt > 1)"},
        **{"handled": f"count_if({_SETTLED} = 'OK')", "again": f"count_if({_SETTLED} = 'NAK')"},
        **{"ended": f"count_if({_SETTLED} = 'TERM')"},
    },
    {
        "exchanges": (_CLASSED, "true"),
        "paces": (_CLASSED, "kind = 'request' and at_ns is not null"),
        "asks": (_NAMED, "kind = 'request'"),
        "stores": ("{counted}", "stored is not null"),
    },
    "settled, ",
)
_KINDS: Final = ", ".join(KIND)
_WANTED: Final = f"""
    with chosen as (
        select {_KINDS}, max(coalesce(value, 0)) as longest, rank() over (partition by settled order by longest desc) as slow,
            row_number() over (partition by settled order by outcome = 'ok', {", ".join(KIND_OF)}) as place
        from {{summed}} where settled is not null group by {_KINDS} qualify slow <= {SAMPLES} or place <= {ROWS}
    )
    select {", ".join(f"{name} as of_{name}" for name in KIND)}, most, min(class) as least_ns from (
        select chosen.*, class, if(slow <= {SAMPLES}, {SAMPLES}, {ALIKE}) as most, coalesce(sum(n) over (
            partition by place, chosen.settled order by class desc nulls first rows between unbounded preceding and 1 preceding
        ), 0) as slower
        from {{summed}} as summed join chosen
        on {" and ".join(f"summed.{name} is not distinct from chosen.{name}" for name in KIND)}
        qualify slower < most
    ) as counted
    group by all
"""
"""SQL for the kinds of exchanges to list: the number of exchanges, and the class of the last one. Failed kinds come
first, and the slowest kinds list more exchanges.
"""
_NTH: Final = f"row_number() over (partition by {{by}} order by latency_ns desc nulls first, request_time_ns, {TIES}) as nth"
_ROWS: Final = f"""
    select settled, {", ".join(LISTED.names)} from (
        select /*+ broadcast(wanted) */ *, {_NTH.format(by=", ".join(KIND))}
        from {{counted}} as counted join {{wanted}} as wanted
        on kind = 'request' and {" and ".join(f"{name} is not distinct from of_{name}" for name in KIND)}
        where latency_ns is null or latency_ns >= least_ns
    ) as numbered where nth <= most
    union all select settled, {", ".join(LISTED.names)} from (
        select *, {_NTH.format(by="settled")} from {{counted}} where kind = 'request' and latency_ns is null
    ) as numbered where nth <= {SAMPLES}
"""

_FACTS: Final = """
    select place, capture_id, kind, subject, min(request_time_ns) as first_ns, max(request_time_ns) as last_ns
    from {found} group by place, capture_id, kind, subject
"""
_SHARED: Final = f"""
    select whole.capture_id from {{whole}} as whole semi join (
        select protocol, correlation_id, capture_id from {{found}} semi join {{names}} on capture_id = name where {DRAWN}
    ) as others on whole.protocol = others.protocol and whole.correlation_id = others.correlation_id
        and whole.capture_id != others.capture_id
    limit 1
"""


Spans = list[tuple[int, int]]
"""Time ranges in ns since 1970 (UTC)."""


class Now(msgspec.Struct):
    version: int = _VERSION
    folder: str = ""
    names: str = ""
    files: dict[str, dict[str, tuple[int, int]]] = msgspec.field(default_factory=lambda: {name: {} for name in TABLES})
    """Counted files by table, each with its first and last time."""
    again: list[str] = []
    since: dict[str, int] = {}
    """By kind of exchange, the end of the time that has been counted if there are several recordings."""
    recordings: dict[str, int] = {}
    """Time of the last request, by recording."""
    called: dict[str, str] = {}
    told: list[list[dict[str, Any]]] = []
    """Exchanges selected for journeys, and these journeys."""
    followed: list[dict[str, Any]] = []
    clocks: dict[str, int] | None = None
    """By recording, how far its clock is ahead, in ns, or `None` if there is only one recording."""


@attrs.define
class Sums:
    """The sums of a results folder, with temporary additions that the next run may change."""

    now: Now
    parts: dict[str, pa.Table]
    rows: list[dict[str, Any]]
    """Exchanges that may be listed."""
    samples: list[dict[str, Any]]
    shown: dict[str, pa.Table] = attrs.Factory(dict)
    """The tables of sums including temporary additions."""
    shown_rows: list[dict[str, Any]] = attrs.Factory(list)
    fresh: list[tuple[int, int]] = attrs.Factory(list)

    @classmethod
    def of(cls, output: Output, names: Names) -> Self:
        """Read the stored sums. They are empty if files that they include no longer exist."""
        storage, none = output.storage, {name: part.added(()) for name, part in PARTS.items()}
        made = cls(Now(names=str(names)), none, [], [])
        if _NOW not in storage.files(SUMS):
            return made
        try:
            now = msgspec.json.decode(storage.read(_NOW), type=Now)
            there = {name: {file.name for file in output.named(name)} for name in TABLES}
            if now.version != _VERSION or any(not now.files[name].keys() <= there[name] for name in TABLES):
                return made
            if _OURS.fullmatch(now.folder) is None:
                return made
            tables = {name: _table(storage, f"{now.folder}/{name}.parquet") for name in (*PARTS, "rows", "samples")}
            parts = {name: part.added([tables[name]]) for name, part in PARTS.items()}
        except (ValueError, KeyError, TypeError, OSError, pa.ArrowException, CaptureError):
            return made  # they can be made again from the tables
        made = cls(now, parts, tables["rows"].to_pylist(), tables["samples"].to_pylist())
        if now.names != str(names):
            made._forget_exchanges(str(names))
        return made

    def keep(self, storage: TableStorage) -> None:
        before, self.now.folder = self.now.folder, f"{SUMS}/{uuid.uuid4().hex[:12]}"
        tables = {name: self.parts[name] for name in PARTS}
        tables |= {"rows": pa.Table.from_pylist(self.rows, LISTED), "samples": pa.Table.from_pylist(self.samples, QUARANTINE)}
        for name, table in tables.items():
            storage.write(f"{self.now.folder}/{name}.parquet", as_parquet(table))
        storage.write(_NOW, msgspec.json.encode(self.now))
        # Removes those of earlier and killed runs; without a lock another run may be at work here.
        there = {name.rpartition("/")[0] for name in storage.files(SUMS)} - {self.now.folder}
        for folder in there if storage.local else there & {before}:
            if _OURS.fullmatch(folder):
                storage.remove(folder)

    def _forget_exchanges(self, names: str = "") -> None:
        self.now.files["exchanges"], self.now.again, self.now.since, self.now.recordings = {}, [], {}, {}
        self.now.clocks = None  # recordings are compared again, too
        self.now.names, self.rows = names or self.now.names, []
        self.parts |= {name: PARTS[name].added(()) for name in _OF_EXCHANGES}

    def add(self, engine: Engine, output: Output, names: Names) -> None:
        new = self._new(output)
        self.shown = dict(self.parts)
        self._add_messages(engine, output, new["events"])
        self._add_quarantine(engine, output, new["quarantine"])
        self._add_exchanges(engine, output, names, new["exchanges"])
        self._add_orphans(engine, output, new["orphans"])

    def _new(self, output: Output) -> dict[str, list[str]]:
        """Return the uncounted files by table and mark them as counted."""
        found, times = dict[str, list[str]](), {"exchanges": "request_time_ns", "quarantine": "ts_ns"}
        for table in TABLES:
            counted = self.now.files[table]
            new = [file for file in output.named(table) if file.name not in counted]
            spans = {file.name: output.storage.span(file.name, times.get(table, "time_ns")) for file in new}
            counted |= {file.name: spans[file.name] for file in new if not file.provisional}
            found[table] = [file.name for file in new if not file.provisional]
            self.fresh += spans.values()
        return found

    @property
    def width_ns(self) -> int:
        spans = self.now.files["events"].values()
        length = max((last for _, last in spans), default=0) - min((first for first, _ in spans), default=0)
        return round(next((width for width in WIDTHS_S if length <= width * 1e9 * WINDOWS), WIDTHS_S[-1]) * 1e9)

    def _read(self, engine: Engine, output: Output, table: str, files: Sequence[str]) -> Any:
        for name in files:
            output.storage.check(name)
        return engine.read(output.storage, table, files, TABLES[table])

    def _whole(self, engine: Engine, output: Output, table: str) -> Any:
        return self._read(engine, output, table, [file.name for file in output.named(table)])

    def near(self, engine: Engine, output: Output, table: str, spans: Spans) -> Any:
        """Return the events or exchanges in some time ranges."""
        column, known = "time_ns" if table == "events" else "request_time_ns", self.now.files[table]
        files = [file.name for file in output.named(table) if meets(known.get(file.name), spans)]
        wanted = " or ".join(f"{column} between {begin} and {end}" for begin, end in spans)
        return engine.sql(f"select * from {{found}} where {wanted or 'false'}", found=self._read(engine, output, table, files))

    @property
    def stepped_ns(self) -> int:
        """The largest shift of a recording's wall clock relative to its monotonic clock, in ns."""
        found = grouped(self.parts["links"], ["capture_id"], {"least_ns": "min", "most_ns": "max"})
        return min(pc.max(pc.subtract(found["most_ns"], found["least_ns"])).as_py() or 0, LAST_NS)

    def _sum(self, engine: Engine, text: str, **tables: Any) -> pa.Table:
        return engine.rows(engine.sql(text.replace("{width}", str(self.width_ns)), **tables))

    def _add(self, found: pa.Table, *names: str, rows: Any = None, lasting: bool = True) -> None:
        for name in names:
            part = PARTS[name]
            some = found.select(part.schema.names)
            if "part" in found.column_names:
                own = pc.equal(found["part"], name)
                some = some.filter(own if rows is None else pc.and_(own, rows))
            into = self.parts if lasting else self.shown
            into[name] = part.added([self._in_windows(into[name]), some])
            if lasting:
                self.shown[name] = self.parts[name]

    def _in_windows(self, table: pa.Table) -> pa.Table:
        if "window_ns" not in table.column_names:
            return table
        place, width = table.schema.get_field_index("window_ns"), self.width_ns
        return table.set_column(place, "window_ns", pc.multiply(pc.divide(table["window_ns"], width), width))

    def _add_messages(self, engine: Engine, output: Output, files: Sequence[str]) -> None:
        if files:
            found = self._sum(engine, _MESSAGES, events=self._read(engine, output, "events", files))
            self._add(found, "links", "subjects", "windows")

    def _add_quarantine(self, engine: Engine, output: Output, files: Sequence[str]) -> None:
        if files:
            bad = self._read(engine, output, "quarantine", files)
            text = "select protocol, reason, count(*) as n from {bad} group by protocol, reason"
            self._add(self._sum(engine, text, bad=bad), "quarantine")
            some = self._sum(engine, f"select * from {{bad}} order by capture_id, seq limit {SAMPLES}", bad=bad).to_pylist()
            self.samples = sorted([*self.samples, *some], key=lambda row: (row["capture_id"] or "", row["seq"]))[:SAMPLES]

    def _add_exchanges(self, engine: Engine, output: Output, names: Names, new: Sequence[str]) -> None:
        now = self.now
        self._add_rows(())
        found, facts = self._unsettled(engine, output, new)
        if not facts:
            return
        several = len({*now.recordings, *(row["capture_id"] for row in facts)}) > 1
        if several and self._reaches_back(engine, output, found, facts):
            files = self.now.files["exchanges"]
            self._forget_exchanges()
            self.now.files["exchanges"] = files
            self.shown |= {name: self.parts[name] for name in _OF_EXCHANGES}
            found, facts = self._unsettled(engine, output, list(files))
        now.called |= names.renamed({row["subject"] for row in facts} - {None})
        named = by_name(engine, found, now.called)
        if several:
            known = now.clocks or {}
            ahead = {name: ns for name, ns in clocks_of(engine, named).items() if name not in now.recordings}
            now.clocks = {**ahead, **known}
        moments = [(row, self._at(row, "first_ns"), self._at(row, "last_ns")) for row in facts]
        for row, _, at in moments:
            now.recordings[row["capture_id"] or ""] = max(at, now.recordings.get(row["capture_id"] or "", at))
        horizon = round(float(output.last.settings["horizon"]) * 1e9)
        until = {
            kind: min(
                [max(now.recordings.values(), default=0) - horizon]
                + [at for row, at, _ in moments if row["place"] == "open" and row["kind"] == kind]
            )
            for kind in ("request", "stream")
        }
        settled, wanted = "place != 'open'", "true"
        if several:
            settled, wanted = f"last_ns < {_by_kind(until)}", f"last_ns >= {_by_kind(now.since)}"
        with told_apart(engine, named, now.clocks) as views:
            counted = engine.sql(f"select *, {settled} as settled from {{views}} where view = 1 and {wanted}", views=views)
            links = self.shown["links"]
            known = grouped(links.filter(pc.is_valid(links["first_who"])), ["capture_id", "conn_id"], {"first_who": "max"})
            summed = self._sum(engine, _EXCHANGES, counted=counted, known=engine.hand(known))
            some = pc.fill_null(summed["settled"], False)
            self._add(summed, *_OF_EXCHANGES, rows=some)
            self._add(summed, *_OF_EXCHANGES, rows=pc.invert(some), lasting=False)
            requests = summed.filter(pc.and_(pc.equal(summed["part"], "exchanges"), pc.equal(summed["kind"], "request")))
            with on_driver(engine) as here:
                wanted = here.rows(here.sql(_WANTED, summed=here.hand(requests)))
            self._add_rows(engine.rows(engine.sql(_ROWS, counted=counted, wanted=engine.hand(wanted))).to_pylist())
        if several:
            begin = min(until.values()) + min([0, *(now.clocks or {}).values()]) - CROWDED_NS - SLACK_NS
            now.since, now.again = until, [name for name, (_, last) in now.files["exchanges"].items() if last >= begin]

    def _unsettled(self, engine: Engine, output: Output, new: Sequence[str]) -> tuple[Any, list[dict[str, Any]]]:
        again = [name for name in self.now.again if name not in new]
        places = {"again": again, "new": new, "open": [file.name for file in output.named("exchanges") if file.provisional]}
        tables = {name: self._read(engine, output, "exchanges", files) for name, files in places.items() if files}
        if not tables:
            return None, []
        parts = (f"select {', '.join(EXCHANGES.names)}, '{name}' as place from {{{name}}}" for name in tables)
        found = engine.sql(" union all ".join(parts), **tables)
        return found, engine.rows(engine.sql(_FACTS, found=found)).to_pylist()

    def _at(self, row: Mapping[str, Any], name: str) -> int:
        at = row[name] or 0
        return int(at - (self.now.clocks or {}).get(row["capture_id"], 0) if abs(at) < FAR_NS else at)

    def _reaches_back(self, engine: Engine, output: Output, found: Any, facts: Sequence[Mapping[str, Any]]) -> bool:
        """Return True if new exchanges may change the view of exchanges that were already counted."""
        now = self.now
        if now.clocks is None:
            return bool(now.recordings)
        news = [row for row in facts if row["place"] != "again"]
        if any(self._at(row, "first_ns") < now.since.get(row["kind"], -LAST_NS) for row in news):
            return True
        others = {row["capture_id"] for row in news} - now.recordings.keys() - {None}
        if not others or not now.files["exchanges"]:
            return False
        whole = self._whole(engine, output, "exchanges")
        names = engine.hand(pa.table({"name": pa.array(sorted(others), pa.string())}))
        return bool(engine.rows(engine.sql(_SHARED, found=found, whole=whole, names=names)).num_rows)

    def _add_rows(self, found: Sequence[dict[str, Any]]) -> None:
        self.rows = kept([*self.rows, *(row for row in found if row["settled"])])
        self.shown_rows = kept([*self.rows, *(row for row in found if not row["settled"])])

    def _add_orphans(self, engine: Engine, output: Output, files: Sequence[str]) -> None:
        if self.now.clocks is None and files:
            orphans = self._read(engine, output, "orphans", files)
            text = "select protocol, subject, count(*) as n from {orphans} group by protocol, subject"
            self._add(self._sum(engine, text, orphans=orphans), "orphans")
        elif self.now.clocks is not None and output.named("orphans"):  # there are few
            orphans, exchanges = (self._whole(engine, output, name) for name in ("orphans", "exchanges"))
            self.shown["orphans"] = PARTS["orphans"].added([engine.rows(lost(engine, orphans, exchanges))])


def note_merged(storage: TableStorage, merged: Mapping[str, Sequence[str]]) -> None:
    """Record that files were merged, so that the counts stay valid. Otherwise all sums would be recomputed."""
    if not merged or _NOW not in storage.files(SUMS):
        return
    with suppress(ValueError, KeyError):
        now = msgspec.json.decode(storage.read(_NOW), type=Now)
        for name, files in merged.items():
            counted = now.files[name.partition("/")[0]]
            firsts, lasts = zip(*(counted.pop(one) for one in files), strict=True)
            counted[name] = min(firsts), max(lasts)
            if again := set(now.again).intersection(files):
                now.again = [*(one for one in now.again if one not in again), name]
        storage.write(_NOW, msgspec.json.encode(now))


def _table(storage: TableStorage, name: str) -> pa.Table:
    storage.check(name)
    return pq.read_table(pa.BufferReader(storage.read(name)))


def as_parquet(table: pa.Table) -> bytes:
    """Write a table as Parquet. A table without rows has no pages."""
    buffer = pa.BufferOutputStream()
    with pq.ParquetWriter(buffer, table.schema) as file:
        if len(table):
            file.write_table(table)
    data: bytes = buffer.getvalue().to_pybytes()
    return data


def meets(span: tuple[int, int] | None, spans: Spans) -> bool:
    return span is None or any(begin <= span[1] and end >= span[0] for begin, end in spans)


def _by_kind(moments: Mapping[str, int]) -> str:
    stream, request = (moments.get(kind, -LAST_NS) for kind in ("stream", "request"))
    return f"(case when kind = 'stream' then {stream} else {request} end)"
