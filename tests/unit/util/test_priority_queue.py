"""Who goes first where some must wait: the most urgent, in order, and the others too."""

import random

import pytest

from polybus._util.priority_queue import PriorityQueue


def test_one_level_is_a_queue() -> None:
    queue: PriorityQueue[int] = PriorityQueue()
    for number in range(100):
        queue.append(number)
    assert list(queue) == list(range(100))
    assert [queue.popleft() for _ in range(100)] == list(range(100))
    with pytest.raises(IndexError):
        queue.popleft()


def test_the_urgent_overtake_and_keep_their_order() -> None:
    queue: PriorityQueue[str] = PriorityQueue()
    for number in range(3):
        queue.append(f"low{number}", 0)
    for number in range(3):
        queue.append(f"high{number}", 6)
    assert [queue.popleft() for _ in range(6)] == ["high0", "high1", "high2", "low0", "low1", "low2"]


def test_nobody_waits_for_ever() -> None:
    """While more and more urgent ones come, of eight that leave one is the oldest."""
    queue: PriorityQueue[tuple[int, int]] = PriorityQueue()
    for number in range(10):
        queue.append((0, number), 0)
        queue.append((3, number), 3)
    left = []
    for number in range(400):
        queue.append((6, number), 6)
        left.append(queue.popleft())
    places = {item: place for place, item in enumerate(left)}
    assert all((0, number) in places and (3, number) in places for number in range(10))
    for level in (0, 3, 6):
        mine = [item for item in left if item[0] == level]
        assert mine == sorted(mine)
    assert sum(item[0] == 6 for item in left) == 380


def test_some_are_taken_out() -> None:
    steps = random.Random(1)
    queue: PriorityQueue[tuple[int]] = PriorityQueue()
    items = [(number,) for number in range(50)]
    for item in items:
        queue.append(item, steps.randrange(3))
    queue.remove(items[7])
    queue.remove((50,))  # never was in it
    queue.retain(lambda item: item[0] % 2 == 0)
    assert len(queue) == 25
    assert sorted(item[0] for item in queue) == list(range(0, 50, 2))
    queue.retain(lambda item: False)
    assert not queue and list(queue) == []


def test_one_is_taken_out_from_anywhere_and_the_others_keep_their_order() -> None:
    queue: PriorityQueue[str] = PriorityQueue()
    for name in ("a", "b", "c"):
        queue.append(name)
    queue.append("urgent", 3)
    assert queue.remove("b")
    assert queue.remove("urgent")
    assert not queue.remove("b")
    assert len(queue) == 2
    assert [queue.popleft(), queue.popleft()] == ["a", "c"]
    assert not queue.remove("a")
