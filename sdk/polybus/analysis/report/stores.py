"""The part of the report about what streams keep: publications, deliveries, attempts, and dead letters with their reasons."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import MappingProxyType
from typing import Any, Final

import pyarrow as pa

from polybus.capture.protocols.nats import DEAD_LETTER, DELIVERY, PUBLICATION
from polybus.capture.schema import EXCHANGES

Rows = Sequence[dict[str, Any]]
MOST: Final = 1000
"""Stores, durables and reasons beyond so many are left out of the numbers, the rarest first."""


def _column(name: str, doc: str) -> pa.Field:
    return pa.field(name, pa.int64(), metadata={"doc": doc})


_STORE, _DURABLE, _REASON, _ATTEMPT = map(EXCHANGES.field, ("store", "durable", "reason", "attempt"))

STORE_METRICS: Final = MappingProxyType(
    {
        "store_publications": (
            "Publications to streams; of the 1000 streams with the most.",
            pa.schema(
                [
                    _STORE,
                    _column("n", "Publications; the store is null of those that no stream has answered."),
                    _column("kept", "Those that it says it has, duplicates included."),
                    _column("duplicates", "Those that it had already, by their id."),
                    _column("refused", "Those that it has refused."),
                    _column("unanswered", "Those of which it has said nothing."),
                    _column("sent_again", "How often one was sent again."),
                ]
            ),
        ),
        "store_deliveries": (
            "Deliveries of stored publications, by stream and durable consumer; the 1000 with the most.",
            pa.schema(
                [
                    _STORE,
                    _DURABLE,
                    _column("n", "Deliveries."),
                    _column("publications", "Publications that were delivered."),
                    _column("redelivered", "Deliveries that were not the first of their publication."),
                    _column("most_attempts", "The highest number of a delivery."),
                    _column("handled", "Deliveries that were acknowledged."),
                    _column("again", "Those that were to come again (NAK)."),
                    _column("ended", "Those that were not to come any more (TERM): a dead letter, or given up."),
                    _column("unsettled", "Those of which nothing was said: its worker is gone, or still at it."),
                ]
            ),
        ),
        "store_letters": (
            "Dead letters, by stream, durable consumer and reason; the 1000 most frequent.",
            pa.schema(
                [
                    _STORE,
                    _DURABLE,
                    _REASON,
                    _column("n", "Publications that became dead letters so."),
                    _column("most_attempts", "How often one was given out, at the most."),
                ]
            ),
        ),
    }
)
"""By name: what a row is, and the columns."""

_SETTLED: Final = "latency_ns is not null and code_name"


def _counted(stored: str, keys: str, columns: str, order: str) -> str:
    return f"""
        select {keys}, {columns} from {{exchanges}} where stored = '{stored}'
        group by {keys} order by {order} desc, {", ".join(f"{key} nulls first" for key in keys.split(", "))} limit {MOST}
    """


STORE_QUERIES: Final = MappingProxyType(
    {
        "store_publications": _counted(
            PUBLICATION,
            "store",
            """count(*) as n, count_if(latency_ns is not null and coalesce(code, 0) = 0) as kept,
                count_if(code_name = 'DUPLICATE') as duplicates, count_if(code != 0) as refused,
                count_if(latency_ns is null) as unanswered, sum(attempts - 1) as sent_again""",
            "n",
        ),
        "store_deliveries": _counted(
            DELIVERY,
            "store, durable",
            f"""count(*) as n, count(distinct store_seq) as publications, count_if(attempt > 1) as redelivered,
                max(attempt) as most_attempts, count_if({_SETTLED} = 'OK') as handled, count_if({_SETTLED} = 'NAK') as again,
                count_if({_SETTLED} = 'TERM') as ended, count_if(latency_ns is null) as unsettled""",
            "n",
        ),
        # A letter is stored again by the next worker where the first was killed before it had ended its publication.
        "store_letters": _counted(
            DEAD_LETTER,
            "store, durable, reason",
            "count(distinct store_seq) as n, max(attempt) as most_attempts",
            "n",
        ),
    }
)
"""By the names of `STORE_METRICS`; texts as those of `queries.QUERIES`."""


def stores(metrics: dict[str, Any], table: Callable[[Rows, str], str]) -> Iterator[tuple[str, str]]:
    """The section, title and HTML; `table` makes a table of some columns of rows. None where nothing was stored."""
    found = {name: metrics.get(name, ()) for name in STORE_METRICS}
    if not any(found.values()):
        return
    parts = [
        f"<h3>{_TITLES[name]}</h3>{table(found[name], ' '.join(columns.names))}" for name, (_, columns) in STORE_METRICS.items()
    ]
    yield TITLE, "".join(parts)


TITLE: Final = "Stores"
_TITLES: Final = {
    "store_publications": "Publications",
    "store_deliveries": "Deliveries",
    "store_letters": "Dead letters of stores",
}
