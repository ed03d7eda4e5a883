"""The comparison with the capture before as HTML."""

from __future__ import annotations

from html import escape
from typing import Any, Final

from . import comparison, html_tables
from .queries import FEW
from .words import duration, moment

_COLUMNS: Final = (
    "subject kind change n n_before failed failed_before lost lost_before late late_before "
    "p50_ns p50_before_ns p95_ns p95_before_ns protocol"
)


def changes(metrics: dict[str, Any], leads: html_tables.Link) -> str:
    """The section: what it was compared with, what counts as changed, and both numbers of each subject."""
    before, rows = metrics["compared"], metrics["changes"]
    when = f"{moment(before['begin_ns'])} to {moment(before['end_ns'])}"
    intro = f"<p>With {before['exchanges']:,} requests of <b>{escape(before['capture'])}</b>, {when}. {_RULES}</p>"
    return intro + html_tables.table(rows, _COLUMNS, links={"n": leads})


_RULES: Final = (
    "Each exchange counts once, as its asker saw it where that was recorded; latencies are compared where that is so, or is "
    "not so, in both. "
    f"Slower or faster: p50 (from {comparison.ENOUGH} answers on both sides) or p95 (from {FEW}) by {comparison.TIMES} times "
    f"and {duration(comparison.LEAST_NS)}. Failed, lost or late more or less: the share by {comparison.TIMES} times and "
    f"{comparison.ERRORS:g} standard errors. Gone: none, where {comparison.EXPECTED:g} or more were to be expected; fewer: by "
    f"{comparison.TIMES} times, and more than chance. A capture that is shorter is expected to hold as much less."
)
