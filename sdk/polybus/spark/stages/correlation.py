"""Correlation of answers with requests: one window over the ordered events, no self-join, so the cost grows with the rows.

An answer belongs to the newest request before it with the same key: connection, client behind a broker, direction and
correlation id (into which the decoder has put CSB's action, since its ids have only 16 bits). Each row of the working table is
a *turn*: one message, or what an earlier run left: all that is known so far of an exchange that was open, or an orphan whose id
may come again. All have the same columns, and the turns of one exchange fold into one turn, so that a run over new segments
goes on exactly where the last one stopped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from polybus.capture.schema import EXCHANGES

from .matching import LONGEST_MS, MatchTimeouts

if TYPE_CHECKING:
    from pyspark.sql.window import WindowSpec

FINAL: Final = "final"
"""An exchange that nothing can change any more."""
OPEN: Final = "open"
"""An exchange to which something may still come, be it only its id."""
LOST: Final = "orphan"
"""An orphan that nothing depends on."""
REMEMBERED: Final = "orphan-kept"
"""An orphan whose id is not new to the next request that has it."""
ORPHANS: Final = (LOST, REMEMBERED)
CARRIED: Final = (OPEN, REMEMBERED)
"""Turns carried over to the next run: of each key at most the newest, and only within the horizon of the recording's end."""
SILENT_NS: Final = 86_400_000_000_000
"""A recording that says nothing for a day while others are written has ended."""

KEY: Final = ("capture_id", "conn_id", "client", "direction", "protocol", "correlation_id")
REQUEST: Final = tuple(
    "request_seq request_time_ns request_mono_ns allowance_ns asked_ns subject peer identity_key quality".split()
)
ANSWER: Final = ("response_seq", "response_mono_ns", "code", "code_name")
LAST: Final = tuple(
    "last_seq last_sub last_mono_ns last_linger_ns last_is_request last_digest last_subject last_allowance_ns".split()
)


@attrs.frozen
class Correlated:
    """Result of the correlation of events."""

    exchanges: DataFrame
    """A row for each request, see `polybus.capture.schema.EXCHANGES`."""
    orphans: DataFrame
    """The responses to which there is no request."""


def correlate(events: DataFrame, timeouts: MatchTimeouts | None = None) -> Correlated:
    """Pair requests and responses of a table of events, at once.

    Args:
        events: Rows as in `polybus.capture.schema.EVENTS`.
        timeouts: 30 s for an answer when None.
    """
    timeouts = timeouts if timeouts is not None else MatchTimeouts()
    ends = events.groupBy("capture_id").agg(F.max("mono_ns").alias("end_ns"))
    folded = fold(turns_of(events, timeouts), timeouts).join(F.broadcast(ends), "capture_id")
    lost = folded.where("request_seq is null").select("capture_id", "last_seq", "last_sub")
    return Correlated(exchanges_of(folded, timeouts, F.col("end_ns")), orphans_of(events, lost))


