"""A line in which nobody waits for all that others have asked for: its turns go round."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Generic, TypeVar

T = TypeVar("T")


class Line(Generic[T]):
    """One of each network address comes next, and of each of its peers; the calls of one peer keep their order."""

    def __init__(self) -> None:
        self._addresses: OrderedDict[object, OrderedDict[object, deque[T]]] = OrderedDict()
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def append(self, one: T, party: tuple[object, object]) -> None:
        """Let one wait. Its party is a network address, and one of its peers."""
        address, peer = party
        self._addresses.setdefault(address, OrderedDict()).setdefault(peer, deque()).append(one)
        self._size += 1

    def remove(self, one: T, party: tuple[object, object]) -> bool:
        """Take one out that waits. False where it does not."""
        address, peer = party
        peers = self._addresses.get(address)
        queue = None if peers is None else peers.get(peer)
        if queue is None or one not in queue:
            return False
        queue.remove(one)
        self._size -= 1
        self._tidy(address, peer)
        return True

    def pop(self) -> T:
        """Take the next one out. May raise `StopIteration`: nobody waits."""
        address, peers = next(iter(self._addresses.items()))
        peer, queue = next(iter(peers.items()))
        one = queue.popleft()
        self._size -= 1
        peers.move_to_end(peer)
        self._addresses.move_to_end(address)
        self._tidy(address, peer)
        return one

    def _tidy(self, address: object, peer: object) -> None:
        peers = self._addresses[address]
        if not peers[peer]:
            del peers[peer]
        if not peers:
            del self._addresses[address]
