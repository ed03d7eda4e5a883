"""Ids: unique, in order and with their time, whatever the clock does."""

import itertools
import random
import uuid
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polybus.protocols.uprotocol import IdFactory, id_time_ms

NOW = 1_700_000_000_123


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("1EC9414C-232A-6B00-B3C8-9F6BDECED846", 1_645_557_742_000),  # version 6: RFC 9562, appendix A.5
        ("017F22E2-79B0-7CC3-98C4-DC0C0C07398F", 1_645_557_742_000),  # version 7: RFC 9562, appendix A.6
        ("018bcfe5-687b-8000-9122-334455667788", NOW),  # version 8 of uProtocol
        ("018bcfe5-687b-8001-9122-334455667788", NOW),
        ("5b9fe861-8c1c-4899-9b07-ad1cde652e10", None),  # version 4 has none
    ],
)
def test_an_id_has_the_time_that_the_standards_say(text: str, milliseconds: int | None) -> None:
    assert id_time_ms(text) == milliseconds


@pytest.mark.parametrize("text", ["", "not-a-uuid", "018bcfe5687b80009122334455667788", "018bcfe5-687b-8000-1122-334455667788"])
def test_what_is_no_uuid_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match="UUID"):
        id_time_ms(text)


def test_an_id_is_a_uuid_of_version_8_with_the_time_of_the_clock() -> None:
    ids = IdFactory(clock=lambda: NOW * 1_000_000, rng=random.Random(1))
    first, second = ids.next(), ids.next()
    parsed = uuid.UUID(first)
    assert (parsed.version, parsed.variant, str(parsed)) == (8, uuid.RFC_4122, first)
    assert (parsed.int >> 64 & 0xFFF, uuid.UUID(second).int >> 64 & 0xFFF) == (0, 1)
    assert id_time_ms(first) == id_time_ms(second) == NOW
    assert first[18:] == second[18:] == ids.suffix


def test_ten_thousand_ids_in_a_millisecond_differ_and_are_in_order() -> None:
    ids = IdFactory(clock=lambda: NOW * 1_000_000)
    made = [ids.next() for _ in range(10_000)]
    assert len(set(made)) == 10_000
    assert made == sorted(made)
    assert id_time_ms(made[-1]) == NOW + 2  # 4,096 for each millisecond


def test_ids_of_two_makers_are_unique_and_in_order_while_the_clock_is_set_back() -> None:
    """A hundred thousand ids, with the clock going back by up to a second again and again."""
    steps = random.Random(7)
    times = list(itertools.accumulate(steps.choice((0, 0, 0, 1, 1, 2, 40, -30, -1000, 1000)) for _ in range(1000)))
    clock: Iterator[int] = iter([])
    makers = [IdFactory(clock=lambda: next(clock), rng=random.Random(seed)) for seed in (1, 2)]
    everything: set[str] = set()
    for maker in makers:
        latest = 0
        made: list[str] = []
        for step in times:
            now = NOW + step
            clock = itertools.repeat(now * 1_000_000)
            batch = [maker.next() for _ in range(50)]
            assert id_time_ms(batch[0]) in (max(now, latest), max(now, latest) + 1)
            latest = int(batch[-1][:8] + batch[-1][9:13], 16)
            made += batch
        assert made == sorted(made)
        everything.update(made)
    assert len(everything) == 100_000


@given(st.integers(-(2**70), 2**70))
def test_no_clock_makes_a_bad_id(now: int) -> None:
    assert id_time_ms(IdFactory(clock=lambda: now).next()) == min(max(now // 1_000_000, 0), 2**48 - 1)


@given(st.text(max_size=50))
def test_any_text_is_an_id_or_a_value_error(text: str) -> None:
    try:
        time = id_time_ms(text)
    except ValueError:
        return
    assert time is None or time >= -12_219_292_800_000
