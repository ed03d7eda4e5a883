"""The exchanges behind the numbers: a bounded number of them, by what they have in common, and the query for all of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from typing import Any, Final

import attrs

from . import html_tables
from .words import shortened

Row = dict[str, Any]

TITLE: Final = "Exchanges"
_SHOWN: Final = "latency_ns request_time_ns peer conn_id correlation_id request_seq capture_id"
_LONGEST: Final = 200
"""Letters of a name that a query compares."""
_FROM: Final = "from read_parquet('exchanges/**/*.parquet', hive_partitioning=true)"
_PLAIN: Final = re.compile(r"[\w./:@,+=*> -]*")
_OF_GROUP: Final = ("protocol", "subject", "outcome", "code")


@attrs.frozen
class Group:
    """Exchanges with the same protocol, subject, outcome and code, some of which are shown."""

    anchor: str
    rows: tuple[Row, ...]

    @property
    def first(self) -> Row:
        return self.rows[0]

    def query(self) -> str:
        """A query of DuckDB, for all of them, from within the folder of the report."""
        subjects = " or ".join(sorted({_condition("subject", row["address"]) for row in self.rows}))
        others = " and ".join(_condition(name, self.first[name]) for name in _OF_GROUP if name != "subject")
        where = f"({subjects}) and {others}"
        if len(ways := {row["direction"] for row in self.rows if row["views"] > 1}) == 1:  # not what others have seen of them
            where += f" and direction = {ways.pop()}"
        return f"{_FROM} where {where} order by latency_ns desc"


class RowGroups:
    """The groups of the report, and where the numbers lead."""

    def __init__(self, rows: Sequence[Row]) -> None:
        found: dict[tuple[Any, ...], list[Row]] = {}
        for row in rows:
            found.setdefault(tuple(row[name] for name in _OF_GROUP), []).append(row)
        self.groups: list[Group] = [Group(f"rows-{number}", tuple(alike)) for number, alike in enumerate(found.values(), 1)]

    def leads(self, row: Row, **given: Any) -> str | None:
        """The anchor of the first group with a row's protocol and subject, and what else is given."""
        return self._first(protocol=row.get("protocol"), subject=row.get("subject"), **given)

    def with_outcome(self, outcome: str) -> str | None:
        """The anchor of the first group with an outcome."""
        return self._first(outcome=outcome)

    def _first(self, **given: Any) -> str | None:
        for group in self.groups:
            if all(group.first[name] == value for name, value in given.items()):
                return group.anchor
        return None

    def html(self) -> str:
        """The section."""
        if not self.groups:
            return html_tables.NOTHING
        intro = (
            "<p>A few of each kind; the line above them is a query for all of them. Run it in the folder of this report: "
            '<code>duckdb -c "..."</code>.</p>'
        )
        columns = len(_SHOWN.split())
        bodies = "".join(_body(group, columns) for group in self.groups)
        return f'{intro}<div class="scroll"><table class="groups">{html_tables.head(_SHOWN)}{bodies}</table></div>'


def _body(group: Group, columns: int) -> str:
    first, shown = group.first, len(group.rows)
    code = f" with {html_tables.text(first['code_name'] or first['code'])}" if first["code"] else ""
    name = f"{html_tables.text(shortened(first['subject'] or 'no subject'))} ({html_tables.text(first['protocol'] or '')})"
    count = f"{first['alike']:,} of them" + ("" if shown == first["alike"] else f", {shown} here")
    title = f"<b>{name} {html_tables.text(first['outcome'])}{code}</b>: {count}"
    line = f'<tr class="head"><th colspan="{columns}">{title}<br><code>{escape(group.query())}</code></th></tr>'
    return f'<tbody id="{group.anchor}">{line}{html_tables.lines(group.rows, _SHOWN)}</tbody>'


def _condition(column: str, value: Any) -> str:
    if value is None:
        return f"{column} is null"
    if isinstance(value, int):
        return f"{column} = {value}"
    cut = value[:_LONGEST]
    # No letter of a peer shall do anything in the shell of whoever copies this.
    said = f"'{cut}'" if _PLAIN.fullmatch(cut) else f"decode(unhex('{cut.encode().hex()}'))"
    return f"starts_with({column}, {said})" if len(value) > _LONGEST else f"{column} = {said}"
