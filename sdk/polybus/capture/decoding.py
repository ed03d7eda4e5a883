"""Frames to events: an Arrow batch in, Arrow batches out. No Spark here; Spark uses this.

It stands on the codecs that the bus uses. A codec has no role and no state, so frames of both directions are read, from the
middle of a connection on, each by itself.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from attrs import frozen

from ..body import JSON
from ..errors import RemoteProtocolError
from ..limits import Limits
from ..message import Message
from ..plugins import Codec
from ..urls import find_protocol
from .compute import pc
from .readings import Reading, Row, reading_for
from .reasons import reason_of
from .schema import EVENTS, FLAG_GAP_BEFORE, QUARANTINE
from .vectors import Part, read_csb, read_ubre

__all__ = ["Decoded", "decode"]

_LIMITS: Final = Limits(message=1 << 30)
"""What has passed a link was within its limits; only the depth protects the decoder itself."""
_MANY: Final = 16
"""Rows alike, from which on it is worth while to read them together."""
_KINDS_OF_ROWS: Final = {"data": pa.binary(), "code": pa.int32(), "ttl_ms": pa.int64()}
_MARK: Final = "link"
"""The member of the options by which a row without a frame says what became of its connection."""


class Decoded(NamedTuple):
    """What a batch of frames says.

    ``frames`` is the number of frames that went in: those with at least one event, plus the rows of the quarantine, plus
    ``empty`` ones. Rows that only mark a gap are no frames; those that mark the begin or end of a connection count as frames,
    and are events.
    """

    events: pa.RecordBatch
    """In the columns of `schema.EVENTS`, by (seq, sub)."""
    quarantine: pa.RecordBatch
    """In the columns of `schema.QUARANTINE`."""
    empty: int
    """Frames that say nothing, by the rules of their protocol."""
    frames: int
    refused: int
    """Messages that could not be read, of frames that hold others that could."""


@frozen(eq=False)
class Wire:
    """How the frames of some connections are read."""

    decode: Callable[[bytes], Sequence[Message | RemoteProtocolError]]
    reading: Reading
    protocol: str
    options: str
    codec: Codec | None = None
    many: Callable[[pa.Array, Limits], Part | None] | None = None
    """Reads the usual ones among many frames at once."""


def decode(batch: pa.RecordBatch, limits: Limits = _LIMITS) -> Decoded:
    """The events and the quarantine of a batch of `schema.FRAMES` rows.

    Args:
        batch: Rows of a capture, in any cut and any order.
        limits: For the codecs.

    Raises:
        KeyError: A column is missing.
    """
    work = _Work(batch)
    gaps = 0
    wires, which = _wires(batch, limits)
    rest = work.read_many(wires, which, limits)
    rows = batch if len(rest) == batch.num_rows else batch.take(pa.array(rest))
    frames, flags = rows.column("frame").to_pylist(), rows.column("flags").to_pylist()
    for row, frame, flag, number in zip(rest.tolist(), frames, flags, which[rest].tolist(), strict=True):
        if frame is not None:
            work.read(row, frame, wires[number], flag)
        elif flag & FLAG_GAP_BEFORE:
            gaps += 1
        else:
            work.mark(row, wires[number])
    return Decoded(work.events(), work.quarantine(), work.empty, batch.num_rows - gaps, work.refused)


def _wires(batch: pa.RecordBatch, limits: Limits) -> tuple[list[Wire], Any]:
    """How frames are read, and which of these each row is (`numpy.ndarray`)."""
    protocols, options = (batch.column(name).dictionary_encode("encode") for name in ("protocol", "options"))
    codes = protocols.indices.to_numpy().astype(np.int64) * len(options.dictionary) + options.indices.to_numpy()
    known, which = np.unique(codes, return_inverse=True)
    names, texts = protocols.dictionary.to_pylist(), options.dictionary.to_pylist()
    pairs = [divmod(int(code), len(texts)) for code in known]
    return [wire_of(names[name] or "", texts[text] or "", limits) for name, text in pairs], which


@lru_cache(maxsize=256)
def wire_of(protocol: str, options: str, limits: Limits = _LIMITS) -> Wire:
    """What reads the frames of a protocol with the options that a row has; where it has none, what reads the most."""

    def unknown(frame: bytes) -> Sequence[Message]:
        raise RemoteProtocolError(problem, reason="unknown_protocol")

    names: dict[int, str] = {}
    problem = ""
    codec: Codec | None = None
    try:
        given = json.loads(options) if options else None
        if given is not None and not isinstance(given, dict):
            raise ValueError(f"the options are no object: {options:.80}")
        chosen = dict(given or {})
        chosen.pop(_MARK, None)
        actions = chosen.pop("actions", None)
        adapter: Any = find_protocol(protocol, {name: str(value) for name, value in chosen.items()})
        if given is None:
            adapter = find_protocol(protocol, dict(getattr(adapter, "inspect_options", {})))
        if actions:
            from attrs import evolve

            adapter = evolve(adapter, actions=actions)
            names = {number: name for name, number in adapter.actions}
        codec = adapter.codec(limits)
    except (ValueError, TypeError, RecursionError) as error:
        problem = str(error) or type(error).__name__
    reads = unknown if codec is None else codec.decode
    return Wire(reads, reading_for(protocol, names), protocol, options, codec, _many(protocol, codec, names))


def _many(protocol: str, codec: Any, names: Mapping[int, str]) -> Callable[[pa.Array, Limits], Part | None] | None:
    if codec is None:
        return None
    if protocol == "csb":
        return lambda frames, limits: read_csb(frames, names, codec.wrapped, limits)
    if protocol == "ubre" and codec.writes == "binary" and codec.formats[0] is JSON:
        return read_ubre
    return None


class _Work:
    """The tables while they are made."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.batch = batch
        self.empty = 0
        self.refused = 0
        self._rows: list[int] = []
        self._subs: list[int] = []
        self._made: list[Sequence[Any]] = []
        self._bad: list[tuple[int, str, str, int | None]] = []
        self._deadlines = batch.column("deadlines_ns")
        self._parts: list[Part] = []

    def read_many(self, wires: Sequence[Wire], which: Any, limits: Limits) -> Any:
        """What can be read many frames at a time. Gives the rows that are left."""
        left = np.ones(len(which), bool)
        for number, wire in enumerate(wires):
            if wire.many is None:
                continue
            places = np.flatnonzero(which == number)
            frames = self.batch.column("frame").take(pa.array(places)) if len(wires) > 1 else self.batch.column("frame")
            if frames.null_count:
                there = pc.is_valid(frames)
                frames, places = frames.filter(there), places[there.to_numpy(zero_copy_only=False)]
            if len(frames) >= _MANY and (part := wire.many(frames, limits)) is not None:
                self._parts.append(Part(places[part.rows], part.columns))
                left[places[part.rows]] = False
        return np.flatnonzero(left)

    def read(self, row: int, frame: bytes, wire: Wire, flags: int) -> None:
        """One frame."""
        try:
            messages = wire.decode(frame)
        except RemoteProtocolError as error:
            self._refuse(row, error, flags)
            return
        sub = 0
        wrong: RemoteProtocolError | None = None
        for message in messages:
            if isinstance(message, RemoteProtocolError):
                wrong = wrong or message
                self.refused += 1
                continue
            self._rows.append(row)
            self._subs.append(sub)
            self._made.append(wire.reading(message))
            sub += 1
        if not sub:
            if wrong is None:
                self.empty += 1
            else:
                self.refused -= sum(isinstance(message, RemoteProtocolError) for message in messages)
                self._refuse(row, wrong, flags)

    def mark(self, row: int, wire: Wire) -> None:
        """A row that says that a connection has begun or ended."""
        try:
            said = json.loads(wire.options)[_MARK]
            kind = "open" if said["state"] == "open" else "close"
            data = None if kind == "open" else json.dumps({k: said[k] for k in ("code", "reason") if k in said}).encode()
        except (ValueError, KeyError, TypeError, RecursionError):
            self._bad.append((row, "malformed", "a row without a frame, that says neither of a gap nor of a connection", None))
            return
        name = str(said.get("code")) if kind == "close" else None
        content = None if data is None else "application/json"
        self._rows.append(row)
        self._subs.append(0)
        self._made.append(Row(kind, None, None, None, content, None, data, None, None, name, None, None, None, ""))

    def _refuse(self, row: int, error: RemoteProtocolError, flags: int) -> None:
        reason = "unknown_protocol" if error.reason == "unknown_protocol" else reason_of(error, flags)
        self._bad.append((row, reason, str(error), error.offset))

    # -- tables ----------------------------------------------------------------------------------------------------------

    def events(self) -> pa.RecordBatch:
        """The events, in the order of the rows."""
        place, sub, made = self._made_columns()
        rows, subs = pa.array(place, pa.int64()), pa.array(sub, pa.int32())
        frame = self.batch.take(rows)

        def own(name: str, kind: pa.DataType) -> pa.Array:
            return pa.array(made[name], kind) if isinstance(made[name], tuple) else made[name]

        text, whole = pa.string(), pa.int64()
        capture, seq, ts = frame.column("capture_id"), frame.column("seq"), frame.column("ts_ns")
        kind, ttl = own("kind", text), own("ttl_ms", whole)
        time = pc.divide(ts, 1000)
        stamp = pa.timestamp("us", tz="UTC")
        number = pc.binary_join_element_wise(capture, seq.cast(text), subs.cast(text), "/")
        sender = pc.if_else(pc.equal(frame.column("direction"), 1), frame.column("peer"), capture)
        size = pc.if_else(pc.equal(subs, 0), pc.fill_null(pc.binary_length(frame.column("frame")), 0), 0)
        columns: dict[str, Any] = {
            "id": pc.coalesce(own("id", text), number),
            "source": pc.coalesce(own("source", text), sender),
            "type": pc.binary_join_element_wise(frame.column("protocol"), kind, "."),
            "subject": own("subject", text),
            "time": time.cast(stamp),
            "time_ns": ts,
            "specversion": pa.repeat(pa.scalar("1.0"), len(rows)),
            "datacontenttype": own("content", text),
            "dataschema": own("schema", text),
            "data": own("data", pa.binary()),
            "kind": kind,
            "correlation_id": own("correlation", text),
            "code": own("code", pa.int32()),
            "code_name": own("code_name", text),
            "ttl_ms": ttl,
            "expires_at": _ends(time, ttl).cast(stamp),
            "priority": own("priority", text),
            "reply_to": own("reply_to", text),
            "sub": subs,
            "nbytes": size.cast(pa.int32()),
            "deadline_ns": self._deadlines_of(place, kind),
            "client": own("client", text),
        }
        return pa.RecordBatch.from_arrays(
            [columns[field.name] if field.name in columns else frame.column(field.name) for field in EVENTS], schema=EVENTS
        )

    def _made_columns(self) -> tuple[Any, Any, dict[str, Any]]:
        """Rows, subs, and what is said, in the order of the rows."""
        found = zip(*self._made, strict=True) if self._made else [()] * len(Row._fields)
        made: dict[str, Any] = dict(zip(Row._fields, found, strict=True))
        if not self._parts:
            return self._rows, self._subs, made
        rows = np.concatenate([np.asarray(self._rows, np.int64), *(part.rows for part in self._parts)])
        subs = np.zeros(len(rows), np.int32)
        subs[: len(self._subs)] = self._subs
        order = np.lexsort((subs, rows))
        whole = {
            name: pa.concat_arrays(
                [pa.array(made[name], _KINDS_OF_ROWS.get(name, pa.string())), *(part.columns[name] for part in self._parts)]
            ).take(pa.array(order))
            for name in Row._fields
        }
        return rows[order], subs[order], whole

    def _deadlines_of(self, rows: Any, kind: pa.Array) -> pa.Array:
        """The deadlines of a frame belong to its requests, in their order."""
        given = self._deadlines
        if given.null_count == len(given) or not len(given.flatten()):
            return pa.nulls(len(kind), pa.int64())
        left = {row: iter(deadlines) for row, deadlines in enumerate(given.to_pylist()) if deadlines}
        found = [
            next(left[row], None) if row in left and one == "request" else None
            for row, one in zip(list(rows), kind.to_pylist(), strict=True)
        ]
        return pa.array(found, pa.int64())

    def quarantine(self) -> pa.RecordBatch:
        """The frames that could not be read."""
        rows, reasons, details, offsets = zip(*self._bad, strict=True) if self._bad else ((), (), (), ())
        frame = self.batch.take(pa.array(rows, pa.int64()))
        columns = {
            "reason": pa.array(reasons, pa.string()),
            "detail": pa.array(details, pa.string()),
            "offset": pa.array(offsets, pa.int32()),
            "raw": frame.column("frame"),
        }
        return pa.RecordBatch.from_arrays(
            [columns[field.name] if field.name in columns else frame.column(field.name) for field in QUARANTINE],
            schema=QUARANTINE,
        )


_LAST_US: Final = 253_402_300_799_999_999
"""The end of the year 9999, in microseconds: as far as time stamps are read everywhere."""


def _ends(time: pa.Array, ttl: pa.Array) -> pa.Array:
    """When what has a time to live is over, in microseconds."""
    longest = pc.divide(pc.subtract(_LAST_US, time), 1000)
    return pc.add(time, pc.multiply(pc.min_element_wise(ttl, longest, skip_nulls=False), 1000))
