"""Tables of the report: rows of the metrics as HTML, with the marks by which its script filters them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from typing import Any, Final

from .queries import MANY
from .words import duration, moment, shortened

Rows = Sequence[dict[str, Any]]
Link = Callable[[dict[str, Any]], str | None]
"""A function that names the anchor of a row's number; None where there is no such place."""
SHOWN: Final = 25
"""Rows of a table; ``metrics.json`` has more."""
NOTHING: Final = "<p>Nothing.</p>"
_LONGEST: Final = 200
_NUMBERS: Final = frozenset(
    (
        "n nbytes answered code seq size segment offset batch frames n_before failed failed_before lost lost_before late "
        "late_before request_seq kept duplicates refused unanswered sent_again publications redelivered most_attempts handled "
        "again ended unsettled items ok error cancelled"
    ).split()
)
_HEADINGS: Final = {"n": "count", "nbytes": "bytes", "code_name": "name", "conn_id": "connection", "n_before": "before"}
_MARKED: Final = ("subject", "peer", "outcome")


def table(rows: Rows, names: str, most: int = MANY, *, shown: int = SHOWN, links: Mapping[str, Link] | None = None) -> str:
    """Some columns of rows, of which ``metrics.json`` lists so many at most.

    Args:
        rows: Rows of the metrics.
        names: The columns, with blanks between them.
        most: Limit of the list in ``metrics.json``.
        shown: Rows that are shown at most.
        links: By name of a column, where its numbers lead.
    """
    if not rows:
        return NOTHING
    body = lines(rows[:shown], names, links)
    limit = f", which lists {most:,} at most" if len(rows) >= most else ""
    more = f"<p>{len(rows) - shown:,} more in metrics.json{limit}.</p>" if len(rows) > shown else ""
    return scrolled(head(names), body) + more


def scrolled(head: str, body: str) -> str:
    """A table that is pushed aside where it is wider than the screen."""
    return f'<div class="scroll"><table>{head}<tbody>{body}</tbody></table></div>'


def head(names: str) -> str:
    """The headings of columns."""
    return headed(_HEADINGS.get(name, name.removesuffix("_ns").replace("_", " ")) for name in names.split())


def headed(titles: Iterable[str]) -> str:
    """The same of titles as they are."""
    return "<thead><tr>" + "".join(f"<th>{title}</th>" for title in titles) + "</tr></thead>"


def lines(rows: Rows, names: str, links: Mapping[str, Link] | None = None) -> str:
    """The rows alone."""
    columns = [(name, _form_of(name), (links or {}).get(name)) for name in names.split()]
    made = []
    for row in rows:
        cells = "".join(_cell(row, name, form, link) for name, form, link in columns)
        made.append(f"<tr{marks(row)}>{cells}</tr>")
    return "".join(made)


def _cell(row: dict[str, Any], name: str, form: Callable[[Any], str], link: Link | None) -> str:
    value = row.get(name)
    said = "" if value is None else form(value)
    target = link(row) if link is not None and said else None
    inside = f'<a href="#{target}">{said}</a>' if target is not None else said
    return f'<td class="{form.__name__.strip("_")}">{inside}</td>'


def marks(row: Mapping[str, Any]) -> str:
    """The attributes by which the script of the page filters a row."""
    found = [f' data-{name}="{escape(shortened(row[name] or ""))}"' for name in _MARKED if name in row]
    if row.get("request_time_ns") is not None:
        found.append(f' data-time="{row["request_time_ns"] // 1_000_000}"')
    return "".join(found)


def text(value: Any) -> str:
    """A text from a peer, cut where it is long."""
    said = str(value)
    return escape(said if len(said) <= _LONGEST else said[: _LONGEST - 1] + "…")


def anchor(title: str) -> str:
    """The anchor of a section."""
    return title.lower().replace(" ", "-")


def _form_of(name: str) -> Callable[[Any], str]:
    """The function that writes the values of a column."""
    if name.endswith("_ns"):
        return moment if name in ("request_time_ns", "ts_ns") else duration
    return _way if name == "direction" else _number if name in _NUMBERS else text


def _number(value: Any) -> str:
    return f"{value:,}"


def _way(value: Any) -> str:
    return "in" if value else "out"