def turns_of(events: DataFrame, timeouts: MatchTimeouts) -> DataFrame:
    """The requests and responses among events as turns."""
    is_request = F.col("kind") == "request"
    # Not `least`, for which nothing is more than something.
    ttl_ms = F.when(F.col("ttl_ms") > LONGEST_MS, LONGEST_MS).otherwise(F.col("ttl_ms"))
    asked = F.coalesce(F.col("deadline_ns") - F.col("mono_ns"), ttl_ms * 1_000_000)
    allowance = F.coalesce(asked, F.lit(timeouts.timeout_ns))
    linger = F.when(is_request, F.greatest(allowance, F.lit(timeouts.horizon_ns))).otherwise(F.lit(timeouts.horizon_ns))
    identity = F.when(F.col("client") != "", F.col("client")).otherwise(F.col("source"))

    asked_of = {
        "request_seq": F.col("seq"),
        "request_time_ns": F.col("time_ns"),
        "request_mono_ns": F.col("mono_ns"),
        "allowance_ns": allowance,
        "asked_ns": asked,
        "subject": F.col("subject"),
        "peer": F.col("peer"),
        "identity_key": identity,
    }
    answered_of = {"response_seq": "seq", "response_mono_ns": "mono_ns", "code": "code", "code_name": "code_name"}
    picked = events.where(F.col("kind").isin("request", "response") & F.col("correlation_id").isNotNull())
    return picked.select(
        "capture_id",
        "conn_id",
        F.coalesce("client", F.lit("")).alias("client"),
        F.when(is_request, F.col("direction")).otherwise(1 - F.col("direction")).cast("tinyint").alias("direction"),
        "protocol",
        "correlation_id",
        *(F.when(is_request, column).alias(name) for name, column in asked_of.items()),
        F.lit(None).cast("string").alias("quality"),
        *(F.when(~is_request, F.col(column)).alias(name) for name, column in answered_of.items()),
        is_request.cast("int").alias("attempts"),
        (~is_request).cast("int").alias("answers"),
        *(F.col(name).alias(f"last_{name}") for name in ("seq", "sub", "mono_ns", "subject")),
        linger.alias("last_linger_ns"),
        is_request.alias("last_is_request"),
        F.xxhash64("data").alias("last_digest"),
        F.when(is_request, allowance).alias("last_allowance_ns"),
    )


def fold(turns: DataFrame, timeouts: MatchTimeouts) -> DataFrame:
    """One turn for each exchange and each orphan, with `newest`: no other turn of its key comes after it."""
    return _folded(_numbered(_compared(turns, timeouts)))


def _in_order() -> WindowSpec:
    return Window.partitionBy(*KEY).orderBy("last_seq", "last_sub")


def _compared(turns: DataFrame, timeouts: MatchTimeouts) -> DataFrame:
    """Compares each turn with the one before it of the same key."""
    before = {name: F.lag(name).over(_in_order()) for name in LAST}
    is_request = F.col("request_seq").isNotNull()
    first_mono = F.coalesce("request_mono_ns", "response_mono_ns")
    since = first_mono - before["last_mono_ns"]
    return (
        turns.withColumns({"since": since, "before_asks": before["last_is_request"], "before_linger": before["last_linger_ns"]})
        .withColumns(
            {
                "broken": F.coalesce(F.col("since") > F.col("before_linger"), F.lit(True)),
                "same": (before["last_digest"] == F.col("last_digest"))
                & before["last_subject"].eqNullSafe(F.col("last_subject"))
                & (since <= before["last_allowance_ns"]),
            }
        )
        # The same bytes once more while there is no answer and the first are still waited for: a further attempt.
        .withColumn("again", is_request & ~F.col("broken") & F.col("before_asks") & F.coalesce("same", F.lit(False)))
        .withColumn("starts", is_request & ~F.col("again"))
    )


def _numbered(turns: DataFrame) -> DataFrame:
    opens = F.col("starts") | F.col("broken")
    is_request = F.col("request_seq").isNotNull()
    order = _in_order()
    up_to_here = order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    asked = F.max(F.when(is_request, F.col("last_seq"))).over(up_to_here)
    broken = F.max(F.when(F.col("broken"), F.col("last_seq"))).over(up_to_here)
    return turns.withColumns(
        {
            "number": F.sum(opens.cast("int")).over(up_to_here),
            "next_opens": F.lead(opens).over(order),
            "next_reuses": F.lead(F.col("starts") & ~F.col("broken")).over(order),
            "orphaned": ~is_request & (asked.isNull() | (asked < broken)),
        }
    )


