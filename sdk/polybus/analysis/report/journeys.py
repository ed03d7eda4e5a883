"""Journeys: exchanges that matter, or that somebody asks for, each with its hops and the frames that carried them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any, Final

import pyarrow as pa

from polybus.capture.schema import EVENTS, EXCHANGES

from ..engine import Engine
from ..ranges import LAST_NS
from .hops import Hop, follow
from .views import TIES

Rows = list[dict[str, Any]]

SHOWN: Final = 4
"""Journeys of each kind."""
_CANDIDATES: Final = 8
"""Of each kind: some turn out to be hops of one that is shown already."""
_NEAR: Final = 60
"""Other exchanges that are looked at for each."""
_AROUND_NS: Final = 2_000_000_000
"""A hop begins within so much of the exchange that leads to it."""
_CARRIED_NS: Final = 50_000_000
"""Between a frame in a tunnel and the frame that carries it lies less."""
_CARRIERS: Final = 20
_COMMON: Final = frozenset(
    hashlib.md5(body, usedforsecurity=False).hexdigest() for body in (b"", b"null", b"true", b"false", b"{}", b"[]", b"0", b"1")
)
"""Digests of bodies that say nothing about who sent them."""

_COLUMNS: Final = (
    "capture_id conn_id direction protocol subject correlation_id request_seq response_seq request_time_ns latency_ns outcome "
    "code code_name peer at_ns"
).split()
_MARKS: Final = ("spell", "again")
_LISTED: Final = ", ".join((*_COLUMNS, *_MARKS))
_PLACED: Final = pa.schema(
    [
        *((name, pa.int64()) for name in ("story", "from_ns", "to_ns")),
        *((name, EXCHANGES.field(name).type if name in EXCHANGES.names else pa.int64()) for name in (*_COLUMNS, *_MARKS)),
    ]
)
_FRAME: Final = (
    "capture_id seq sub kind direction conn_id protocol peer tunnel nbytes time_ns correlation_id traceparent".split()
)
_FRAMES: Final = ", ".join(f"events.{name}" for name in _FRAME)

CHOSEN: Final = f"""
    select {_LISTED}, why from (
        select *, row_number() over (partition by why order by nth, worth, {TIES}) as place from (
            select *, row_number() over (partition by why, protocol, subject, code order by worth, {TIES}) as nth from (
                select *, case when why = 'slowest' then -latency_ns else request_time_ns end as worth from (
                    select *, case when outcome = 'error' then 'failed' when latency_ns is null then 'unanswered'
                        else 'slowest' end as why
                    from {{exchanges}} where view = 1 and outcome not in ('cancelled', 'unseen', 'open-at-end')
                ) as named
            ) as ranked
        ) as numbered
    ) as placed
    where place <= {_CANDIDATES} order by why, place
"""
"""Of each kind the first of each subject and code, then the second..."""
_ASKED: Final = f"select {_LISTED}, 'asked' as why from {{exchanges}} where view = 1 and {{where}} order by at_ns, {TIES}"

_NEARBY: Final = f"""
    select story, {_LISTED} from (
        select chosen.story, {", ".join(f"other.{name}" for name in (*_COLUMNS, *_MARKS))}, row_number() over (
            partition by chosen.story
            order by
                case when other.correlation_id = chosen.correlation_id and other.protocol = chosen.protocol then 0 else 1 end,
                abs(other.at_ns - chosen.at_ns), {", ".join(f"other.{name}" for name in TIES.split(", "))}
        ) as nth
        from {{exchanges}} as other join {{chosen}} as chosen
        on other.at_ns between chosen.from_ns and chosen.to_ns
    ) as numbered
    where nth <= {_NEAR + 1} order by story, nth
"""

_MESSAGES: Final = f"""
    select {_FRAMES}, md5(events.data) as digest
    from {{events}} as events semi join {{wanted}} as wanted
    on events.capture_id = wanted.capture_id and events.seq = wanted.seq
    where events.kind in ('request', 'response', 'stream', 'end')
