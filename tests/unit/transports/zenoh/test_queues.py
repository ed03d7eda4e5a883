"""The queues on both sides of a session: bounded, by priority, with what is lost counted. Threads wait for events alone."""

from threading import Event

import pytest

from polybus.plugins import Sample
from polybus.transports.zenoh import node
from polybus.transports.zenoh.node import Early, Inbox, Lanes
from tests.support import BOUND


def sample(level: int = 1, size: int = 1, key: str = "up/a") -> Sample:
    return Sample(key, b"\x01", bytes(size), level)


# -- in ----------------------------------------------------------------------------------------------------------------------


def woken() -> tuple[Inbox, list[None]]:
    calls: list[None] = []
    return Inbox(lambda: calls.append(None)), calls


def add(box: Inbox, count: int, level: int = 1, size: int = 1, sender: str = "a") -> None:
    for _ in range(count):
        box.add(sender, sample(level, size))


def everything(box: Inbox) -> list[Sample]:
    taken: list[Sample] = []
    more = True
    while more:
        batch, more = box.take()
        assert len(batch) <= node.BATCH
        taken += batch
    return taken


def test_the_loop_is_woken_once_for_many_and_again_when_all_was_taken() -> None:
    box, calls = woken()
    add(box, 100)
    assert len(calls) == 1
    assert len(everything(box)) == 100
    add(box, 1)
    assert len(calls) == 2


def test_a_batch_is_bounded_in_samples_and_in_bytes() -> None:
    box, _ = woken()
    add(box, node.BATCH + 1)
    batch, more = box.take()
    assert (len(batch), more) == (node.BATCH, True)
    add(box, 3, level=2, size=node.BATCH_BYTES - 1 - sample(size=0).size)
    batch, more = box.take()
    assert ([one.level for one in batch], more) == ([2, 2], True)


def test_the_most_urgent_is_taken_first_and_each_priority_in_order() -> None:
    box, _ = woken()
    for number, level in enumerate([1, 6, 0, 1, 4]):
        box.add("a", sample(level, size=number))
    assert [(one.level, len(one.payload)) for one in everything(box)] == [(6, 1), (4, 4), (1, 0), (1, 3), (0, 2)]


def test_one_sender_has_half_of_a_priority_and_leaves_the_rest_to_others() -> None:
    box, _ = woken()
    add(box, node.MOST_SAMPLES, sender="loud")
    assert box.lost() == node.MOST_SAMPLES // 2
    add(box, 10, sender="quiet")
    add(box, 10, level=4, sender="loud")
    assert box.lost() == 0
    add(box, node.MOST_SAMPLES, sender="louder")
    assert box.lost() == node.MOST_SAMPLES // 2 + 10
    assert len(everything(box)) == node.MOST_SAMPLES + 10
    assert box.waiting == 0
    add(box, 1, sender="loud")
    assert box.lost() == 0


def test_bytes_have_the_same_bounds() -> None:
    box, _ = woken()
    size = node.MOST_BYTES // 4 - sample(size=0).size
    add(box, 4, size=size, sender="loud")
    assert box.lost() == 2
    add(box, 3, size=size, sender="other")
    assert box.lost() == 1
    assert box.waiting == node.MOST_BYTES
    box.clear()
    assert box.waiting == 0
    add(box, 1, size=node.MOST_BYTES + 1)  # the queue is empty takes anything that Limits.message allows
    assert box.lost() == 0


@pytest.mark.parametrize("big", [Sample("up/a", bytes(2**20), b"", 1), Sample("up/" + "a" * 2**16, b"\x01", b"", 1)])
def test_what_waits_is_bounded_wherever_its_bytes_are(big: Sample) -> None:
    box, _ = woken()
    for _ in range(1000):
        box.add("loud", big)
    assert box.lost() == 1000 - node.MOST_BYTES // 2 // big.size
    assert box.waiting <= node.MOST_BYTES // 2
    fabric, out = made()
    fabric.hold(1)
    assert out.add(big)
    assert fabric.begun[1].wait(BOUND)
    assert sum(out.add(big) for _ in range(1000)) == node.MOST_BYTES // big.size
    assert out.drop() == node.MOST_BYTES // big.size
    fabric.let_go(1)


# -- out ---------------------------------------------------------------------------------------------------------------------


class Fabric:
    """Takes samples as long as nobody holds a priority."""

    def __init__(self) -> None:
        self.put: list[Sample] = []
        self.held: dict[int, Event] = {}
        self.begun: dict[int, Event] = {}
        self.eased, self.wrote = Event(), Event()

    def hold(self, level: int) -> None:
        self.held[level], self.begun[level] = Event(), Event()

    def let_go(self, level: int) -> None:
        self.held[level].set()

    def __call__(self, sample: Sample) -> None:
        if sample.level in self.held:
            self.begun[sample.level].set()
            assert self.held[sample.level].wait(BOUND)
        self.put.append(sample)
        self.wrote.set()


