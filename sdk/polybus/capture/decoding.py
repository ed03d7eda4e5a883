"""Decodes frames to events, one by one and in both directions, with the bus's codecs, which have neither role nor state."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
from attrs import evolve, frozen

from ..errors import EncodeError, RemoteProtocolError
from ..limits import Limits
from ..message import Message
from ..plugins import Codec
from ..plugins.registry import find_protocol, find_reader
from .protocols import EventMapper, headers_only, mapper_for
from .protocols.shared import FIELDS, EventFields, StoredFacts
from .schema import EVENTS, FLAG_GAP_BEFORE, FLAG_REDACTED, FLAG_TRUNCATED, FRAMES, QUARANTINE, QUARANTINE_REASONS
from .store.compute import dates_of, pc

ROWS_AT_ONCE: Final = 4096
"""Rows to decode together. Eight times as many would not fit into CPU caches; an eighth would take 25 % longer."""
BYTES_AT_ONCE: Final = 16 << 20
_LIMITS: Final = Limits(message=1 << 30)
"""Limits for the codecs. Frames were within the limits of their link, so only the depth limit is needed."""
MARK: Final = "link"
"""Member in the options of a row that has no frame and marks the beginning or end of a connection."""


class Decoded(NamedTuple):
    """The events of a batch of frames.

    ``frames`` is the number of input rows: frames with events, rows of the quarantine, and ``empty`` frames. It includes rows
    that mark the beginning or end of a connection, which are also events, but not gap rows.
    """

    events: pa.RecordBatch
    """The events, with the columns of `schema.EVENTS`, ordered by (seq, sub)."""
    quarantine: pa.RecordBatch
    """The unreadable frames, with the columns of `schema.QUARANTINE`. If the batch lacks a column, it is null."""
    empty: int
    """Number of frames that contain no message according to their protocol."""
    frames: int
    refused: int
    """Number of unreadable messages in frames that also contain readable ones."""


def decode(batch: pa.RecordBatch, *, columns: Sequence[str] | None = None) -> Decoded:
    """Decode a batch of `schema.FRAMES` rows.

    Args:
        batch: Rows of a capture, in any order, with at least the columns of `frame_columns`.
        columns: Columns of the events to create, at least one. By default all are created.

    Raises:
        KeyError: If a column is missing or unknown.
    """
    work = _BatchDecoder(batch)
    gaps = 0
    decoders, which = _decoders(batch)
    given = pc.fill_null(batch.column("flags"), 0)
    frames, flags = batch.column("frame").to_pylist(), given.to_pylist()
    for row in pc.indices_nonzero(pc.bit_wise_and(given, FLAG_TRUNCATED)).to_pylist():
        # The recorder has cut off a body or a part of it. The frame still contains the message.
        whole = headers_only(batch.column("protocol")[row].as_py(), decoders[which[row]].options, frames[row] or b"", cut=True)
        frames[row] = whole or frames[row]
    for row, (frame, flag, number) in enumerate(zip(frames, flags, which, strict=True)):
        if frame is not None:
            work.read(row, frame, decoders[number], flag)
        elif flag & FLAG_GAP_BEFORE:
            gaps += 1
        else:
            work.read_mark(row, decoders[number])
    return Decoded(work.events(columns), work.quarantine(), work.empty, batch.num_rows - gaps, work.refused)


def decoded(batches: Iterable[pa.RecordBatch], columns: Sequence[str] | None = None) -> Iterator[Decoded]:
    """Join batches of frames into larger batches and decode them to all or some event columns."""
    for rows in joined(batches, ROWS_AT_ONCE, BYTES_AT_ONCE):
        # Decoding creates no cycles, but hundreds of thousands of objects that the collector would search.
        enabled = gc.isenabled()
        gc.disable()
        try:
            made = decode(rows, columns=columns)
        finally:
            if enabled:
                gc.enable()
        yield made


def joined(batches: Iterable[pa.RecordBatch], most_rows: int, most_bytes: int) -> Iterator[pa.RecordBatch]:
    """Join batches up to a number of rows or bytes, plus one batch. Empty batches are left out."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        waiting.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= most_rows or size >= most_bytes:
            yield pa.concat_batches(waiting)
            waiting.clear()
            rows = size = 0
    if waiting:
        yield pa.concat_batches(waiting)


@frozen(eq=False)
class FrameDecoder:
    decode: Callable[[bytes], Sequence[Message | RemoteProtocolError]]
    mapper: EventMapper
    options: str


