"""Any journey of results, for whoever asks: by id, subject and time."""

from __future__ import annotations

from typing import Any

from polybus.capture.store.filesystems import AnyPath
from polybus.subjects import check_pattern

from ..duck import DuckEngine
from ..manifest import TABLES, Output
from ..ranges import ReadWindow
from ..tables import SCHEMAS
from .journeys import Journeys
from .names import Names, by_name, is_for
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
        ValueError: The subject is none; `end_ns` is not after `start_ns`.
    """
    ReadWindow(start_ns, end_ns).check()
    if subject is not None:
        check_pattern(subject, foreign=True)
    output, names, wanted = Output.of(out), Names(), ["true"]
    with DuckEngine() as engine:
        read = {name: engine.read(output.storage, name, output.files(name), SCHEMAS[name]) for name in TABLES}
        if id is not None:
            wanted.append(f"correlation_id = {_text(id)}")
        if subject is not None:
            some = engine.rows(
                engine.sql("select distinct subject from {found} where subject is not null", found=read["exchanges"])
            )
            found = [one for one in some["subject"].to_pylist() if is_for(subject, one) or is_for(subject, names.of(one))]
            wanted.append(f"address in ({', '.join(['null', *map(_text, found)])})")
        wanted += [f"request_time_ns >= {start_ns}"] * (start_ns is not None)
        wanted += [f"request_time_ns < {end_ns}"] * (end_ns is not None)
        read |= by_name(engine, read, names)
        with told_apart(engine, read["exchanges"], read["orphans"]) as seen:
            return Journeys(engine, read["events"], seen.views).asked(" and ".join(wanted), most)


def _text(text: str) -> str:
    """A text in SQL, whatever stands in it."""
    return f"decode(unhex('{text.encode().hex()}'))"
