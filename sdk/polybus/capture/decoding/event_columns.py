"""The columns of the events of a batch. Each is made when it is asked for, so that a few cost less than all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa

from ..schema import EVENTS, FRAMES
from ..store.compute import dates_of, pc
from .event_mapping import FIELDS
from .nats_events import StoredFacts

_TYPES: Final = dict.fromkeys(FIELDS, pa.string()) | {"data": pa.binary(), "code": pa.int32(), "ttl_ms": pa.int64()}
_STORED: Final = {"stored": pa.string(), "store": pa.string(), "store_seq": pa.int64(), "durable": pa.string()} | {
    "attempt": pa.int32(),
    "reason": pa.string(),
}
"""The columns that come from `StoredFacts`, which few messages have."""
_FIELDS: Final = frozenset(FIELDS) - {"id", "source", "stored"}
"""The columns that come from the message alone."""
_DECODED: Final = frozenset(("protocol", "frame", "options", "flags"))
"""The columns of frames without which nothing is decoded."""
_FROM: Final[Mapping[str, Sequence[str]]] = {
    "id": ("capture_id", "seq"),
    "source": ("capture_id", "direction", "peer"),
    **dict.fromkeys(("time", "time_ns", "expires_at", "date"), ("ts_ns",)),
    "deadline_ns": ("deadlines_ns",),
}
"""Sources of columns of events, beside the decoded message and beside columns of the same name."""
_STAMP: Final = pa.timestamp("us", tz="UTC")
_LAST_US: Final = 253_402_300_799_999_999
"""The end of the year 9999, in microseconds: as far as time stamps are read everywhere."""


def frame_columns(names: Iterable[str]) -> list[str]:
    """The columns of frames that some columns of events are made of, in the order of `schema.FRAMES`."""
    needed = _DECODED.union(*(_FROM.get(name, (name,)) for name in names))
    return [name for name in FRAMES.names if name in needed]


class EventColumns:
    """Makes the columns of `schema.EVENTS` of messages: of their rows, and their numbers in these.

    `fields` are their `EventFields`, one after the other: what stands so is taken apart ten times faster than a list of lists.
    """

    def __init__(self, batch: pa.RecordBatch, rows: list[int], subs: list[int], fields: list[Any]) -> None:
        self._batch = batch
        self._message_rows = rows
        self._subs = subs
        self._fields = fields
        self._rows = None if rows == list(range(batch.num_rows)) else pa.array(rows, pa.int64())
        self._made: dict[str, pa.Array] = {}
        self._facts: Sequence[StoredFacts | None] | None = None
        self._is_stored = False
        self._makers: dict[str, Callable[[], pa.Array]] = {
            "id": self._id,
            "source": self._source,
            "type": lambda: pc.binary_join_element_wise(self.column("protocol"), self.column("kind"), "."),
            "time": lambda: self._time().cast(_STAMP),
            "time_ns": lambda: self.column("ts_ns"),
            "date": lambda: dates_of(self.column("ts_ns")),
            "specversion": lambda: pa.repeat(pa.scalar("1.0"), len(rows)),
            "expires_at": lambda: _ends(self._time(), self.column("ttl_ms")).cast(_STAMP),
            "sub": lambda: pa.array(self._subs, pa.int32()),
            "nbytes": self._nbytes,
            "deadline_ns": self._deadlines,
            **{name: partial(self._fact, name) for name in _STORED},
        }

    def table(self, names: Sequence[str] | None) -> pa.RecordBatch:
        """Some of the columns, or all.

        Raises:
            KeyError: There is no such column.
        """
        schema = EVENTS if names is None else pa.schema([EVENTS.field(name) for name in names], EVENTS.metadata)
        return pa.RecordBatch.from_arrays([self.column(name) for name in schema.names], schema=schema)

    def column(self, name: str) -> pa.Array:
        """One column, also one of the frame that no event has."""
        if name not in self._made:
            if name in _FIELDS:
                self._made[name] = self._field(name)
            elif name in self._makers:
                self._made[name] = self._makers[name]()
            else:
                column = self._batch.column(name)
                self._made[name] = column if self._rows is None else column.take(self._rows)
        return self._made[name]

    def _field(self, name: str) -> pa.Array:
        return pa.array(self._values(name), _TYPES[name])

    def _values(self, name: str) -> list[Any]:
        return self._fields[FIELDS.index(name) :: len(FIELDS)]

    def _fact(self, name: str) -> pa.Array:
        """A column about what is stored."""
        if self._facts is None:
            self._facts = self._values("stored")
            self._is_stored = any(self._facts)
        if not self._is_stored:
            return pa.nulls(len(self._facts), _STORED[name])
        return pa.array([None if facts is None else getattr(facts, name) for facts in self._facts], _STORED[name])

    def _time(self) -> pa.Array:
        return pc.divide(self.column("ts_ns"), 1000)

    def _id(self) -> pa.Array:
        given = self._field("id")
        if not given.null_count:
            return given
        seq, sub = self.column("seq").cast(pa.string()), self.column("sub").cast(pa.string())
        return pc.coalesce(given, pc.binary_join_element_wise(self.column("capture_id"), seq, sub, "/"))

    def _source(self) -> pa.Array:
        given = self._field("source")
        if not given.null_count:
            return given
        return pc.coalesce(
            given, pc.if_else(pc.equal(self.column("direction"), 1), self.column("peer"), self.column("capture_id"))
        )

    def _nbytes(self) -> pa.Array:
        sizes = pc.fill_null(pc.binary_length(self._batch.column("frame")), 0)
        sizes = sizes if self._rows is None else sizes.take(self._rows)
        return pc.if_else(pc.equal(self.column("sub"), 0), sizes, 0).cast(pa.int32())

    def _deadlines(self) -> pa.Array:
        """The deadlines of a frame belong to its requests, in their order."""
        given, count = self._batch.column("deadlines_ns"), len(self._message_rows)
        if given.null_count == len(given) or not len(given.flatten()):
            return pa.nulls(count, pa.int64())
        asking = np.flatnonzero(pc.equal(self.column("kind"), "request").to_numpy(zero_copy_only=False))
        rows, ends = np.asarray(self._message_rows, np.int64)[asking], given.offsets.to_numpy()
        nth = np.arange(len(rows)) - np.searchsorted(rows, rows)  # among the requests of its row
        places = np.full(count, -1)
        places[asking] = np.where(ends[rows] + nth < ends[rows + 1], ends[rows] + nth, -1)
        return given.values.take(pa.array(places, mask=places < 0))


def _ends(time: pa.Array, ttl: pa.Array) -> pa.Array:
    """The ends of times to live, in microseconds."""
    longest = pc.divide(pc.subtract(_LAST_US, time), 1000)
    return pc.add(time, pc.multiply(pc.min_element_wise(ttl, longest, skip_nulls=False), 1000))
