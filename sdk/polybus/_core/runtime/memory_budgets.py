"""Memory budgets: the bytes that the bus buffers for its peers, by owner and in total.

Everything that waits (requests, items, publications, messages before authentication) is charged here until it is released.

The quota of a network address, and of each of its links, is proportional to the square of the free fraction of the total. That
way nothing needs to be reserved or reclaimed: n peers that never release anything leave about 1/n of the total free. With a
quota proportional to the free fraction itself, twenty such peers would use up everything.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, Protocol

from attrs import define, field

from ..._util.listening import network_of

if TYPE_CHECKING:
    from ...limits import Limits
    from ...message import Message

LARGE: Final = 16 * 1024
"""Size in bytes above which the body of a running request is charged. `Limits.total_running` bounds the others."""

_MEMORY: Final = 60.0
"""Seconds after which the size of a large answer is forgotten."""
_FEW: Final = 8
"""Maximum number of a peer's requests that run, and don't wait for something, before the handler's first answer."""


class AnswerSizes:
    __slots__ = ("_until", "weight")

    def __init__(self) -> None:
        self.weight: int = -1
        """Size of the handler's largest recent answer, 0 if there was no large one, or -1 before the first answer."""
        self._until = math.inf

    def expect(self, most: int, now: float) -> tuple[int, float]:
        """Return the bytes to reserve for the next answer, given that a peer may use `most`, and until when that is valid."""
        if now >= self._until:
            self.weight = 0
        return (most // _FEW if self.weight < 0 else self.weight), self._until

    def learn(self, size: int, now: float) -> None:
        """Record the size of an answer. Only necessary if it is large or `weight` is not 0."""
        if size <= LARGE:
            self.weight = max(self.weight, 0)
        elif 2 * size >= self.weight:
            self.weight = max(size, self.weight)
            self._until = now + _MEMORY


OVERHEAD = 200
"""Bytes charged for a waiting message in addition to its body and headers."""

_LINKS: Final = 4
"""Ratio of the quotas of an address and a link, which are at most three fifths and a third of the total."""


def cost(message: Message) -> int:
    headers = message.headers
    size = OVERHEAD + (len(message.raw) if message.raw is not None else 0)
    return size + sum(map(len, headers.values())) if headers else size


def trim(message: Message) -> None:
    """Free the spare capacity of a large body before the message waits. Encoders allocate up to 1.5 times its size."""
    if message.raw is not None and len(message.raw) > LARGE:
        trimmed = bytes(memoryview(message.raw))
        if message.checked is message.raw:
            message.checked = trimmed
        message.raw = trimmed


@define(eq=False, repr=False, weakref_slot=False)
class Address:
    network: str = ""
    held: int = 0
    links: int = 0
    running: int = 0


@define(eq=False, repr=False, weakref_slot=False)
class Share:
    address: Address = field(factory=Address)
    held: int = 0

    def join(self, known: dict[str, Address], address: str) -> None:
        """Register a link with its address, which may include a port. Call this only once, before other methods."""
        network = network_of(address)
        self.address = known.setdefault(network, Address(network))
        self.address.links += 1

    def has_room(self, size: int, free: int, total: int) -> bool:
        """Return True if the link may use `size` more bytes, which would leave `free` bytes of the total."""
        if not free:
            return False
        # At most 4 * part**2 of the total for an address; for a link the square of what its address leaves of the part.
        part = free / total
        left = part - (self.address.held + size) / (_LINKS * free)
        return left > 0 and self.held + size <= left * left * total

    def leave(self, known: dict[str, Address]) -> None:
        """Unregister the link. Memory that is still in use, for example by running handlers, stays charged to its address."""
        address = self.address
        address.links -= 1
        if address.links:
            return
        if not (address.held or address.running):
            known.pop(address.network, None)
        else:  # remove other addresses that have become empty
            for gone in [other for other in known.values() if not (other.links or other.held or other.running)]:
                del known[gone.network]


class Ledger(Protocol):
    """The memory totals of a bus. Implemented by `Runtime`."""

    limits: Limits
    buffered: int
    addresses: dict[str, Address]


class MemoryBudget:
    """The memory of an owner, within its own limit, `Limits.total_bytes` and a parent budget.

    Args:
        ledger: The `Runtime` of the bus.
        limit: Maximum number of bytes.
        share: Quota of the link; None for memory of the application itself.
        part_of: Parent budget, which has the quota in this case.
    """

    __slots__ = ("_part_of", "_ledger", "_share", "held", "limit")

    def __init__(
        self, ledger: Ledger, limit: float = math.inf, share: Share | None = None, part_of: MemoryBudget | None = None
    ) -> None:
        self._ledger = ledger
        self._share = share
        self._part_of = part_of
        self.limit: float = limit
        self.held: int = 0

    def has_room(self, size: int) -> bool:
        """Return True if `size` more bytes fit. An empty budget accepts more than the owner's own limit."""
        if self.held and self.held + size > self.limit:
            return False
        if self._part_of is not None:
            return self._part_of.has_room(size)
        total = self._ledger.limits.total_bytes
        free = total - self._ledger.buffered - size
        return free >= 0 and (self._share is None or self._share.has_room(size, free, total))

    def hold(self, size: int) -> bool:
        """Charge `size` bytes. If they don't fit, return False without charging them."""
        if self._part_of is not None:
            if not self.has_room(size):
                return False
            self.charge(size)
            return True
        # The fast path, inlined because it runs for every waiting message.
        ledger, held = self._ledger, self.held + size
        buffered = ledger.buffered + size
        free = ledger.limits.total_bytes - buffered
        if free < 0 or (self.held and held > self.limit):
            return False
        share = self._share
        if share is not None:
            if not share.has_room(size, free, ledger.limits.total_bytes):
                return False
            share.held += size
            share.address.held += size
        self.held = held
        ledger.buffered = buffered
        return True

    def charge(self, size: int) -> None:
        """Charge `size` bytes, even if they don't fit."""
        self.held += size
        if self._part_of is not None:
            self._part_of.charge(size)
            return
        self._ledger.buffered += size
        if self._share is not None:
            self._share.held += size
            self._share.address.held += size

    def release(self, size: int) -> None:
        self.charge(-size)


class AddressBudget:
    """Memory of a client without a link. Implements `plugins.Reservation`."""

    __slots__ = ("_budget", "_addresses", "_share")

    def __init__(self, ledger: Ledger, address: str) -> None:
        self._addresses = ledger.addresses
        self._share = Share()
        self._share.join(self._addresses, address)
        self._budget = MemoryBudget(ledger, share=self._share)

    def hold(self, size: int) -> bool:
        return self._budget.hold(size)

    def give_back(self, size: int) -> None:
        self._budget.release(size)

    def release(self) -> None:
        self._budget.release(self._budget.held)
        self._share.leave(self._addresses)
