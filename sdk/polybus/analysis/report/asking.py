"""Any journey of results, for whoever asks: by id, subject and time."""

from __future__ import annotations

from typing import Any

from polybus.capture.store.filesystems import AnyPath
from polybus.subjects import check_pattern, matches

from ..duck import DuckEngine
from ..manifest import Output
from ..tables import SCHEMAS
from .journeys import Journeys
from .views import told_apart


def journeys(
    out: AnyPath,
    *,
    id: str | None = None,
    subject: str | None = None,
    start_ns: int | None = None,
    end_ns: int | None = None,
    most: int = 4,
) -> list[dict[str, Any]]:
    """Follow exchanges, the earliest first: what they led to, and the frames that carried them.

    Args:
        out: The folder of results.
        id: Only with this id, the ``correlation_id`` of the tables.
        subject: Only of this subject or pattern, ``tank.*``.
        start_ns: Only those that were asked from here on, ns since 1970 UTC.
        end_ns: Only those that were asked before.
        most: At most so many.

    Returns:
        Each as in ``journeys`` of ``metrics.json``: ``hops`` is what belongs together, ``may_be`` what may belong to it.

    Raises:
        CaptureError: `out` is no such folder.
        ValueError: The subject is none.
    """
    if subject is not None:
        check_pattern(subject, foreign=True)
    output = Output.of(out)
    with DuckEngine() as engine:
        names = ("events", "exchanges", "orphans")
        events, exchanges, orphans = (engine.read(output.storage, name, output.files(name), SCHEMAS[name]) for name in names)
        wanted = ["true"]
        if id is not None:
            wanted.append(f"correlation_id = {_text(id)}")
        if subject is not None:
            named = engine.sql("select distinct subject from {exchanges} where subject is not null", exchanges=exchanges)
            some = engine.rows(named)["subject"].to_pylist()
            found = [_text(one) for one in some if one == subject or matches(subject, one)]
            wanted.append(f"subject in ({', '.join(['null', *found])})")
        wanted += [f"request_time_ns >= {start_ns}"] * (start_ns is not None)
        wanted += [f"request_time_ns < {end_ns}"] * (end_ns is not None)
        with told_apart(engine, exchanges, orphans) as seen:
            return Journeys(engine, events, seen.views).asked(" and ".join(wanted), most)


def _text(text: str) -> str:
    """A text in SQL, whatever stands in it."""
    return f"decode(unhex('{text.encode().hex()}'))"
