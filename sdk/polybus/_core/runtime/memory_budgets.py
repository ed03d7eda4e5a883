"""Memory budgets: bytes that the bus buffers for its peers, per owner and in total.

Everything that waits (requests, items, publications, messages before authentication) is charged here and released when it
leaves; no other code counts bytes.

No peer may take the whole total. The share of a network address, and of a link within it, falls with the square of the free
part. So nothing has to be reserved or reclaimed, even from peers that never release: n of them leave 1/n free. (A share
proportional to the free part would halve it each time, and use it up after twenty peers.)
"""

from __future__ import annotations

import ipaddress
import math
from typing import TYPE_CHECKING, Final, Protocol

from attrs import define, field

if TYPE_CHECKING:
    from ...limits import Limits
    from ...message import Message

LARGE: Final = 16 * 1024
"""Bytes: smaller bodies are not charged while their request runs, since `Limits.total_running` bounds them."""

_MEMORY: Final = 60.0
"""Seconds before a large answer is forgotten."""
_FEW: Final = 8
"""Concurrent requests of a peer before the handler's first answer, unless they wait."""


class AnswerSizes:
    __slots__ = ("_until", "weight")

    def __init__(self) -> None:
        self.weight: int = -1
        """Bytes of its largest recent answer, if large; 0 if none was; -1 before the first."""
        self._until = math.inf

    def expect(self, most: int, now: float) -> tuple[int, float]:
        """Bytes to reserve for the next answer, if a peer may use `most`, and until when that holds."""
        if now >= self._until:
            self.weight = 0
        return (most // _FEW if self.weight < 0 else self.weight), self._until

    def learn(self, size: int, now: float) -> None:
        """Record the size of an answer; needed if it is large or `weight` is not 0."""
        if size <= LARGE:
            self.weight = max(self.weight, 0)
        elif 2 * size >= self.weight:
            self.weight = max(size, self.weight)
            self._until = now + _MEMORY


OVERHEAD = 200
"""Bytes that a waiting message costs on top of its body and headers."""

_LINKS: Final = 4
"""Share of an address, in shares of a link: at most three fifths of the total, and a third for a link."""


def cost(message: Message) -> int:
    """Bytes that a message costs while it waits."""
    headers = message.headers
    size = OVERHEAD + (len(message.raw) if message.raw is not None else 0)
    return size + sum(map(len, headers.values())) if headers else size


def trim(message: Message) -> None:
    """Free an encoder's spare capacity behind a large body (up to 1.5 times as much) before the message waits."""
    if message.raw is not None and len(message.raw) > LARGE:
        trimmed = bytes(memoryview(message.raw))
        if message.checked is message.raw:
            message.checked = trimmed
        message.raw = trimmed


def network_of(address: str) -> str:
    """Network of an address: without the port; for IPv6 the /64, within which a host may choose freely."""
    host = address.rpartition(":")[0] or address
    if not host.startswith("["):
        return host
    try:
        found = ipaddress.IPv6Address(host.strip("[]").partition("%")[0])
    except ValueError:
        return host
    return str(found.ipv4_mapped or ipaddress.IPv6Network((found, 64), strict=False))


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
        """Register the link under its address (with port); once, first."""
        network = network_of(address)
        self.address = known.setdefault(network, Address(network))
        self.address.links += 1

    def has_room(self, size: int, free: int, total: int) -> bool:
        """Check that the link may hold `size` more, if `free` bytes of the total remain."""
        if not free:
            return False
        # At most 4 * part**2 of the total for an address; for a link the square of what its address leaves of the part.
        part = free / total
        left = part - (self.address.held + size) / (_LINKS * free)
        return left > 0 and self.held + size <= left * left * total

    def leave(self, known: dict[str, Address]) -> None:
        """Unregister the link. Memory still held, for example for running handlers, stays charged to its address."""
        address = self.address
        address.links -= 1
        if address.links:
            return
        if not (address.held or address.running):
            known.pop(address.network, None)
        else:  # other addresses may have become empty by now, too
            for gone in [other for other in known.values() if not (other.links or other.held or other.running)]:
                del known[gone.network]


class Ledger(Protocol):
    """The sums of one bus, implemented by its `Runtime`."""

    limits: Limits
    buffered: int
    addresses: dict[str, Address]


class MemoryBudget:
    """Bytes held for one owner, within its limit, `Limits.total_bytes` and a parent budget.

    Args:
        ledger: The bus's `Runtime`.
        limit: In bytes.
        share: Share of the link; None for bytes of the application itself.
        part_of: Parent budget, which has the share.
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
        """Check that `size` more fits. An empty owner may always hold one thing, within the total."""
        if self.held and self.held + size > self.limit:
            return False
        if self._part_of is not None:
            return self._part_of.has_room(size)
        total = self._ledger.limits.total_bytes
        free = total - self._ledger.buffered - size
        return free >= 0 and (self._share is None or self._share.has_room(size, free, total))

    def hold(self, size: int) -> bool:
        """Hold `size` more. False, holding nothing, if it does not fit."""
        if self._part_of is not None:
            if not self.has_room(size):
                return False
            self.charge(size)
            return True
        # The usual case, inlined: it runs for every waiting message.
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
        """Hold `size` more, even if it does not fit."""
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
    """Bytes held for a client without a link, limited like a link's. Implements `plugins.Reservation`."""

    __slots__ = ("_budget", "_addresses", "_share")

    def __init__(self, ledger: Ledger, address: str) -> None:
        self._addresses = ledger.addresses
        self._share = Share()
        self._share.join(self._addresses, address)
        self._budget = MemoryBudget(ledger, share=self._share)

    def hold(self, size: int) -> bool:
        """Hold `size` more. False, holding nothing more, if it does not fit."""
        return self._budget.hold(size)

    def give_back(self, size: int) -> None:
        self._budget.release(size)

    def release(self) -> None:
        """Release everything; once, at the end."""
        self._budget.release(self._budget.held)
        self._share.leave(self._addresses)
