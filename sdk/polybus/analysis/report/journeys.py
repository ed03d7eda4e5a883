"""Journeys, which show the hops of important or requested exchanges and the frames that carried the hops.

The hops of an exchange are its views in other recordings and the exchanges that it caused.

Two exchanges certainly belong together if they have the same id or trace, or the same name and body in one recording. An
exchange is listed as uncertain if it only seems to match: it has the same body in another recording, has the same name, or is
the only exchange at that time.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain
from operator import itemgetter
from typing import Any, Final
from urllib.parse import unquote

import attrs
import pyarrow as pa

from polybus.capture.schema import EVENTS, EXCHANGES
from polybus.capture.store.filesystems import AnyPath
from polybus.subjects import check_pattern

from ...plugins.tools import check_count, check_type
from ..clocks import LAST_NS
from ..engine import DuckEngine, Engine, on_driver
from ..ranges import ReadWindow
from ..results import Output
from .listed import for_journeys
from .names import Names, by_name, is_for
from .sums import Spans, Sums, meets
from .views import SLACK_NS, TIES, USERS, clocks_of, told_apart

Row = dict[str, Any]

_APART_NS: Final = 20_000
"""Maximum difference between the times that two recorders on one machine have for the same moment."""
MOST: Final = 8
BY_ID: Final = "same id"
BY_TRACE: Final = "same trace"
BY_NAME: Final = "same name and body"
BY_BODY: Final = "same body"
BY_SUBJECT: Final = "same name"
BY_TIME: Final = "nothing else at that time"


@attrs.frozen
class Hop:
    row: Row
    known_by: str
    """Reason for the match, such as `BY_ID`. Empty for the first exchange."""
    sure: bool = True
    """False if this exchange or an exchange before it is uncertain."""


def follow(root: Row, near: Sequence[Row], *, all_near: bool) -> list[Hop]:
    """Return the hops of an exchange, ordered by time.

    Set `all_near` if `near` contains all exchanges of that time, so that a single candidate is known to be the only one.
    """
    found, left, led = [Hop(root, "")], [row for row in near if _key(row) != _key(root)], set[tuple[int, Any]]()
    for sure in (True, False):  # certain hops first
        waiting = found.copy()
        while waiting and len(found) < MOST:
            last = waiting[0]
            for find in (_other_end, _onward, _origin):
                hop = None if (id(last.row), find) in led else find(last.row, left, all_near)
                if hop is not None and (hop.known_by in _SURE or not sure):
                    break
            else:
                waiting.pop(0)
                continue
            found.append(attrs.evolve(hop, sure=last.sure and hop.known_by in _SURE))
            waiting.append(found[-1])
            left = [other for other in left if other is not hop.row]
            if find is not _other_end:  # other ends may be several
                led |= {(id(last.row), find), (id(hop.row), _origin if find is _onward else _onward)}
    return sorted(found, key=lambda hop: (not hop.sure, hop.row["at_ns"], hop.row["direction"] == 1, _key(hop.row)))


_SURE: Final = (BY_ID, BY_TRACE, BY_NAME)


def _key(row: Row) -> tuple[Any, ...]:
    return row["capture_id"], row["conn_id"], row["request_seq"], row["correlation_id"] or ""


def end_of(row: Row) -> int | None:
    return None if row["latency_ns"] is None else int(row["at_ns"] + row["latency_ns"])


def _other_end(row: Row, near: Iterable[Row], all_near: bool) -> Hop | None:
    names = "protocol correlation_id subject spell again".split()
    same = [other for other in near if all(other[name] == row[name] for name in names)]
    nearest = min(same, key=lambda other: _apart(other, row), default=None)
    return Hop(nearest, BY_ID) if nearest is not None else None


def _onward(row: Row, near: Iterable[Row], all_near: bool) -> Hop | None:
    within = [other for other in near if (row["direction"], other["direction"]) == (1, 0) and _encloses(row, other)]
    return _surest(row, within, all_near)


def _origin(row: Row, near: Iterable[Row], all_near: bool) -> Hop | None:
    around = [other for other in near if (row["direction"], other["direction"]) == (0, 1) and _encloses(other, row)]
    return _surest(row, around, all_near)


def _encloses(outer: Row, inner: Row) -> bool:
    if outer["conn_id"] == inner["conn_id"]:
        return False
    slack = 0 if outer["capture_id"] == inner["capture_id"] else _APART_NS
    if inner["at_ns"] < outer["at_ns"] - slack:
        return False
    end, inner_end = end_of(outer), end_of(inner)
    if end is None:
        return True
    # an abandoned request may end after the outer one
    return inner["at_ns"] <= end + slack and (inner_end is None or inner_end <= end + slack)


def _surest(row: Row, others: list[Row], all_near: bool) -> Hop | None:
    """Return the best match. In another recording, for example of a bridge's other bus, it must be the only candidate."""
    trace = _trace(row)
    others = [other for other in others if trace is None or _trace(other) in (None, trace)]
    ours = [other for other in others if other["capture_id"] == row["capture_id"]]
    marks = ((BY_TRACE, _trace, others), (BY_NAME, _name_and_body, ours), (BY_BODY, _body, others), (BY_SUBJECT, _name, ours))
    for known_by, mark, among in marks:
        alike = [other for other in among if mark(row) is not None and mark(other) == mark(row)]
        here = [other for other in alike if other in ours]
        if here or len(alike) == 1:
            return Hop(min(here or alike, key=lambda other: (_body(other) != _body(row), _apart(other, row))), known_by)
    return Hop(ours[0], BY_TIME) if all_near and len(ours) == 1 else None


