"""Who goes first where some must wait: the most urgent, in order, and the others too."""

import random

import pytest

from polybus._util.priority_queue import PriorityQueue


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


@pytest.mark.parametrize("levels", [1, 3])
def test_items_leave_by_level_and_in_order_whatever_else_is_taken_out(levels: int) -> None:
    steps, queue, items = random.Random(1), PriorityQueue[int](), list[tuple[int, int]]()
    for number in range(50):
        items.append((-steps.randrange(levels), number))
        queue.append(number, -items[-1][0])
    queue.append(99, 9)
    assert queue.remove(99) and queue.remove(7) and not queue.remove(7) and not queue.remove(50)
    for number in range(1, 49, 2):
        assert queue.remove(number) == (number != 7)
    left = [number for _, number in sorted(items) if number != 7 and (number % 2 == 0 or number == 49)]
    assert (list(queue), len(queue)) == (left, 26)
    assert [queue.popleft() for _ in range(7)] == left[:7]  # the eighth is the oldest
    for number in left[7:]:
        assert queue.remove(number)
    assert not queue and list(queue) == []
    with pytest.raises(IndexError):
        queue.popleft()
