"""The results of an earlier capture, as far as a comparison needs them."""

from __future__ import annotations

import hashlib
import os
from typing import Final

import msgspec

from polybus.capture.errors import CaptureError
from polybus.capture.store.filesystems import AnyPath

from ..storage import Storage, absolute

_FILE: Final = "metrics.json"


class SubjectRow(msgspec.Struct, frozen=True):
    """Exchanges of a subject: some columns of ``metrics/latency``."""

    protocol: str | None
    subject: str | None
    n: int
    answered: int
    p50_ns: int | None
    p95_ns: int | None
    error: int
    late: int
    timeout: int
    unanswered: int
    asked: int
    lost: int = 0

    @property
    def as_asked(self) -> bool:
        """True where most requests are counted as who asked saw them: their latencies are not those of who was asked."""
        return self.asked * 2 > self.n

    @property
    def missing(self) -> int:
        """Requests that were never answered."""
        return self.timeout + self.unanswered + self.lost


class TopicRow(msgspec.Struct, frozen=True):
    """Publications of a subject: some columns of ``metrics/topics``."""

    protocol: str | None
    subject: str | None
    direction: int | None
    n: int


class _Totals(msgspec.Struct, frozen=True):
    exchanges: int


class Measured(msgspec.Struct, frozen=True):
    """The metrics of a capture, as far as they are compared."""

    capture: str
    begin_ns: int
    end_ns: int
    totals: _Totals
    latency: list[SubjectRow]
    topics: list[TopicRow]


class Earlier(msgspec.Struct, frozen=True):
    """Results to compare with."""

    measured: Measured
    digest: str
    """That of the file, by which other results are told apart."""


def read_earlier(before: AnyPath, out: AnyPath) -> Earlier:
    """The metrics in the folder `before`, for a comparison in the results `out`.

    Raises:
        CaptureError: It holds no metrics, or those of another version; or it is `out` itself.
        OSError: They cannot be read.
    """
    path = os.fspath(before)
    if absolute(path).rstrip("/") == absolute(os.fspath(out)).rstrip("/"):
        raise CaptureError(f"{path} is the folder of these results themselves: name that of an earlier capture")
    storage = Storage(before)
    if _FILE not in storage.names():
        raise CaptureError(f"{path} holds no {_FILE} to compare with: `polybus analyse CAPTURE --out {path}` makes it")
    text = storage.read(_FILE)
    try:
        measured = msgspec.json.decode(text, type=Measured)
    except (ValueError, RecursionError) as error:
        raise CaptureError(
            f"{path}/{_FILE} is of another version of polybus, or damaged ({error}): analyse that capture again, into a new "
            "folder"
        ) from error
    return Earlier(measured, hashlib.sha256(text).hexdigest()[:16])


def measured_of(metrics: object) -> Measured:
    """The same of metrics that have just been made."""
    return msgspec.convert(metrics, Measured)