def _folded(turns: DataFrame) -> DataFrame:
    orphaned = F.col("orphaned")
    ends = orphaned | F.coalesce("next_opens", F.lit(True))
    first_answer = F.col("starts") | orphaned | (F.col("before_asks") & ~F.col("broken") & F.col("request_seq").isNull())
    reused = F.when(F.col("broken"), "unique").when(F.col("before_asks"), "ambiguous").otherwise("reused_id")
    turns = turns.withColumn("quality", F.coalesce("quality", reused))

    def of(flag: Column, names: tuple[str, ...]) -> list[Column]:
        return [F.max(F.when(flag, F.col(name))).alias(name) for name in names]

    return turns.groupBy(
        *KEY,
        "number",
        F.when(orphaned, F.col("last_seq")).alias("orphan_seq"),
        F.when(orphaned, F.col("last_sub")).alias("orphan_sub"),
    ).agg(
        *of(F.col("starts"), REQUEST),
        *of(first_answer, ANSWER),
        F.sum("attempts").cast("int").alias("attempts"),
        F.sum("answers").cast("int").alias("answers"),
        *of(ends, LAST),
        F.max(F.col("next_opens").isNull() & ends).alias("newest"),
        F.max(F.col("next_reuses") & ends).alias("reused"),
    )


def part_of(timeouts: MatchTimeouts, end_ns: Column, silent_ns: Column, ended: Column) -> Column:
    """The part to which a folded turn belongs: one of `FINAL`, `OPEN`, `LOST`, `REMEMBERED`.

    Its recording ends at `end_ns` on its monotonic clock, and says so itself (`ended`), or others have gone on for `silent_ns`.
    """
    is_orphan = F.col("request_seq").isNull()
    linger = F.col("last_linger_ns")
    # Clocks of the wall are put right now and then, so once more the horizon is waited.
    forgotten = silent_ns > linger + timeouts.horizon_ns
    # As long as its recording may go on, it is not known to be open at the end.
    settled = is_orphan | (F.col("answers") > 0) | _waited(end_ns)
    given_up = forgotten & (settled | (silent_ns > linger + SILENT_NS))
    over = ~F.col("newest") | F.coalesce(end_ns - F.col("last_mono_ns") > linger, F.lit(False))
    over |= F.coalesce(ended | given_up, F.lit(False))
    return F.when(is_orphan, F.when(over, LOST).otherwise(REMEMBERED)).when(over, FINAL).otherwise(OPEN)


def _waited(end_ns: Column) -> Column:
    return F.coalesce(end_ns - F.col("request_mono_ns") > F.col("allowance_ns"), F.lit(False))


def exchanges_of(folded: DataFrame, timeouts: MatchTimeouts, end_ns: Column, *further: str) -> DataFrame:
    """The table of exchanges and `further` columns, from folded turns and the end of each recording on its monotonic clock."""
    latency = F.col("response_mono_ns") - F.col("request_mono_ns")
    answered = F.col("answers") > 0
    # No answer is waited for any more to an id that was given to the next request, however soon the recording ends.
    given_up = F.coalesce("reused", F.lit(False))
    waited = _waited(end_ns) | given_up
    unanswered = F.when(~waited, "open-at-end").when(F.col("asked_ns").isNotNull(), "timeout").otherwise("unanswered")
    answer = F.when(latency > F.col("allowance_ns"), "late").when(F.coalesce("code", F.lit(0)) == 0, "ok").otherwise("error")
    columns = {
        "latency_ns": F.when(answered, latency),
        "outcome": F.when(answered, answer).otherwise(unanswered),
        "duplicates": F.greatest(F.col("answers") - 1, F.lit(0)),
        # Its answer may have been taken for the next one's.
        "match_quality": F.when(~answered & given_up, "ambiguous").otherwise(F.col("quality")),
        "request_time": F.expr("timestamp_micros(request_time_ns div 1000)"),
        "latency_ms": F.when(answered, latency / 1e6),
    }
    given = folded.where("request_seq is not null").withColumns(columns)
    return given.select(*EXCHANGES.names, *further)


def orphans_of(events: DataFrame, lost: DataFrame) -> DataFrame:
    """The events that are orphans."""
    keys = lost.select("capture_id", F.col("last_seq").alias("seq"), F.col("last_sub").alias("sub"))
    return events.join(keys, ["capture_id", "seq", "sub"], "left_semi").select(*events.columns)
