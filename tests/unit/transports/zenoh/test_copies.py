"""Copies of samples, as Zenoh hands them to subscribers: each sample is heard once, whatever filters come and go."""

from collections.abc import Sequence
from threading import Thread

from hypothesis import given
from hypothesis import strategies as st

from polybus.plugins import Sample
from polybus.transports.zenoh import node
from polybus.transports.zenoh.node import Copies

NARROW, WIDE, OTHER = "up/a/1", "up/*/1", "up/a/*"
FILTERS = (NARROW, WIDE, OTHER)


def sample(number: int, attachment: bytes | None = b"\x01") -> Sample:
    return Sample("up/a/1", attachment and attachment + bytes([number]), b"body", 1)


def heard(told: Copies, *dispatches: tuple[int, Sequence[str]]) -> list[int]:
    """The numbers of the samples that are taken, of some that come by these filters each."""
    return [number for number, filters in dispatches for one in filters if told.is_first(one, sample(number))]


def test_a_sample_that_is_sent_twice_comes_twice() -> None:
    assert heard(Copies(), (1, [NARROW, WIDE]), (1, [NARROW, WIDE]), (1, [WIDE])) == [1, 1, 1]
    told = Copies()
    assert [told.is_first(NARROW, sample(0, None)) for _ in range(3)] == [True] * 3  # without anything to know it by


@given(st.lists(st.lists(st.sampled_from(FILTERS), min_size=1, unique=True), max_size=50))
def test_each_of_many_samples_comes_once(filters: list[list[str]]) -> None:
    dispatches = [*enumerate(filters)]
    assert heard(Copies(), *dispatches) == [number for number, _ in dispatches]


def test_threads_of_zenoh_do_not_take_each_others_samples_for_copies_and_are_not_remembered_for_ever() -> None:
    told, firsts = Copies(), list[bool]()
    assert told.is_first(NARROW, sample(1))
    for _ in range(node.MOST_THREADS + 5):
        thread = Thread(target=lambda: firsts.append(told.is_first(WIDE, sample(1))))
        thread.start()
        thread.join()
    assert len(told._latest) <= node.MOST_THREADS
    # One that has ended may have left its number to the next: there it is a copy that comes by the same filter again.
    assert all(firsts)
