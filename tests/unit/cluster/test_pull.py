"""How a durable handler pulls: its states, and how many publications it asks for."""

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polybus.cluster.durable.reader import Pull, PullState


def asking(places: int) -> Pull:
    pull = Pull(places)
    pull.up(0.0)
    pull.found()
    assert pull.ask(0, 0.0) == places
    return pull


def test_it_asks_again_when_half_of_its_places_are_free_or_nothing_is_asked_for() -> None:
    pull = asking(8)
    for _ in range(4):
        pull.came(1.0)
    assert pull.ask(4, 1.0) == 0
    assert pull.ask(1, 1.0) == 0
    assert pull.ask(0, 1.0) == 4
    one = asking(1)
    one.came(1.0)
    assert one.ask(1, 1.0) == 0
    assert one.ask(0, 1.0) == 1


@pytest.mark.parametrize(("left", "again"), [(3, 8), (None, 8), (2, 0)])
def test_what_does_not_come_in_time_is_asked_for_again(left: int | None, again: int) -> None:
    pull = asking(8)
    for _ in range(5):
        pull.came(1.0)
    pull.expired(left, 30.0)
    assert pull.ask(0, 30.0) == (again if again else 7)


def test_nothing_starts_what_was_stopped_but_the_link() -> None:
    pull = asking(2)
    pull.stop()
    acts: list[Callable[[], None]] = [lambda: pull.came(1.0), lambda: pull.expired(None, 1.0), lambda: pull.refused(1.0)]
    for act in (*acts, pull.found):
        act()
        assert pull.state is PullState.OFF
        assert pull.ask(0, 9.0) == 0
    assert pull.due == math.inf


@given(
    places=st.integers(1, 20),
    steps=st.lists(st.tuples(st.sampled_from("udfaecrbts"), st.integers(0, 20), st.floats(0, 20)), max_size=60),
)
def test_it_never_asks_for_more_than_it_has_places_for(places: int, steps: list[tuple[str, int, float]]) -> None:
    pull, now = Pull(places), 0.0
    acts: dict[str, Callable[[Pull, float], None]] = {
        "u": Pull.up,
        "d": lambda it, _: it.stop(),
        "f": lambda it, _: it.found(),
        "c": Pull.came,
        "r": Pull.refused,
        "b": Pull.beat,
        "t": Pull.tick,
        "s": lambda it, _: it.stop(),
    }
    for step, number, passed in steps:
        now += passed
        if step == "a":
            taken = min(number, places)
            asked = pull.ask(taken, now)
            assert asked >= 0
            assert asked == 0 or pull.asked + taken <= places
        elif step == "e":
            pull.expired(number, now)
        else:
            acts[step](pull, now)
        assert 0 <= pull.asked <= places
        assert (pull.asked > 0) == (pull.state is PullState.ASKING)
