"""What is past its deadline in a table, found at a cost that follows what is found."""

import math
import random
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from attrs import define

from polybus._util.deadlines import Deadlines


@define(eq=False)
class Waiting:
    deadline: float


class Counted(Mapping[int, Waiting]):
    """A table that counts how often one of its entries is looked at."""

    def __init__(self) -> None:
        self.entries: dict[int, Waiting] = {}
        self.looks = 0

    def __getitem__(self, key: int) -> Waiting:
        self.looks += 1
        return self.entries[key]

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[int]:
        return iter(self.entries)


def enter(deadlines: Deadlines, table: dict[int, Waiting], key: int, deadline: float) -> None:
    table[key] = Waiting(deadline)
    if deadline < deadlines.until:
        deadlines.add(deadline, key)


@pytest.mark.parametrize("seed", range(6))
def test_each_is_found_once_as_soon_as_it_is_due_and_never_before(seed: int) -> None:
    rng, deadlines, table = random.Random(seed), Deadlines(), dict[int, Waiting]()
    now, key, longest = 0.0, 0, rng.choice((1, 10, 1000))
    for _ in range(150):
        for _ in range(rng.choice((0, 1, 1, 5, 150))):
            key += 1
            enter(deadlines, table, key, rng.choice((math.inf, now + 5, now + rng.uniform(0.01, longest))))
        for gone in rng.sample(sorted(table), min(len(table), rng.choice((0, 1, 100)))):
            del table[gone]  # answered
        nearest = min((each.deadline for each in table.values()), default=math.inf)
        assert deadlines.next <= nearest
        now = rng.choice((now + rng.expovariate(2), deadlines.next if deadlines.next < math.inf else now))
        expected = sorted(key for key, each in table.items() if each.deadline <= now)
        by_entry = {id(each): key for key, each in table.items()}
        found = list[int]()
        for each in deadlines.due(now, table):
            found.append(by_entry[id(each)])
            del table[found[-1]]
        assert sorted(found) == expected
        if not table:
            assert deadlines.next == math.inf or deadlines.next > now


def _looks(count: int) -> float:
    """How often an entry is looked at until all have been found, one after the other, while as many follow."""
    deadlines, table = Deadlines(), Counted()
    for key in range(count):
        enter(deadlines, table.entries, key, 30.0 + key)
    for key in range(count):
        for _ in deadlines.due(30.0 + key, table):
            del table.entries[key]
        enter(deadlines, table.entries, count + key, 60.0 + 2 * count + key)
    assert len(table) == count
    return table.looks / count


def test_what_waits_is_looked_at_a_few_times_however_much_else_waits() -> None:
    assert _looks(5_000) <= _looks(1_000) + 2
    assert _looks(5_000) < 30


def test_short_deadlines_behind_a_long_one_are_not_all_remembered() -> None:
    deadlines, table = Deadlines(), dict[int, Waiting]()
    enter(deadlines, table, 0, 3600.0)
    for key in range(1, 10_000):
        enter(deadlines, table, key, 30.0 + key / 1000)
        if key > 1:
            del table[key - 1]
    assert len(deadlines._near) <= 128
    for key in range(10_000, 10_003):
        enter(deadlines, table, key, 1.0)
    assert {each.deadline for each in deadlines.due(1.0, table)} == {1.0}


def test_what_raises_while_others_are_due_as_well_costs_these_nothing() -> None:
    deadlines, table = Deadlines(), dict[int, Waiting]()
    for key in range(3):
        enter(deadlines, table, key, 1.0 + key)
    due: Any = deadlines.due(5.0, table)
    assert next(due) is table.pop(0)
    due.close()
    assert [each.deadline for each in deadlines.due(5.0, table)] == [2.0, 3.0]
