"""Frames to events: an Arrow batch in, Arrow batches out. No Spark here; Spark uses this.

It stands on the codecs that the bus uses. A codec has no role and no state, so frames of both directions are read, from the
middle of a connection on, each by itself.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from ...errors import RemoteProtocolError
from ...limits import Limits
from ..schema import FLAG_GAP_BEFORE, FLAG_TRUNCATED, QUARANTINE
from ..store.compute import dates_of, pc
from .event_columns import EventColumns
from .event_mapping import EventFields
from .frame_decoders import LIMITS, MARK, FrameDecoder, decoder_for
from .headers_only import headers_only
from .quarantine_reasons import reason_of

ROWS_AT_ONCE: Final = 4096
"""So many rows, or a few more, are decoded together. Eight times as many take 15 % longer, for what is made of them does not
stay in the caches of the processor; an eighth takes 25 % longer."""
BYTES_AT_ONCE: Final = 16 << 20
"""No more batches are joined when there are so many bytes."""


class Decoded(NamedTuple):
    """The events of a batch of frames.

    ``frames`` is the number of frames that went in: those with at least one event, plus the rows of the quarantine, plus
    ``empty`` ones. Rows that only mark a gap are no frames; those that mark the begin or end of a connection count as frames,
    and are events.
    """

    events: pa.RecordBatch
    """In the columns of `schema.EVENTS`, by (seq, sub)."""
    quarantine: pa.RecordBatch
    """In the columns of `schema.QUARANTINE`; those of the frame that the batch lacks are null."""
    empty: int
    """Frames without a message, by the rules of their protocol."""
    frames: int
    refused: int
    """Messages that could not be read, of frames that hold others that could."""


def decode(batch: pa.RecordBatch, limits: Limits = LIMITS, columns: Sequence[str] | None = None) -> Decoded:
    """The events and the quarantine of a batch of `schema.FRAMES` rows.

    Args:
        batch: Rows of a capture, in any cut and any order; of their columns at least those that `frame_columns` names.
        limits: For the codecs.
        columns: Of the events, at least one; None for all. Others are not made.

    Raises:
        KeyError: A column is missing, or there is none of this name.
    """
    work = _BatchDecoder(batch)
    gaps = 0
    decoders, which = _decoders(batch, limits)
    given = pc.fill_null(batch.column("flags"), 0)
    frames, flags = batch.column("frame").to_pylist(), given.to_pylist()
    for row in pc.indices_nonzero(pc.bit_wise_and(given, FLAG_TRUNCATED)).to_pylist():
        # What was cut off is its body, or a part of that: the message stays one.
        whole = headers_only(batch.column("protocol")[row].as_py(), decoders[which[row]].options, frames[row] or b"", cut=True)
        frames[row] = whole or frames[row]
    quick = [decoder.quick for decoder in decoders]
    take, took, numbered = work.fields.extend, work.rows.append, work.subs.append
    for row, (frame, flag, number) in enumerate(zip(frames, flags, which, strict=True)):
        if frame is not None:
            read = quick[number]
            if read is not None and (fields := read(frame)) is not None:
                take(fields)
                took(row)
                numbered(0)
            else:
                work.read(row, frame, decoders[number], flag)
        elif flag & FLAG_GAP_BEFORE:
            gaps += 1
        else:
            work.read_mark(row, decoders[number])
    return Decoded(work.events(columns), work.quarantine(), work.empty, batch.num_rows - gaps, work.refused)


def _decoders(batch: pa.RecordBatch, limits: Limits) -> tuple[list[FrameDecoder], list[int]]:
    """The decoders of the frames, and the number of each row's decoder."""
    protocols, options = (batch.column(name).dictionary_encode("encode") for name in ("protocol", "options"))
    codes = protocols.indices.to_numpy().astype(np.int64) * len(options.dictionary) + options.indices.to_numpy()
    known = pa.array(codes).dictionary_encode()
    names, texts = protocols.dictionary.to_pylist(), options.dictionary.to_pylist()
    pairs = [divmod(code, len(texts)) for code in known.dictionary.to_pylist()]
    decoders = [decoder_for(names[name] or "", texts[text] or "", limits) for name, text in pairs]
    return decoders, known.indices.to_pylist()


class _BatchDecoder:
    """The tables while they are made."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.batch = batch
        self.empty = self.refused = 0
        self.fields: list[Any] = []
        """Of the messages, one after the other, as `EventColumns` takes them."""
        self.rows: list[int] = []
        """Of each message."""
        self.subs: list[int] = []
        """Its number in its row."""
        self._bad: list[tuple[int, str, str, int | None]] = []

    def take(self, row: int, fields: Sequence[Any], sub: int = 0) -> None:
        """Take the fields of a message."""
        self.fields.extend(fields)
        self.rows.append(row)
        self.subs.append(sub)

    def read(self, row: int, frame: bytes, decoder: FrameDecoder, flags: int) -> None:
        """Reads one frame."""
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
            self.take(row, decoder.mapper(message, decoder.names), sub)
            sub += 1
        if sub:
            self.refused += len(wrong)
        elif wrong:
            self._refuse(row, wrong[0], flags)
        else:
            self.empty += 1

    def read_mark(self, row: int, decoder: FrameDecoder) -> None:
        """Reads a row that marks the begin or the end of a connection."""
        try:
            mark = json.loads(decoder.options)[MARK]
            fields = EventFields("open")
            if mark["state"] != "open":
                data = json.dumps({name: mark[name] for name in ("code", "reason") if name in mark}).encode()
                fields = EventFields("close", datacontenttype="application/json", data=data, code_name=str(mark.get("code")))
        except (ValueError, KeyError, TypeError, RecursionError):
            self._bad.append((row, "malformed", "a row without a frame, that says neither of a gap nor of a connection", None))
            return
        self.take(row, fields)

    def _refuse(self, row: int, error: RemoteProtocolError, flags: int) -> None:
        reason = "unknown_protocol" if error.reason == "unknown_protocol" else reason_of(error, flags)
        self._bad.append((row, reason, str(error), error.offset))

    def events(self, columns: Sequence[str] | None) -> pa.RecordBatch:
        """The events, in the order of the rows."""
        return EventColumns(self.batch, self.rows, self.subs, self.fields).table(columns)

    def quarantine(self) -> pa.RecordBatch:
        """The frames that could not be read."""
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


def decoded(batches: Iterable[pa.RecordBatch], columns: Sequence[str] | None = None) -> Iterator[Decoded]:
    """Decodes batches of frames, joined to larger ones; of the events some columns, or all."""
    for rows in joined(batches, ROWS_AT_ONCE, BYTES_AT_ONCE):
        with _collection_paused():
            made = decode(rows, columns=columns)
        yield made


def joined(batches: Iterable[pa.RecordBatch], most_rows: int, most_bytes: int) -> Iterator[pa.RecordBatch]:
    """The same rows in larger batches, none of them empty, of so many rows or bytes and one batch more."""
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


@contextmanager
def _collection_paused() -> Iterator[None]:
    """Pauses the search for cycles: decoding makes none, and hundreds of thousands of objects that would be searched."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