def flushed(out: Lanes) -> None:
    done = Event()
    out.flush(done.set)
    assert done.wait(BOUND)


def pauses(out: Lanes) -> bool:
    """Whether the bus should pause; each call may say something else."""
    return out.full


def made() -> tuple[Fabric, Lanes]:
    fabric = Fabric()
    return fabric, Lanes(fabric, fabric.eased.set)


def test_a_priority_that_stands_still_holds_back_no_other_and_drops_what_is_too_much() -> None:
    fabric, out = made()
    fabric.hold(1)
    assert out.add(sample(1))
    assert fabric.begun[1].wait(BOUND)
    assert sum(out.add(sample(1)) for _ in range(node.LANE_SAMPLES + 5)) == node.LANE_SAMPLES
    assert out.add(sample(4))
    assert fabric.wrote.wait(BOUND)
    assert [one.level for one in fabric.put] == [4]
    assert pauses(out)
    out.look()
    assert not pauses(out)  # it stands still: the bus goes on without it
    fabric.let_go(1)
    flushed(out)
    assert len(fabric.put) == node.LANE_SAMPLES + 2
    out.drop()


@pytest.mark.parametrize("size", [1, node.HIGH_BYTES // 4])
def test_the_bus_is_asked_to_pause_and_goes_on_when_half_is_written(size: int) -> None:
    fabric, out = made()
    fabric.hold(1)
    count = 0
    while not pauses(out):
        assert out.add(sample(1, size))
        count += 1
    assert count > min(node.HIGH_SAMPLES, node.HIGH_BYTES // size)
    assert not fabric.eased.is_set()
    fabric.let_go(1)
    assert fabric.eased.wait(BOUND)
    assert not pauses(out)
    flushed(out)
    out.drop()


# -- out, at first -----------------------------------------------------------------------------------------------------------


def early() -> tuple[Early, list[str], list[Sample]]:
    sought, written = list[str](), list[Sample]()
    return Early(sought.append, written.append), sought, written


def test_a_sample_without_a_subscriber_waits_for_one_and_holds_no_other_key_back() -> None:
    box, sought, written = early()
    first, other, second, third = (sample(key=key, size=size) for size, key in enumerate(("a", "b", "a", "a")))
    box.add(first)
    box.add(other)
    assert (sought, written) == (["a", "b"], [])
    box.told("a", has_subscriber=False)
    box.told("b", has_subscriber=True)
    box.add(second)
    assert (sought, written, box.count) == (["a", "b"], [other], 2)
    box.told("a", has_subscriber=True)
    box.add(third)
    assert (sought, written) == (["a", "b"], [other, first, second, third])
    assert (box.count, box.bytes) == (0, 0)


def test_samples_with_subscribers_keep_their_order_whichever_key_is_found_first() -> None:
    box, _, written = early()
    samples = [sample(key=key, size=size) for size, key in enumerate(("a", "b", "a", "b"))]
    for one in samples[:3]:
        box.add(one)
    box.told("b", has_subscriber=True)
    box.add(samples[3])
    assert written == []
    box.told("a", has_subscriber=True)
    assert written == samples


def test_the_answer_that_there_is_no_subscriber_may_come_after_the_subscriber() -> None:
    box, _, written = early()
    box.add(sample())
    box.told("up/a", has_subscriber=True)
    box.told("up/a", has_subscriber=False)
    box.add(sample())
    assert len(written) == 2


def test_all_that_waits_is_written_at_the_end() -> None:
    box, _, written = early()
    samples = [sample(key=key, size=size) for size, key in enumerate(("a", "b", "a"))]
    for one in samples:
        box.add(one)
    box.told("b", has_subscriber=False)
    box.end()
    assert sorted(written, key=samples.index) == samples
    assert (box.count, box.bytes) == (0, 0)


@pytest.mark.parametrize(
    ("count", "size", "key"), [(node.LANE_SAMPLES, 1, "a"), (2, node.MOST_BYTES // 2, "a"), (node.LANE_SAMPLES, 1, "{}")]
)
def test_what_waits_is_bounded_and_so_are_the_keys(count: int, size: int, key: str) -> None:
    box, _, _ = early()
    for number in range(count):
        assert not box.full
        box.add(sample(size=size, key=key.format(number)))
        if key == "{}":
            box.told(str(number), has_subscriber=True)
    assert box.full