@lru_cache(maxsize=256)
def decoder_for(protocol: str, options: str) -> FrameDecoder:
    """Return the decoder for a row's protocol and options. Without options, it accepts as many frames as possible."""
    names: dict[int, str] = {}
    try:
        given = json.loads(options) if options else None
        if given is not None and not isinstance(given, dict):
            raise ValueError(f"the options are not an object: {options:.80}")
        chosen = dict(given or {})
        chosen.pop(MARK, None)
        actions = chosen.pop("actions", None)
        find = find_reader if given is None else find_protocol
        adapter: Any = find(protocol, {name: str(value) for name, value in chosen.items()})
        if actions:
            adapter = evolve(adapter, actions=actions)
            names = {number: name for name, number in adapter.actions}
        codec: Codec = adapter.codec(_LIMITS)
    except (ValueError, TypeError, RecursionError) as error:
        problem = str(error) or type(error).__name__

        def unknown(frame: bytes) -> Sequence[Message]:
            raise RemoteProtocolError(problem, reason="unknown_protocol")

        return FrameDecoder(unknown, mapper_for(protocol, names), options)
    return FrameDecoder(codec.decode, mapper_for(protocol, names), options)


def _decoders(batch: pa.RecordBatch) -> tuple[list[FrameDecoder], list[int]]:
    protocols, options = (batch.column(name).dictionary_encode("encode") for name in ("protocol", "options"))
    codes = protocols.indices.to_numpy().astype(np.int64) * len(options.dictionary) + options.indices.to_numpy()
    known = pa.array(codes).dictionary_encode()
    names, texts = protocols.dictionary.to_pylist(), options.dictionary.to_pylist()
    pairs = [divmod(code, len(texts)) for code in known.dictionary.to_pylist()]
    decoders = [decoder_for(names[name] or "", texts[text] or "") for name, text in pairs]
    return decoders, known.indices.to_pylist()


class _BatchDecoder:
    def __init__(self, batch: pa.RecordBatch) -> None:
        self.batch = batch
        self.empty = self.refused = 0
        self.fields: list[Any] = []
        self.rows: list[int] = []
        self.subs: list[int] = []
        self._bad: list[tuple[int, str, str, int | None]] = []

    def take(self, row: int, fields: Sequence[Any], sub: int = 0) -> None:
        self.fields.extend(fields)
        self.rows.append(row)
        self.subs.append(sub)

    def read(self, row: int, frame: bytes, decoder: FrameDecoder, flags: int) -> None:
        try:
            messages = decoder.decode(frame)
        except RemoteProtocolError as error:
            self._refuse(row, error, flags)
            return
        sub = 0
        wrong: list[RemoteProtocolError] = []
        for message in messages:
            if isinstance(message, RemoteProtocolError):
                wrong.append(message)
                continue
            self.take(row, decoder.mapper(message), sub)
            sub += 1
        if sub:
            self.refused += len(wrong)
        elif wrong:
            self._refuse(row, wrong[0], flags)
        else:
            self.empty += 1

    def read_mark(self, row: int, decoder: FrameDecoder) -> None:
        try:
            mark = json.loads(decoder.options)[MARK]
            state, source = mark["state"], mark.get("who")
            fields = EventFields(state, source=_whole_text(source) if isinstance(source, str) else None)
            if state != "open":
                data = json.dumps({name: mark[name] for name in ("code", "reason") if name in mark}).encode()
                more: Any = {"datacontenttype": "application/json", "code_name": _whole_text(str(mark.get("code")))}
                fields = EventFields("close", source=fields.source, data=data, **more)
        except (ValueError, KeyError, TypeError, RecursionError):
            self._bad.append((row, "malformed", "the row has no frame, and is not about a gap or a connection", None))
            return
        self.take(row, fields)

    def _refuse(self, row: int, error: RemoteProtocolError, flags: int) -> None:
        reason = "unknown_protocol" if error.reason == "unknown_protocol" else reason_of(error, flags)
        self._bad.append((row, reason, str(error), error.offset))

    def events(self, columns: Sequence[str] | None) -> pa.RecordBatch:
        return EventColumns(self.batch, self.rows, self.subs, self.fields).table(columns)

    def quarantine(self) -> pa.RecordBatch:
        rows, reasons, details, offsets = zip(*self._bad, strict=True) if self._bad else ((), (), (), ())
        frame = self.batch.take(pa.array(rows, pa.int64()))
        columns = dict(zip(frame.schema.names, frame.columns, strict=True)) | {
            "reason": pa.array(reasons, pa.string()),
            "detail": pa.array(details, pa.string()),
            "offset": pa.array(offsets, pa.int32()),
            "raw": frame.column("frame"),
        }
        if "ts_ns" in columns:
            columns["date"] = dates_of(columns["ts_ns"])
        found = [columns[field.name] if field.name in columns else pa.nulls(len(rows), field.type) for field in QUARANTINE]
        return pa.RecordBatch.from_arrays(found, schema=QUARANTINE)