"""

_CARRYING: Final = f"""
    select place, {", ".join(_FRAME)} from (
        select wanted.place, {_FRAMES}, row_number() over (
            partition by wanted.place order by abs(events.time_ns - wanted.time_ns), events.capture_id, events.seq, events.sub
        ) as nth
        from {{events}} as events join {{wanted}} as wanted
        on events.direction = wanted.direction
            and events.time_ns between wanted.from_ns and wanted.to_ns
            and events.nbytes > wanted.nbytes
        where events.kind = 'item'
    ) as numbered
    where nth <= {_CARRIERS} order by place, nth
"""
_PLACE: Final = pa.schema([("capture_id", pa.string()), ("seq", pa.int64())])
_CARRIED: Final = pa.schema(
    [
        *((name, pa.int64()) for name in ("place", "from_ns", "to_ns")),
        *((name, EVENTS.field(name).type) for name in ("direction", "time_ns", "nbytes")),
    ]
)


class Journeys:
    """The journeys of some tables, found by an engine."""

    def __init__(self, engine: Engine, events: Any, views: Any) -> None:
        self._engine = engine
        self._events = events
        self._exchanges = views

    def asked(self, where: str, most: int) -> Rows:
        """Find those of the first exchanges for which a condition holds."""
        return self.found(f"{_ASKED.replace('{where}', where)} limit {most}", most)

    def found(self, text: str = CHOSEN, shown: int = SHOWN) -> Rows:
        """The journeys as the metrics have them: the exchange asked about, its hops, and the frames of all of them."""
        engine = self._engine
        chosen = engine.rows(engine.sql(text, exchanges=self._exchanges)).to_pylist()
        if not chosen:
            return []
        numbered = pa.Table.from_pylist(
            [{**row, "story": place, **_around(row["at_ns"], _AROUND_NS)} for place, row in enumerate(chosen)],
            _PLACED,
        )
        near = engine.rows(engine.sql(_NEARBY, exchanges=self._exchanges, chosen=engine.hand(numbered))).to_pylist()
        messages = self._messages([*chosen, *near])
        for row in (*chosen, *near):
            asked = messages.get(_asked(row))
            row["digest"] = asked["digest"] if asked is not None and asked["digest"] not in _COMMON else None
            row["traceparent"] = asked["traceparent"] if asked is not None else None
        journeys = _distinct(
            (
                (row["why"], row, _followed(row, [other for other in near if other["story"] == place]))
                for place, row in enumerate(chosen)
            ),
            shown,
        )
        ways = [_Way(why, row, hops, messages) for why, row, hops in journeys]
        self._carry(ways)
        return [way.told() for way in ways]

    def _messages(self, rows: Rows) -> dict[tuple[Any, ...], dict[str, Any]]:
        """The requests and answers of exchanges, by `_asked` and `_answered`."""
        seqs = {(row["capture_id"], row[name]) for row in rows for name in ("request_seq", "response_seq")}
        wanted = [{"capture_id": capture, "seq": seq} for capture, seq in sorted(seqs, key=str) if seq is not None]
        given = self._engine.hand(pa.Table.from_pylist(wanted, _PLACE))
        found = self._engine.rows(self._engine.sql(_MESSAGES, events=self._events, wanted=given)).to_pylist()
        # An attempt more in one frame is none that anybody needs twice: the first of a frame counts.
        found.sort(key=lambda row: -row["sub"])
        kinds = {"stream": "request", "end": "response"}
        return {
            (row["capture_id"], row["seq"], row["correlation_id"], kinds.get(row["kind"], row["kind"])): row for row in found
        }

    def _carry(self, ways: Iterable[_Way]) -> None:
        """Find the frames that carried those in tunnels."""
        inner = [frame for way in ways for frame in way.frames if frame["tunnel"]]
        if not inner:
            return
        wanted = pa.Table.from_pylist(
            [{**frame, "place": place, **_around(frame["time_ns"], _CARRIED_NS)} for place, frame in enumerate(inner)], _CARRIED
        )
        given = self._engine.hand(wanted)
        near = self._engine.rows(self._engine.sql(_CARRYING, events=self._events, wanted=given)).to_pylist()
        for place, frame in enumerate(inner):
            around = [row for row in near if row["place"] == place]
            for depth in range(len(frame["tunnel"])):
                outer = [row for row in around if row["tunnel"] == frame["tunnel"][:depth]]
                if outer:
                    frame["carriers"].append(min(outer, key=lambda row: abs(row["time_ns"] - frame["time_ns"])))


def _around(ns: int, by: int) -> dict[str, int]:
    """A time and what is near it, as far as numbers go."""
    return {"from_ns": max(ns - by, -LAST_NS), "to_ns": min(ns + by, LAST_NS)}


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["capture_id"], row["conn_id"], row["request_seq"], row["correlation_id"]


def _asked(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["capture_id"], row["request_seq"], row["correlation_id"], "request"


def _answered(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["capture_id"], row["response_seq"], row["correlation_id"], "response"


def _followed(row: dict[str, Any], near: Rows) -> list[Hop]:
    return follow(row, near[:_NEAR], all_near=len(near) <= _NEAR)


def _distinct(
    journeys: Iterable[tuple[str, dict[str, Any], list[Hop]]], shown: int
) -> list[tuple[str, dict[str, Any], list[Hop]]]:
    """So many of each kind, and none of an exchange that is on the way of another one."""
    kept: list[tuple[str, dict[str, Any], list[Hop]]] = []
    seen = set[tuple[Any, ...]]()
    for why, row, hops in journeys:
        if _key(row) not in seen and sum(one[0] == why for one in kept) < shown:
            kept.append((why, row, hops))
            seen |= {_key(hop.row) for hop in hops if hop.sure}
    return kept


class _Way:
    """The way of an exchange while it is put together."""

    def __init__(self, why: str, row: dict[str, Any], hops: list[Hop], messages: dict[tuple[Any, ...], dict[str, Any]]) -> None:
        self._why, self._row = why, row
        self._hops, self._may_be = [hop for hop in hops if hop.sure], [hop for hop in hops if not hop.sure]
        self._begin = min(hop.row["at_ns"] for hop in self._hops)
        self.frames: Rows = []
        """Frames of the hops, each with the hop's number and `carriers`, those that carried it."""
        for number, hop in enumerate(self._hops):
            for key, after in ((_asked(hop.row), 0), (_answered(hop.row), hop.row["latency_ns"])):
                if (message := messages.get(key)) is not None and after is not None:
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

    def _hop(self, number: int, hop: Hop) -> dict[str, Any]:
        names = "capture_id conn_id direction protocol subject peer latency_ns outcome code_name".split()
        tunnel = next((frame["tunnel"] for frame in self.frames if frame["hop"] == number), None)
        return {
            **{name: hop.row[name] for name in names},
            "at_ns": hop.row["at_ns"] - self._begin,
            "known_by": hop.known_by,
            "tunnel": tunnel or [],
        }

    def _all_frames(self) -> Iterable[dict[str, Any]]:
        for frame in self.frames:
            yield _shown(frame, frame, carries=False)
            for outer in frame["carriers"]:
                yield _shown(outer, frame, carries=True)


def _shown(frame: dict[str, Any], inner: dict[str, Any], *, carries: bool) -> dict[str, Any]:
    """A frame as it is listed: at its time beside that of the one that it carries."""
    names = "capture_id conn_id direction protocol peer kind nbytes seq".split()
    at = inner["at_ns"] + frame["time_ns"] - inner["time_ns"]
    return {**{name: frame[name] for name in names}, "at_ns": at, "hop": inner["hop"], "carries": carries}
