"""What the plots and tables of the report say."""

import re
from html import unescape
from typing import Any

import pytest

from polybus.analysis.report import page, plots
from polybus.plugins.tools import shown_duration

S = 1_000_000_000


def drawn(plot: plots.Plot) -> str:
    templates: Any = page.templates().get_template("plots.html").module
    return str(templates.plot(plot))


def texts(plot: plots.Plot) -> list[str]:
    svg = drawn(plot)
    return [unescape(re.sub("<[^>]*>", "", text)) for text in re.findall("<text.*?</text>", svg, re.DOTALL)]


def test_logarithmic_axes_have_plain_numbers() -> None:
    said = texts(plots.histogram([{"from_ns": 10.0**power, "n": 10**number} for number, power in enumerate(range(5, 11))]))
    assert {"latency, ms", "answers", "1", "10", "1,000", "100,000"} <= set(said)
    over_time = [{"window_ns": number * S, "p50_ns": 2_000_000, "p95_ns": 40_000_000} for number in range(3)]
    said += texts(plots.latency_over_time(over_time, S))
    assert {"10", "20"} <= set(said), "also between the powers of ten, where these are far apart"
    assert not [word for word in said if re.search(r"[$\\{]", word)]


def test_one_window_alone_has_its_own_seconds_on_the_axis_and_no_years() -> None:
    said = texts(plots.latency_over_time([{"window_ns": 1_800_000_000 * S, "p50_ns": 2_000_000, "p95_ns": 40_000_000}], S))
    assert not {"2026", "2027", "2028", "2029"} & set(said)
    assert [word for word in said if re.fullmatch(r"\d\d:\d\d|\d\d(\.\d)?", word)]


def test_names_from_peers_are_shown_as_they_are_or_shortened_where_they_are_alike() -> None:
    names = [
        "costs $5 & $6",
        "<script>",
        "a\x00b",
        *(f"//car.maker/body.access/1/rpc.door_{side}" for side in ("left", "right")),
    ]
    rows = [{"window_ns": 0, "subject": name, "n": 1, "nbytes": 1} for name in names]
    plot = plots.throughput(rows, S)
    said = texts(plot)
    assert {"costs $5 & $6", "<script>", "a\\x00b"} <= set(said)
    assert "<script" not in drawn(plot)
    assert len({word for word in said if "…" in word}) == 2


@pytest.mark.parametrize(
    ("ns", "said"),
    [
        *((7, "7 ns"), (1_500, "1.5 µs"), (2_345_678, "2.346 ms"), (12_345_678_901, "12.35 s")),
        *((seconds * S, "1 min") for seconds in (59.999, 60)),
        *((185 * S, "3 min 5 s"), (3_600 * S, "1 h"), (5 * 3_600 * S + 59 * 60 * S, "5 h 59 min")),
        *((86_400 * S, "1 day"), (1_235_000 * S, "14 days 7 h"), (2_000 * 86_400 * S, "2,000 days")),
    ],
)
def test_long_times_are_told_in_minutes_hours_and_days(ns: float, said: str) -> None:
    assert shown_duration(ns) == said