def _whole_text(text: str) -> str:
    """Return a JSON string without unpaired surrogates, which cannot be stored in a column."""
    return text.encode(errors="replace").decode()


def reason_of(error: RemoteProtocolError, flags: int = 0) -> str:
    """Return the keyword for an error. The row's `flags` show whether the recorder has truncated or blanked the frame."""
    if flags & FLAG_TRUNCATED:
        return "truncated"
    if flags & FLAG_REDACTED:
        return "redacted"
    cause, reason = error.__cause__, error.reason
    if isinstance(cause, UnicodeDecodeError):
        return "bad_text"
    if reason in ("malformed", "bad_encoding") and isinstance(cause, (msgspec.DecodeError, json.JSONDecodeError)):
        return "bad_json"
    if reason in ("malformed", "bad_encoding") and isinstance(cause, EncodeError):  # from `check_json`
        return "too_deep"
    return reason if reason in QUARANTINE_REASONS else "bad_field"


_FIELDS: Final = frozenset(FIELDS) - {"id", "source", "stored"}
_DECODED: Final = frozenset(("protocol", "frame", "options", "flags"))
_FROM: Final[Mapping[str, Sequence[str]]] = {
    "id": ("capture_id", "seq"),
    "source": ("capture_id", "direction", "peer"),
    **dict.fromkeys(("time", "time_ns", "expires_at", "date"), ("ts_ns",)),
    "deadline_ns": ("deadlines_ns",),
}
"""Frame columns needed for an event column, in addition to the message and to columns of the same name."""
_STAMP: Final = pa.timestamp("us", tz="UTC")
_LAST_US: Final = 253_402_300_799_999_999
"""Microseconds of the end of the year 9999, which is the last timestamp that all readers support."""


def frame_columns(names: Iterable[str]) -> list[str]:
    """Return the frame columns that are needed for these event columns, in the order of `schema.FRAMES`."""
    needed = _DECODED.union(*(_FROM.get(name, (name,)) for name in names))
    return [name for name in FRAMES.names if name in needed]


class EventColumns:
    """Creates the columns of `schema.EVENTS` from messages. `fields` is flat: a list of lists takes ten times as long."""

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
            **{name: partial(self._fact, name) for name in StoredFacts.__annotations__},
            **{name: partial(self._field, name) for name in _FIELDS},
        }

    def table(self, names: Sequence[str] | None) -> pa.RecordBatch:
        schema = EVENTS if names is None else pa.schema([EVENTS.field(name) for name in names], EVENTS.metadata)
        return pa.RecordBatch.from_arrays([self.column(name) for name in schema.names], schema=schema)

    def column(self, name: str) -> pa.Array:
        """Return an event column, or a column that exists only in frames."""
        if name not in self._made:
            self._made[name] = self._makers.get(name, partial(self._of_frames, name))()
        return self._made[name]

    def _of_frames(self, name: str) -> pa.Array:
        column = self._batch.column(name)
        return column if self._rows is None else column.take(self._rows)

    def _field(self, name: str) -> pa.Array:
        return pa.array(self._values(name), EVENTS.field(name).type)

    def _values(self, name: str) -> list[Any]:
        return self._fields[FIELDS.index(name) :: len(FIELDS)]

    def _fact(self, name: str) -> pa.Array:
        if self._facts is None:
            self._facts = self._values("stored")
            self._is_stored = any(self._facts)
        kind = EVENTS.field(name).type
        if not self._is_stored:
            return pa.nulls(len(self._facts), kind)
        return pa.array([None if facts is None else getattr(facts, name) for facts in self._facts], kind)

    def _time(self) -> pa.Array:
        return pc.divide(self.column("ts_ns"), 1000)

    def _id(self) -> pa.Array:
        given = self._field("id")
        if not given.null_count:
            return given
        seq, sub = self.column("seq").cast(pa.string()), self.column("sub").cast(pa.string())
        return pc.coalesce(given, pc.binary_join_element_wise(self.column("capture_id"), seq, sub, "/"))

    def _source(self) -> pa.Array:
        here = pc.if_else(pc.equal(self.column("direction"), 1), self.column("peer"), self.column("capture_id"))
        return pc.coalesce(self._field("source"), here)

    def _nbytes(self) -> pa.Array:
        sizes = pc.fill_null(pc.binary_length(self._batch.column("frame")), 0)
        sizes = sizes if self._rows is None else sizes.take(self._rows)
        return pc.if_else(pc.equal(self.column("sub"), 0), sizes, 0).cast(pa.int32())

    def _deadlines(self) -> pa.Array:
        """Assign the deadlines of a frame to the requests in it, in order."""
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
    longest = pc.divide(pc.subtract(_LAST_US, time), 1000)
    return pc.add(time, pc.multiply(pc.min_element_wise(ttl, longest, skip_nulls=False), 1000))
