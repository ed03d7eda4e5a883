"""Computes the metrics of a capture from its sums. The metrics are the contents of the report and of ``metrics.json``."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from itertools import accumulate, islice
from math import floor, log10
from typing import Any, Final

import attrs
import pyarrow as pa

from polybus.capture.protocols.nats import DEAD_LETTER, DELIVERY, PUBLICATION
from polybus.capture.schema import OUTCOMES

from ...capture.store.compute import pc
from ..clocks import LAST_NS
from ..engine import Engine
from ..ingest import RunCounts
from ..results import Output
from .journeys import follow_connections, told
from .listed import KIND_OF, in_order, listed, slowest, unanswered
from .names import Names, is_for
from .sums import PARTS, STORE_NUMBERS, WHO, Sums, as_parquet, grouped
from .tables import BUCKETS_A_DECADE, FEW, MANY, METRICS, STACKED, broke_off

SHOWN_BYTES: Final = 48
_SHARES: Final = (50, 90, 95, 99)

Rows = list[dict[str, Any]]


def measure(engine: Engine, output: Output, names: Names | None = None) -> dict[str, Any]:
    names = names or Names()
    sums = Sums.of(output, names)
    sums.add(engine, output, names)
    tables = _Tables(sums, names)
    found = {name: shaped(name, rows) for name, rows in tables.all().items()}
    write_tables(output, found)
    journeys, followed = told(engine, output, sums), follow_connections(engine, output, sums, found["sessions"])
    sums.keep(output.storage)
    times = [row[name] for row in found["kinds"] for name in ("first_ns", "last_ns") if row[name] is not None]
    last = output.last
    return {
        "capture": last.capture if last is not None else "",
        "runs": output.runs,
        "names": str(names),
        "settings": last.settings if last is not None else {},
        **{"begin_ns": min(times, default=0), "end_ns": max(times, default=0), "window_ns": sums.width_ns},
        "counts": attrs.asdict(output.counts),
        "provisional": output.provisional,
        "totals": _totals(found, output.counts)
        | {"orphans": pc.sum(sums.shown["orphans"]["n"]).as_py() or 0, "broke": tables.broke},
        **found,
        "journeys": journeys,
        "followed": followed,
        "gaps": last.gaps if last is not None else [],
        "losses": last.losses if last is not None else [],
    }


_COUNT: Final = {"n": "sum"}


def _most(table: pa.Table, keys: str, numbers: Mapping[str, str] = _COUNT) -> Rows:
    found: Rows = _sorted(grouped(table, keys.split(), numbers), keys)[:MANY].to_pylist()
    return found


def _sorted(table: pa.Table, keys: str) -> pa.Table:
    names, order = keys.split(), [("n", "descending")]
    columns = {"n": table["n"]}
    for name in names:
        columns |= {f"has {name}": pc.is_valid(table[name]), name: table[name]}  # null comes first
        order += [(f"has {name}", "ascending"), (name, "ascending")]
    return table.take(pc.sort_indices(pa.table(columns), order))


def _first(found: Iterable[dict[str, Any]], keys: str) -> Rows:
    names = keys.split()
    return sorted(found, key=lambda row: (-row["n"], *in_order(row, names)))[:MANY]


class _Tables:
    def __init__(self, sums: Sums, names: Names) -> None:
        self._sums, self._parts, self._names = sums, dict(sums.shown), names
        self.broke: int = 0
        """Number of connections that were lost, including unlisted connections."""
        for name in ("subjects", "windows", "orphans"):
            table, place = self._parts[name], self._parts[name].schema.get_field_index("subject")
            found = pc.unique(table["subject"])
            if renamed := names.renamed(one for one in found.to_pylist() if one is not None):
                spelled = pa.array([renamed.get(one, one) for one in found.to_pylist()], pa.string())
                self._parts[name] = table.set_column(place, "subject", spelled.take(pc.index_in(table["subject"], found)))

    def all(self) -> dict[str, Rows]:
        links, topics = self._parts["links"], self._of("subjects", topic="publish")
        requests, sizes = self._of("exchanges", kind="request"), {"n": "sum", "nbytes": "sum"}
        kinds = grouped(links, ["protocol", "kind", "direction"], sizes | {"first_ns": "min", "last_ns": "max"}).to_pylist()
        numbers = {"n": "sum", "duplicates": "sum", "repeats": "sum"}
        outcomes = grouped(requests, ["protocol", "outcome", "match_quality"], numbers)
        errors = requests.filter(pc.equal(requests["outcome"], "error"))
        return {
            "kinds": _ordered(kinds, "protocol kind direction"),
            "outcomes": _ordered(outcomes.to_pylist(), "protocol outcome match_quality"),
            "places": self._places(requests),
            "latency": _first(_by_subject(requests), "protocol subject"),
            "streams": _first(_by_subject(self._of("exchanges", kind="stream")), "protocol subject"),
            "latency_over_time": self._paces(),
            "latency_histogram": _histogram(requests),
            "throughput": self._throughput(),
            "errors": _most(errors, "protocol subject code code_name"),
            **self._exchanges(requests),
            "orphans": _most(self._parts["orphans"], "protocol subject"),
            "sessions": self._sessions(),
            "asks": self._asks("protocol", "subject"),
            "pairs": self._asks(),
            "topics": _most(topics, "protocol subject direction", sizes),
            "unheard": self._unheard(topics),
            "clocks": self._clocks(),
            "peers": _most(links, "peer protocol direction", sizes),
            "quarantine": _most(self._parts["quarantine"], "protocol reason"),
            "quarantine_samples": self._sums.samples,
            **self._stores(),
        }

    def _of(self, part: str, **given: str) -> pa.Table:
        table = self._parts[part]
        for name, value in given.items():
            table = table.filter(pc.equal(table[name], value))
        return table

    def _places(self, requests: pa.Table) -> Rows:
        rows = grouped(requests, ["protocol", "direction", "views"], dict.fromkeys(("n", "way", "ways"), "sum")).to_pylist()
        return _ordered(({**row, "way_ns": _mean(row["way"], row["ways"])} for row in rows), "protocol direction views")

    def _paces(self) -> Rows:
        paces = self._parts["paces"].filter(pc.is_valid(self._parts["paces"]["window_ns"]))
        classes = _classes(paces, "window_ns")
        rows = grouped(paces, ["window_ns"], {"n": "sum", "not_ok": "sum"}).to_pylist()
        return _ordered(({**row, **_percentiles(classes.get((row["window_ns"],), _NO_CLASSES))} for row in rows), "window_ns")

    def _throughput(self) -> Rows:
        windows = self._parts["windows"]
        busiest = grouped(windows.filter(pc.is_valid(windows["subject"])), ["subject"], _COUNT)
        shown = _sorted(busiest, "subject")["subject"][:STACKED].combine_chunks()
        subject = pc.if_else(pc.is_in(windows["subject"], shown), windows["subject"], None)
        table = windows.set_column(windows.schema.get_field_index("subject"), "subject", subject)
        rows = grouped(table, ["window_ns", "subject"], {"n": "sum", "nbytes": "sum"}).to_pylist()
        return _ordered(rows, "window_ns subject")

    def _exchanges(self, requests: pa.Table) -> dict[str, Rows]:
        alike, rows = dict[tuple[Any, ...], int](), self._sums.shown_rows
        for row in grouped(requests, KIND_OF, _COUNT).to_pylist():
            alike[tuple(row[name] for name in KIND_OF)] = row["n"]
        some = [{**row, "alike": alike.get(tuple(row[name] for name in KIND_OF), 1)} for row in listed(rows)]
        return {"rows": some, "slowest": slowest(rows), "dead_letters": unanswered(rows)}

    def _sessions(self) -> Rows:
        found, names = [], ("capture_id", "conn_id", "protocol")
        for key, rows in _alike(self._parts["links"], " ".join(names)):
            own = [row for row in rows if row["own"]]
            opens, closes = ([row for row in own if row["kind"] == kind] for kind in ("open", "close"))
            # An identity is known from both ends of a connection.
            named, known = ({one[name] for one in some for name in WHO} - {None} for some in (rows, [*opens, *closes]))
            codes = [one["closed"] for one in closes if one["closed"] != "closed"]
            found.append(
                {
                    **dict(zip(names, key, strict=True)),
                    **{name: _last(rows, name) for name in ("transport", "peer")},
                    **{name: sum(one[name] for one in rows) for name in ("n", "nbytes")},
                    "who": next((some.pop() for some in (known, named) if len(some) == 1), None),
                    **{"first_ns": _least(rows, "first_ns"), "last_ns": _last(rows, "last_ns"), "length_ns": _length(rows)},
                    "handshake_ns": _length(opens) if sum(one["n"] for one in opens) > 1 else None,
                    "heartbeats": sum(one["n"] for one in rows if one["kind"] == "heartbeat"),
                    "closed": max(codes, default="closed" if closes else None),
                }
            )
        found.sort(key=lambda row: (not broke_off(row), -row["n"], *in_order(row, names)))
        self.broke = sum(map(broke_off, found))
        return found[:MANY]

    def _asks(self, *by: str) -> Rows:
        """Return which peers send requests to which, grouped by some columns. The recorded program is `here`."""
        table, keys = self._parts["asks"], ["capture_id", "direction", "who", *by]
        rows, alone = _most(table, " ".join(keys), {"n": "sum", "not_ok": "sum"}), len(pc.unique(table["capture_id"])) == 1
        few = pa.Table.from_pylist([{name: row[name] for name in keys} for row in rows], table.select(keys).schema)
        of_few = table.join(few, keys, join_type="left semi", use_threads=False)
        of_some = table.filter(pc.invert(reduce(pc.and_, (pc.is_valid(table[name]) for name in keys))))  # nulls join nothing
        classes = _classes(pa.concat_tables([of_few, of_some]), *keys)
        for row in rows:
            here = "here" if alone else (row["capture_id"] or "")[-8:]
            row["asker"], row["answerer"] = [row["who"] or "unknown peer", here][:: 1 if row["direction"] else -1]
            row["p95_ns"] = _percentiles(classes.get(tuple(row[name] for name in keys), _NO_CLASSES))["p95_ns"]
        return _first(rows, " ".join(("asker", "answerer", *by)))

    def _unheard(self, topics: pa.Table) -> Rows:
        """Return publications that arrived without a subscription and were not forwarded. Several recordings may have one."""
        heard = self._of("subjects", topic="subscribe")["subject"]
        patterns = [self._names.of(one) for one in pc.unique(heard).to_pylist() if one is not None]
        for name, way in (("came", 1), ("sent", 0)):
            topics = topics.append_column(name, pc.if_else(pc.equal(topics["direction"], way), topics["n"], 0))
        places = grouped(topics, ["protocol", "subject", "capture_id"], {"came": "sum", "sent": "sum"})
        places = places.filter(pc.greater(places["came"], 0)).rename_columns({"came": "n"})
        found = grouped(places, ["protocol", "subject"], {"n": "max", "sent": "sum"})
        rows = _sorted(found.filter(pc.equal(found["sent"], 0)), "protocol subject")
        unheard = (row for batch in rows.to_batches(MANY) for row in batch.to_pylist())
        return list(islice((row for row in unheard if not any(is_for(one, row["subject"] or "") for one in patterns)), MANY))

    def _clocks(self) -> Rows:
        found, ahead = [], self._sums.now.clocks or {}
        for (name,), rows in _alike(self._parts["links"], "capture_id"):
            least, most = _least(rows, "least_ns"), _last(rows, "most_ns")
            stepped, n = 0 if least is None else min(most - least, LAST_NS), sum(row["n"] for row in rows)
            found.append({"capture_id": name, "n": n, "stepped_ns": stepped, "ahead_ns": ahead.get(name, 0)})
        return _first(found, "capture_id")

    def _stores(self) -> dict[str, Rows]:
        publications, deliveries, letters = (self._of("stores", stored=name) for name in (PUBLICATION, DELIVERY, DEAD_LETTER))
        given = _most(deliveries, "store durable", STORE_NUMBERS)
        sent = _most(publications, "store", STORE_NUMBERS)
        # After a worker was killed before it ended the publication, the next worker stores the letter again.
        keys = ("store", "durable", "reason")
        ended = [
            {**dict(zip(keys, key, strict=True)), "n": len(rows), "most_attempts": _last(rows, "most_attempts")}
            for key, rows in _alike(letters, " ".join(keys))
        ]
        return {
            "store_publications": [{**row, "duplicates": row["had"], "sent_again": row["repeats"]} for row in sent],
            "store_deliveries": [{**row, "publications": row["firsts"], "unsettled": row["unanswered"]} for row in given],
            "store_letters": _first(ended, "store durable reason"),
        }


def _ordered(rows: Iterable[dict[str, Any]], keys: str) -> Rows:
    names = keys.split()
    return sorted(rows, key=lambda row: in_order(row, names))


def _alike(table: pa.Table, keys: str) -> Iterator[tuple[tuple[Any, ...], Rows]]:
    names, found = keys.split(), dict[tuple[Any, ...], Rows]()
    for row in table.to_pylist():
        found.setdefault(tuple(row[name] for name in names), []).append(row)
    yield from found.items()


def _least(rows: Rows, name: str) -> Any:
    return min((row[name] for row in rows if row[name] is not None), default=None)


def _last(rows: Rows, name: str) -> Any:
    return max((row[name] for row in rows if row[name] is not None), default=None)


def _length(rows: Rows) -> int | None:
    first, last = _least(rows, "first_mono_ns"), _last(rows, "last_mono_ns")
    return None if first is None else min(last - first, LAST_NS)


def _mean(whole: Any, n: int) -> float | None:
    return float(whole) / n if n else None


def _by_subject(exchanges: pa.Table) -> Iterator[dict[str, Any]]:
    keys, numbers = ["protocol", "subject"], {name: how for name, how in PARTS["exchanges"].numbers.items() if name != "value"}
    answered = exchanges.filter(pc.is_valid(exchanges["class"]))
    classes, waited = _classes(answered, *keys), dict[tuple[Any, ...], dict[str, Any]]()
    for row in grouped(answered, keys, numbers).to_pylist():
        waited[row["protocol"], row["subject"]] = row
    for key, rows in _alike(grouped(exchanges, [*keys, "outcome", "direction", "views"], numbers), "protocol subject"):
        ends, answers, took = Counter[str](), waited.get(key, {"n": 0, "summed": 0}), classes.get(key, _NO_CLASSES)
        for row in rows:
            ends[row["outcome"]] += row["n"]
        yield {
            **{"protocol": key[0], "subject": key[1], "n": ends.total(), "answered": answers["n"]},
            **{"mean_ns": _mean(answers["summed"], answers["n"]), "max_ns": max(took[2], default=None)},
            **{name.replace("-", "_"): ends[name] for name in OUTCOMES},
            "duplicates": sum(row["duplicates"] for row in rows),
            "asked": sum(row["n"] for row in rows if row["direction"] == 0),
            "seen": sum(row["n"] for row in rows if row["views"] > 1),
            "way_ns": _mean(sum(row["way"] or 0 for row in rows), sum(row["ways"] for row in rows)),
            **_percentiles(took),
            "items": sum(row["items"] or 0 for row in rows),
            "views": sum(row["views"] * row["n"] for row in rows),
        }


_Classes = tuple[Sequence[int], Sequence[int], Sequence[int]]
_NO_CLASSES: Final[_Classes] = ((), (), ())


def _classes(table: pa.Table, *keys: str) -> dict[tuple[Any, ...], _Classes]:
    """By key, return the latency classes in order, with their answer counts and longest latencies."""
    answered = table.filter(pc.is_valid(table["class"]))
    counted = grouped(answered, [*keys, "class"], {"n": "sum", "value": "max"}).sort_by("class")
    lists = grouped(counted, keys, dict.fromkeys(("class", "n", "value"), "list"))
    columns = [lists[name].to_pylist() for name in (*keys, "class", "n", "value")]
    return {tuple(key): (places, numbers, values) for *key, places, numbers, values in zip(*columns, strict=True)}


def _percentiles(classes: _Classes) -> dict[str, int | None]:
    upto, found = list(accumulate(classes[1])), dict[str, int | None]()
    total = upto[-1] if upto else 0
    for share in _SHARES:
        enough = total >= (FEW if share == 99 else 1)
        found[f"p{share}_ns"] = classes[2][bisect_left(upto, -(-share * total // 100))] if enough else None
    return found


def _histogram(exchanges: pa.Table) -> Rows:
    buckets = Counter[int]()
    classes = grouped(exchanges.filter(pc.is_valid(exchanges["class"])), ["class"], _COUNT)
    for place, n in zip(classes["class"].to_pylist(), classes["n"].to_pylist(), strict=True):
        # keeps an exact power of ten out of the lower bucket
        buckets[floor(log10(max(place, 1)) * BUCKETS_A_DECADE + 1e-9)] += n
    return [{"from_ns": 10 ** (bucket / BUCKETS_A_DECADE), "n": n} for bucket, n in sorted(buckets.items())]


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
