"""A DataFrame onto a bus: one publication a row, at least once.

Columns: ``subject``, and ``body`` (any type) or ``data`` (bytes, as in the events; JSON where ``datacontenttype`` says so).
Each publication carries an id in a header, so that a receiver can drop what a repeated task sends again: the column ``id``, or
where there is none the run, the partition and the row.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import attrs
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from polybus import sync

from .options import option, seconds

ID_HEADER: Final = "idempotency-key"
KNOWN: Final = ("path", "url", "idHeader", "run", "timeout")


@attrs.define
class PublishResult(WriterCommitMessage):
    """Publications of a task."""

    publications: int


def _body(row: Mapping[str, Any]) -> Any:
    if "body" in row:
        return row["body"]
    data = row["data"]
    if data is not None and "json" in (row.get("datacontenttype") or ""):
        return json.loads(data)
    return data


class _Publishing:
    """Writes partitions of a DataFrame as publications."""

    def __init__(self, given: Mapping[str, str], columns: Sequence[str], run: str) -> None:
        options = {name.lower(): value for name, value in given.items()}
        url = options.get("path") or options.get("url")
        if not url:
            raise ValueError("where to? .save('ubre+tcp://host:port')")
        if "subject" not in columns or not {"body", "data"} & set(columns):
            raise ValueError(f"a publication needs the columns subject, and body or data; there are {', '.join(columns)}")
        self._url = url
        self._id_header = options.get("idheader", ID_HEADER)
        self._run = options.get("run", run)
        self._timeout = option(options, "timeout", seconds, 30.0)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> PublishResult:
        """Publish a partition over one link, of one batch where it is a stream.

        Raises:
            BusError: The bus was not there, or did not take it.
        """
        context = TaskContext.get()
        partition = context.partitionId() if context is not None else 0
        epoch = context.getLocalProperty("streaming.sql.batchId") if context is not None else None
        prefix = "-".join(part for part in (self._run, epoch, str(partition)) if part)
        count = 0
        with sync.connect(self._url, wait=self._timeout) as bus:
            for batch in iterator:
                for row in batch.to_pylist():
                    headers = {self._id_header: row.get("id") or f"{prefix}-{count}"} if self._id_header else None
                    bus.publish(row["subject"], _body(row), headers=headers, timeout=self._timeout)
                    count += 1
        return PublishResult(count)


class BusWriter(_Publishing, DataSourceArrowWriter):
    """Publishes a DataFrame.

    Raises:
        ValueError: An option or a column is missing.
    """

    def __init__(self, options: Mapping[str, str], columns: Sequence[str]) -> None:
        known = [name.lower() for name in KNOWN]
        unknown = [name for name in options if name.lower() not in known and "." not in name]
        if unknown:
            raise ValueError(f"there is no option {unknown[0]!r} to publish with; there are {', '.join(KNOWN)}")
        # Tasks get this very object, so one that is repeated has the same run; what is published another time has another one.
        super().__init__(options, columns, uuid.uuid4().hex[:12])


class BusStreamWriter(_Publishing, DataSourceStreamArrowWriter):
    """Publishes the batches of a stream.

    Raises:
        ValueError: An option or a column is missing.
    """

    def __init__(self, options: Mapping[str, str], columns: Sequence[str]) -> None:
        super().__init__(options, columns, "run")