_body: Final = itemgetter("digest")


def _apart(one: Row, other: Row) -> int:
    return abs(int(one["at_ns"]) - int(other["at_ns"]))


def _trace(row: Row) -> str | None:
    """Return the trace id. Each request in a trace has its own span."""
    found = re.fullmatch(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-.*", row["traceparent"] or "")
    return found and found[1]


def _name(row: Row) -> str | None:
    """Return the last word of a subject, which bridges usually preserve."""
    words = re.findall(r"\w+", unquote(row["subject"] or ""))
    return words[-1] if words else None


def _name_and_body(row: Row) -> tuple[str, str] | None:
    name, body = _name(row), _body(row)
    return None if name is None or body is None else (name, body)


Rows = list[Row]

SHOWN: Final = 4
_NEAR: Final = 60
"""Maximum nearby exchanges to consider per journey."""
_AROUND_NS: Final = 2_000_000_000
"""Maximum time between an exchange and the beginning of its hops."""
_CARRIED_NS: Final = 50_000_000
"""Maximum time between a frame in a tunnel and the frame that carries it."""
_CARRIERS: Final = 20
_COMMON: Final = frozenset(
    hashlib.md5(body, usedforsecurity=False).hexdigest() for body in (b"", b"null", b"true", b"false", b"{}", b"[]", b"0", b"1")
)
"""Digests of bodies that are too common to identify a sender."""

_COLUMNS: Final = (
    "capture_id conn_id direction protocol subject correlation_id request_seq response_seq request_time_ns latency_ns outcome "
    "code code_name peer at_ns"
).split()
_MARKS: Final = ("spell", "again")
_LISTED: Final = ", ".join((*_COLUMNS, *_MARKS))
_FRAME: Final = (
    "capture_id seq sub kind direction conn_id protocol peer tunnel nbytes time_ns correlation_id traceparent".split()
)
_FRAMES: Final = ", ".join(f"events.{name}" for name in _FRAME)

_CHOSEN: Final = f"""
    select {", ".join(f"exchanges.{name}" for name in (*_COLUMNS, *_MARKS))}, chosen.why from {{exchanges}} as exchanges
    join {{chosen}} as chosen on {" and ".join(f"exchanges.{name} = chosen.{name}" for name in TIES.split(", "))}
    order by chosen.place
"""
_ASKED: Final = f"select {_LISTED}, 'asked' as why from {{exchanges}} where view = 1 and {{where}} order by at_ns, {TIES}"

_MESSAGES: Final = f"""
    select {_FRAMES}, md5(events.data) as digest
    from {{events}} as events semi join {{wanted}} as wanted
    on events.capture_id = wanted.capture_id and events.seq = wanted.seq
    where events.kind in ('request', 'response', 'stream', 'end')
"""

_CARRYING: Final = f"""
    select wanted.place, {_FRAMES}, row_number() over (
        partition by wanted.place order by abs(events.time_ns - wanted.time_ns), events.capture_id, events.seq, events.sub
    ) as nth
    from {{events}} as events join {{wanted}} as wanted
    on events.direction = wanted.direction
        and events.time_ns between wanted.from_ns and wanted.to_ns
        and events.nbytes > wanted.nbytes
    where events.kind = 'item' qualify nth <= {_CARRIERS} order by wanted.place, nth
"""
_PLACE: Final = pa.schema([("capture_id", pa.string()), ("seq", pa.int64())])
_CARRIED: Final = pa.schema(
    [
        *((name, pa.int64()) for name in ("place", "from_ns", "to_ns")),
        *((name, EVENTS.field(name).type) for name in ("direction", "time_ns", "nbytes")),
    ]
)


_CHOSEN_NAMES: Final = ("outcome", "latency_ns", "request_time_ns", *TIES.split(", "))
_CHOICE: Final = pa.schema([("place", pa.int64()), ("why", pa.string()), *map(EXCHANGES.field, _CHOSEN_NAMES)])
_FOLLOWED: Final = 6
_BODY: Final = 300
_LAST: Final = f"""
    select events.capture_id, events.conn_id, seq, sub, kind, direction, subject, code_name, time_ns, nbytes,
        data[1:{_BODY + 1}] as data
    from {{events}} as events join {{wanted}} as wanted
    on events.capture_id = wanted.capture_id and events.conn_id = wanted.conn_id and time_ns between from_ns and to_ns
    where kind != 'heartbeat' and {USERS}
    qualify row_number() over (partition by events.capture_id, events.conn_id order by seq desc, sub desc) <= 20
    order by seq, sub
"""
_LINK: Final = pa.schema([*map(EVENTS.field, ("capture_id", "conn_id")), ("from_ns", pa.int64()), ("to_ns", pa.int64())])
_SHOWN: Final = ("capture_id", "conn_id", "protocol", "peer", "who", "closed", "n", "last_ns")
_BEFORE_NS: Final = 30_000_000_000
"""The last messages of a connection are searched in this time before its end."""


def follow_connections(engine: Engine, output: Output, sums: Sums, sessions: Rows) -> Rows:
    """Return the first connections of `sessions`, with their last messages."""
    known = {tuple(row[name] for name in _SHOWN): row for row in sums.now.followed}
    found = [{name: row[name] for name in _SHOWN} for row in sessions[:_FOLLOWED] if row["last_ns"] is not None]
    sums.now.followed = [known.get(tuple(row.values()), row) for row in found]
    if new := [row for row in sums.now.followed if "messages" not in row]:
        with on_driver(engine) as here:
            events = sums.near(here, output, "events", _joined((row["last_ns"], _BEFORE_NS) for row in new))
            given = pa.Table.from_pylist([row | _around(row["last_ns"], _BEFORE_NS) for row in new], _LINK)
            messages = [
                _with_body(one) for one in here.rows(here.sql(_LAST, events=events, wanted=here.hand(given))).to_pylist()
            ]
        for row in new:
            row["messages"] = [one for one in messages if all(one[name] == row[name] for name in ("capture_id", "conn_id"))]
    return sums.now.followed


def _with_body(message: Row) -> Row:
    data = message.pop("data")
    return message | {"body": data[:_BODY].decode(errors="replace") + "…" * (len(data) > _BODY) if data else None}


def told(engine: Engine, output: Output, sums: Sums) -> Rows:
    """Return the journeys of the most important exchanges, from records of about the same time."""
    chosen = [{name: row[name] for name in _CHOICE.names if name in row} for row in for_journeys(sums.shown_rows)]
    ahead = {0, *(sums.now.clocks or {}).values()}
    spans = _joined((row["request_time_ns"] + ns, 2 * _AROUND_NS) for row in chosen for ns in ahead | {-ns for ns in ahead})
    if sums.now.told[:1] != [chosen] or any(meets(span, spans) for span in sums.fresh):
        with on_driver(engine) as here:
            sums.now.told = [chosen, _told(here, output, sums, chosen, spans) if chosen else []]
    return sums.now.told[1]


def _told(engine: Engine, output: Output, sums: Sums, chosen: Rows, spans: Spans) -> Rows:
    near = sums.near(engine, output, "exchanges", spans)
    exchanges = by_name(engine, engine.sql("select *, 'new' as place from {near}", near=near), sums.now.called)
    with (
        told_apart(engine, exchanges, sums.now.clocks) as told,
        engine.kept(engine.sql(f"select {_LISTED} from {{told}}", told=told)) as views,
    ):
        events = partial(sums.near, engine, output, "events")
        return Journeys(engine, events, views, sums.stepped_ns).chosen(chosen)


def _joined(moments: Iterable[tuple[int, int]]) -> Spans:
    found: Spans = []
    for begin, end in sorted((max(at - by, -LAST_NS - 1), min(at + by, LAST_NS)) for at, by in moments):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((begin, end))
    return found


@attrs.frozen
class Journeys:
    _engine: Engine
    _events: Callable[[Spans], Any]
    _exchanges: Any
    _stepped_ns: int = SLACK_NS

    def asked(self, where: str, most: int) -> Rows:
        return self._found(f"{_ASKED.replace('{where}', where)} limit {most}", most)

    def chosen(self, rows: Sequence[Row]) -> Rows:
        given = pa.Table.from_pylist([{**row, "place": place} for place, row in enumerate(rows)], _CHOICE)
        return self._found(_CHOSEN, SHOWN, chosen=self._engine.hand(given))

    def _found(self, text: str, shown: int, **tables: Any) -> Rows:
        engine = self._engine
        chosen = engine.rows(engine.sql(text, exchanges=self._exchanges, **tables)).to_pylist()
        if not chosen:
            return []
        # All in one query would need a multiple of the memory.
        near = [engine.rows(engine.sql(_nearby(row), exchanges=self._exchanges)).to_pylist() for row in chosen]
        rows = [*chosen, *chain.from_iterable(near)]
        slack = self._stepped_ns + _AROUND_NS
        moments = ((row["request_time_ns"] + after, slack) for row in rows for after in {0, row["latency_ns"] or 0})
        events = self._events(_joined(moments))
        messages = self._messages(events, rows)
        for row in rows:
            asked = messages.get(_message_of(row, "request"))
            row["digest"] = asked["digest"] if asked is not None and asked["digest"] not in _COMMON else None
            row["traceparent"] = asked["traceparent"] if asked is not None else None
        found = [
            (row["why"], row, follow(row, some[:_NEAR], all_near=len(some) <= _NEAR))
            for row, some in zip(chosen, near, strict=True)
        ]
        ways = [_Way(why, row, hops, messages) for why, row, hops in _distinct(found, shown)]
        self._carry(events, ways)
        return [way.told() for way in ways]

    def _messages(self, events: Any, rows: Rows) -> dict[tuple[Any, ...], Row]:
        seqs = {(row["capture_id"], row[name]) for row in rows for name in ("request_seq", "response_seq")}
        wanted = [{"capture_id": capture, "seq": seq} for capture, seq in sorted(seqs, key=str) if seq is not None]
        given = self._engine.hand(pa.Table.from_pylist(wanted, _PLACE))
        found = self._engine.rows(self._engine.sql(_MESSAGES, events=events, wanted=given)).to_pylist()
        # Repeated attempts in one frame: the first counts.
        found.sort(key=lambda row: -row["sub"])
        kinds = {"stream": "request", "end": "response"}
        kind = {row["kind"]: kinds.get(row["kind"], row["kind"]) for row in found}
        return {(row["capture_id"], row["seq"], row["correlation_id"], kind[row["kind"]]): row for row in found}

    def _carry(self, events: Any, ways: Iterable[_Way]) -> None:
        inner = [frame for way in ways for frame in way.frames if frame["tunnel"]]
        if not inner:
            return
        wanted = [{**frame, "place": place, **_around(frame["time_ns"], _CARRIED_NS)} for place, frame in enumerate(inner)]
        given = self._engine.hand(pa.Table.from_pylist(wanted, _CARRIED))
        near = self._engine.rows(self._engine.sql(_CARRYING, events=events, wanted=given)).to_pylist()
        for place, frame in enumerate(inner):
            around = [row for row in near if row["place"] == place]
            for depth in range(len(frame["tunnel"])):
                outer = [row for row in around if row["tunnel"] == frame["tunnel"][:depth]]
                if outer:
                    frame["carriers"].append(min(outer, key=lambda row: abs(row["time_ns"] - frame["time_ns"])))


def _nearby(row: Row) -> str:
    """Return the SQL for the exchanges around another one. Exchanges with the same id come first, then the nearest."""
    begin, end = _around(row["at_ns"], _AROUND_NS).values()
    id, protocol = (_text(row[name]) for name in ("correlation_id", "protocol"))
    return f"""
        select {_LISTED} from {{exchanges}} where at_ns between {begin} and {end}
        order by coalesce(correlation_id = {id} and protocol = {protocol}, false) desc, abs(at_ns - {row["at_ns"]}), {TIES}
        limit {_NEAR + 1}
    """


def _around(ns: int, by: int) -> dict[str, int]:
    return {"from_ns": max(ns - by, -LAST_NS), "to_ns": min(ns + by, LAST_NS)}


def _message_of(row: Row, kind: str) -> tuple[Any, ...]:
    return row["capture_id"], row[f"{kind}_seq"], row["correlation_id"], kind


def _distinct(journeys: Iterable[tuple[str, Row, list[Hop]]], shown: int) -> list[tuple[str, Row, list[Hop]]]:
    kept, seen = list[tuple[str, Row, list[Hop]]](), set[tuple[Any, ...]]()
    for why, row, hops in journeys:
        if _key(row) not in seen and sum(one[0] == why for one in kept) < shown:
            kept.append((why, row, hops))
            seen |= {_key(hop.row) for hop in hops if hop.sure}
    return kept


class _Way:
    def __init__(self, why: str, row: Row, hops: list[Hop], messages: dict[tuple[Any, ...], Row]) -> None:
        self._why, self._row = why, row
        self._hops, self._may_be = [hop for hop in hops if hop.sure], [hop for hop in hops if not hop.sure]
        self._begin = min(hop.row["at_ns"] for hop in self._hops)
        self.frames: Rows = []
        """Frames of the hops, each with its hop's number and the frames that carried it (`carriers`)."""
        for number, hop in enumerate(self._hops):
            for kind, after in (("request", 0), ("response", hop.row["latency_ns"])):
                if (message := messages.get(_message_of(hop.row, kind))) is not None and after is not None:
                    at = hop.row["at_ns"] - self._begin + after
                    self.frames.append({**message, "at_ns": at, "hop": number, "carriers": []})

    def told(self) -> dict[str, Any]:
        names = ("protocol", "subject", "correlation_id", "code", "code_name", "outcome", "latency_ns", "request_time_ns")
        return {
            "why": self._why,
            **{name: self._row[name] for name in (*names, "peer", "conn_id", "capture_id", "request_seq")},
            "hops": [self._hop(number, hop) for number, hop in enumerate(self._hops)],
            "may_be": [self._hop(-1, hop) for hop in self._may_be],
            "frames": sorted(self._all_frames(), key=lambda frame: (frame["at_ns"], frame["hop"], frame["carries"])),
        }

    def _hop(self, number: int, hop: Hop) -> Row:
        names = "capture_id conn_id direction protocol subject peer latency_ns outcome code_name".split()
        tunnel = next((frame["tunnel"] for frame in self.frames if frame["hop"] == number), None)
        more = {"at_ns": hop.row["at_ns"] - self._begin, "known_by": hop.known_by, "tunnel": tunnel or []}
        return {**{name: hop.row[name] for name in names}, **more}

    def _all_frames(self) -> Iterable[Row]:
        for frame in self.frames:
            yield _shown(frame, frame, carries=False)
            for outer in frame["carriers"]:
                yield _shown(outer, frame, carries=True)


def _shown(frame: Row, inner: Row, *, carries: bool) -> Row:
    """Return a frame for the list. A carrier's time is relative to the carried frame."""
    names = "capture_id conn_id direction protocol peer kind nbytes seq".split()
    at = inner["at_ns"] + frame["time_ns"] - inner["time_ns"]
    return {**{name: frame[name] for name in names}, "at_ns": at, "hop": inner["hop"], "carries": carries}


def journeys(
    out: AnyPath,
    *,
    id: str | None = None,
    subject: str | None = None,
    start_ns: int | None = None,
    end_ns: int | None = None,
    most: int = 4,
) -> list[dict[str, Any]]:
    """Return journeys of exchanges, earliest first, with the exchanges that they caused and the frames that carried them.

    Args:
        out: The results folder.
        id: Include only exchanges with this id, which is the ``correlation_id`` in the tables.
        subject: Include only exchanges that match this subject or pattern, for example ``tank.*``.
        start_ns: Include only requests from this time on, in ns since 1970 (UTC).
        end_ns: Include only requests before this time.
        most: Maximum number of journeys.

    Returns:
        The journeys in the format of ``journeys`` in ``metrics.json``, where ``hops`` are certain and ``may_be`` are uncertain.

    Raises:
        CaptureError: If `out` is not a results folder.
        LocalProtocolError: If the subject is invalid.
        TypeError, ValueError: If another argument is invalid, or `end_ns` is not after `start_ns`.
    """
    ReadWindow(start_ns, end_ns).check()
    check_type(id, str, "id", "id='7'")
    check_count(most, "most", 0, LAST_NS)
    if subject is not None:
        check_pattern(subject, foreign=True)
    output, names, wanted = Output.of(out), Names(), ["at_ns is not null"]
    with DuckEngine() as engine:
        read = engine.read(output.storage, "exchanges", output.files("exchanges"), EXCHANGES)
        found = engine.sql("select *, 'new' as place from {read}", read=read)
        subjects = _values(engine, found, "subject")
        if id is not None:
            wanted.append(f"correlation_id = {_text(id)}")
        if subject is not None:
            some = [one for one in subjects if is_for(subject, one) or is_for(subject, names.of(one))]
            wanted.append(f"address in ({', '.join(['null', *map(_text, some)])})")
        wanted += [f"request_time_ns >= {start_ns}"] * (start_ns is not None)
        wanted += [f"request_time_ns < {end_ns}"] * (end_ns is not None)
        exchanges = by_name(engine, found, names.renamed(subjects))
        clocks = clocks_of(engine, exchanges) if len(_values(engine, found, "capture_id")) > 1 else None
        with told_apart(engine, exchanges, clocks) as views:
            events = partial(Sums.of(output, names).near, engine, output, "events")
            return Journeys(engine, events, views).asked(" and ".join(wanted), most)


def _values(engine: Engine, table: Any, column: str) -> list[str]:
    found = engine.sql(f"select distinct {column} from {{table}} where {column} is not null", table=table)
    return list(engine.rows(found)[column].to_pylist())


def _text(text: str | None) -> str:
    return "null" if text is None else f"decode(unhex('{text.encode().hex()}'))"
