"""The report of the pipeline in a browser: nothing in it is wider than the place that it has."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from polybus.analysis.report.page import render
from tests.integration.web.browser import Browser, Tab

MS, SECOND = 1_000_000, 1_000_000_000
BEGIN = 1_763_800_000 * SECOND
LONG = "Donaudampfschifffahrtselektrizitaetenhauptbetriebswerkbauunterbeamtengesellschaft"


def metrics(size: int, word: str) -> dict[str, Any]:
    """What a pipeline says of a capture of this many messages, with this word wherever a peer may choose one."""
    wide = {"protocol": "uprotocol", "subject": f"//{word}/1/rpc.{word}", "conn_id": word, "correlation_id": word}
    exchange = {**wide, "outcome": "unanswered", "request_time_ns": BEGIN, "latency_ns": 1_234_567_890_000, "code_name": word}
    times = {f"{name}_ns": 1_234_567_890_000 for name in ("p50", "p90", "p95", "p99", "max")}
    where = {"capture_id": word, "direction": 1, "peer": word}
    hop = {**exchange, **where, "at_ns": 0, "known_by": "same id", "tunnel": [word, word]}
    frame = {**hop, "kind": "request", "carries": False, "nbytes": size, "seq": size, "hop": 0}
    message = {"time_ns": BEGIN, "direction": 1, "kind": word, "subject": word, "code_name": word, "nbytes": size, "body": None}
    return {
        "capture": f"/srv/{word}/captures",
        "begin_ns": BEGIN,
        "end_ns": BEGIN + 60 * SECOND,
        "window_ns": SECOND,
        "provisional": size,
        "counts": dict.fromkeys(("frames", "rowed", "quarantined", "empty", "orphans", "gaps", "lost"), size),
        "totals": {
            **dict.fromkeys(("events", "exchanges", "duplicates", "repeats", "internal", "orphans"), size),
            "bytes": size * 1000, "views": 2 * size,
            "outcomes": {"ok": size, "open-at-end": size, word: size},
            "match_quality": {"unique": size, "reused_id": size, "ambiguous": size},
        },
        "kinds": [{"protocol": word, "kind": "request", "direction": 0, "n": size, "nbytes": size * 1000}],
        "latency": [{**wide, "n": size, "answered": size, **times}],
        "latency_histogram": [{"from_ns": 1_000_000 * MS, "n": size}],
        "latency_over_time": [
            {"window_ns": BEGIN + n * SECOND, "n": size, "not_ok": 1, "p50_ns": size, "p95_ns": size * 1000} for n in range(3)
        ],
        "streams": [{**wide, "n": size, "items": size, **dict.fromkeys(("ok", "error", "cancelled", "lost"), size), **times}],
        "throughput": [{"window_ns": BEGIN + n * SECOND, "subject": wide["subject"], "n": size} for n in range(3)],
        "peers": [{"peer": word, "protocol": "uprotocol", "direction": 1, "n": size, "nbytes": size * 1000}],
        "errors": [{**wide, "code": 4, "code_name": "DEADLINE_EXCEEDED", "n": size}],
        "asks": [
            {**wide, "asker": word, "answerer": "here", "direction": 1, "n": size, "not_ok": size, "p95_ns": size},
            {**wide, "asker": "here", "answerer": word, "direction": 0, "n": size, "not_ok": 0, "p95_ns": None},
        ],
        "pairs": [
            {"asker": word, "answerer": "here", "direction": 1, "n": size, "not_ok": size, "p95_ns": size},
            {"asker": "here", "answerer": word, "direction": 0, "n": size, "not_ok": 0, "p95_ns": None},
        ],
        "followed": [{**wide, "peer": word, "who": word, "closed": word, "messages": [{**message, "body": word}, message]}],
        "topics": [{**wide, "direction": 0, "n": size, "nbytes": size}],
        "unheard": [{**wide, "n": size}],
        "clocks": [{"capture_id": word, "n": size, "stepped_ns": SECOND, "ahead_ns": SECOND}],
        "rows": [
            {
                **exchange, "address": wide["subject"], "direction": 0, "views": 2, "code": 4, "request_seq": size,
                "capture_id": word, "peer": word, "alike": size,
            }
        ],
        "journeys": [
            {**exchange, "why": why, "code": 4, "hops": [hop] * 8, "may_be": [], "frames": [frame] * 9}
            for why in ("failed", "slowest")
        ],
        "verdict": [{"about": "missing", "text": f"{word} {word}", "section": "Dead letters"}],
        "compared": {"capture": word, "begin_ns": BEGIN, "end_ns": BEGIN, "exchanges": size},
        "changes": [{**wide, "kind": "request", "change": "gone", "n": size, "n_before": size}],
        "slowest": [exchange],
        "dead_letters": [{**exchange, "latency_ns": None}],
        "orphans": [{**wide, "n": size}],
        "sessions": [
            {
                "protocol": "uprotocol", "conn_id": word, "transport": "tcp", "peer": word, "n": size, "nbytes": size,
                "who": word, "closed": word,
                "first_ns": BEGIN, "last_ns": BEGIN + 60 * SECOND, "length_ns": 60 * SECOND, "handshake_ns": MS,
            }
        ],
        "quarantine": [{"protocol": "uprotocol", "reason": word, "n": size}],
        "quarantine_samples": [
            {"seq": size, "protocol": "csb", "reason": word, "detail": f"{word} {word}", "size": size, "raw_hex": "ff" * 48}
        ],
        "gaps": [{"ts_ns": BEGIN, "capture_id": word, "seq": size, "detail": word}],
        "losses": [{"segment": size, "offset": size, "size": size, "batch": size, "frames": size}],
    }  # fmt: skip


NARROW = """
(() => {
  const wider = (element) => element.scrollWidth > element.clientWidth
  const of = (selector) => [...document.querySelectorAll(selector)]
  const texts = of('.tile').filter((tile) => [...tile.children].some((part) => {
    const range = document.createRange()
    range.selectNodeContents(part)
    return range.getBoundingClientRect().right > tile.getBoundingClientRect().right
  }))
  return {
    tiles: of('.tile').length,
    wider: [...of('.tile').filter(wider), ...texts].map((tile) => tile.innerText),
    page: wider(document.documentElement),
  }
})()
"""
SIZES: Sequence[int] = (0, 12_345_678, 9_007_199_254_740_993)


@asynccontextmanager
async def shown(chromium: Browser, folder: Path, made: dict[str, Any]) -> AsyncIterator[Tab]:
    """The report of these metrics."""
    (folder / "report.html").write_text(render(made), encoding="utf-8")
    tab = await chromium.tab((folder / "report.html").as_uri())
    try:
        yield tab
    finally:
        await tab.aclose()


@pytest.mark.parametrize("size", SIZES)
async def test_no_number_and_no_word_is_wider_than_its_tile(chromium: Browser, tmp_path: Path, size: int) -> None:
    async with shown(chromium, tmp_path, metrics(size, LONG)) as tab:
        for width in (320, 360, 768, 1280):
            await tab.resize(width, 800)
            found = await tab.run(NARROW)
            assert found["tiles"] == (13 if size else 3)
            assert (width, found["wider"], found["page"]) == (width, [], False)


FILTERED = """
(() => {
  const form = document.getElementById('filter')
  const seen = () => [...document.querySelectorAll('table.groups tbody')].filter((one) => one.checkVisibility()).length
  const found = [form.hidden ? -1 : seen()]
  for (const [name, value] of [
    ['subject', 'TANK'], ['outcome', 'error'], ['peer', 'elsewhere'], ['peer', '9000'], ['from', '2030-01-01T00:00:00']
  ]) {
    form.elements[name].value = value
    form.dispatchEvent(new Event('input'))
    found.push(seen())
  }
  const told = form.querySelector('output').textContent
  form.reset()
  return new Promise((done) => setTimeout(() => done({found, told, all: seen()}), 0))
})()
"""


async def test_the_filters_show_the_rows_that_fit_and_then_all_of_them(chromium: Browser, tmp_path: Path) -> None:
    made = metrics(10, "x")
    made["totals"]["outcomes"]["error"] = 2
    row = made["rows"][0]
    made["rows"] = [
        {**row, "subject": subject, "outcome": outcome, "peer": "127.0.0.1:9000"}
        for subject, outcome in (("tank.get", "error"), ("tank.get", "ok"), ("pump.stop", "error"), ("pump.stop", "ok"))
    ]
    async with shown(chromium, tmp_path, made) as tab:
        found = await tab.run(FILTERED)
    assert (found["found"], found["all"]) == ([4, 2, 1, 0, 1, 0], 4)
    assert " of " in found["told"]


ZOOMED = """
(() => {
  const form = document.getElementById('filter'), plot = document.querySelector('svg[data-begin]')
  const told = () => form.querySelector('output').textContent
  const begin = Number(plot.dataset.begin), end = Number(plot.dataset.end)
  const pixel = (ms) => {
    const {left, right} = plot.dataset, box = plot.getBoundingClientRect()
    const x = Number(left) + (ms - begin) / (end - begin) * (right - left)
    return box.left + x / plot.viewBox.baseVal.width * box.width
  }
  for (const [name, ms] of [['pointerdown', begin + 1900], ['pointerup', begin + 1200]])
    plot.dispatchEvent(new PointerEvent(name, {clientX: pixel(ms)}))
  const tiles = () => [...document.querySelectorAll('.tile.live')].map((tile) => tile.innerText.replace('\\n', ' '))
  const zoomed = [told(), form.elements.from.value.slice(0, 20), form.elements.to.value.slice(0, 20), tiles()]
  form.reset()
  return new Promise((done) => setTimeout(done)).then(() => {
    const whole = tiles()
    const found = ['c-1', 'NOBODY'].map((id) => {
      form.elements.id.value = id
      form.dispatchEvent(new Event('input'))
      return [document.querySelectorAll('#exchanges tr[data-id]:not([hidden])').length, told()]
    })
    return {zoomed, whole, found}
  })
})()
"""


async def test_a_stretch_of_a_plot_has_its_own_numbers_and_an_id_or_connection_is_found(
    chromium: Browser, tmp_path: Path
) -> None:
    made = metrics(10, "x")
    made["totals"]["events"] = 30
    made["rows"] = [{**made["rows"][0], "correlation_id": f"c-{number}", "subject": f"s{number}"} for number in range(3)]
    async with shown(chromium, tmp_path, made) as tab:
        found = await tab.run(ZOOMED)
    said, begin, end, tiles = found["zoomed"]
    assert "in this time 10 messages, 10 requests, 1 not ok, p95 up to 0.01 ms" in said
    assert tiles == ["10 messages", "10 exchanges", "9 ok"]
    assert found["whole"] == ["30 messages", "10 exchanges", "10 ok"]
    assert (begin, end) == ("2025-11-22T08:26:41.", "2025-11-22T08:26:41.")
    assert found["found"][0][0] == 1
    assert found["found"][1][0] == 0 and "polybus journey --id" in found["found"][1][1]
