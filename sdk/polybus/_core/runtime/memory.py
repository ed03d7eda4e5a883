"""Memory budgets: bytes that the bus keeps for its peers, one budget for each owner, and one total over all.

All that waits (requests, items, publications, messages before authentication) is held here and released where it goes; nothing
else counts bytes.

The total is shared out: a peer that floods the bus must not take all of it. The share of one network address, and within that
of one of its links, falls with the square of what is left. So nothing has to be reserved, counted or taken back, even from
those that never let go: n of them leave an n-th part free, and to the next one a part of that which falls with n squared.
(Were it in proportion to what is left, each would leave half, and after twenty nothing would be left.)
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
"""Bytes: a smaller body is neither foreseen nor charged while its request runs, since `Limits.total_running` bounds it."""

_MEMORY: Final = 60.0
"""Seconds for which a large answer is remembered."""
_FEW: Final = 8
"""Requests of a peer that run at the same time before their handler has given its very first answer, unless they wait."""


class AnswerSizes:
    """The sizes of the answers that one handler has given lately."""

    __slots__ = ("_until", "weight")

    def __init__(self) -> None:
        self.weight: int = -1
        """Bytes that its answers lately had at most, if they were large; 0 if not; -1 as long as there was none."""
        self._until = math.inf

    def expect(self, most: int, now: float) -> tuple[int, float]:
        """Tell the bytes to set aside for the next answer, where a peer may have `most` in all, and how long that is right."""
        if now >= self._until:
            self.weight = 0
        return (most // _FEW if self.weight < 0 else self.weight), self._until

    def learn(self, size: int, now: float) -> None:
        """Learn the size of an answer. To be called where it is large, or `weight` is not 0."""
        if size <= LARGE:
            self.weight = max(self.weight, 0)
        elif 2 * size >= self.weight:
            self.weight = max(size, self.weight)
            self._until = now + _MEMORY


OVERHEAD = 200
"""Bytes that a waiting message costs besides its body and headers."""

_LINKS: Final = 4
"""The share of an address, in shares of a link: at most three fifths of the total, and a third for a link."""


def cost(message: Message) -> int:
    """Count the bytes that a message costs while it waits."""
    headers = message.headers
    size = OVERHEAD + (len(message.raw) if message.raw is not None else 0)
    return size + sum(map(len, headers.values())) if headers else size


def trim(message: Message) -> None:
    """Give back what an encoder has left beyond a large body: up to one and a half times as much. The message is to wait."""
    if message.raw is not None and len(message.raw) > LARGE:
        trimmed = bytes(memoryview(message.raw))
        if message.checked is message.raw:
            message.checked = trimmed
        message.raw = trimmed


def network_of(address: str) -> str:
    """Reduce an address to its network: without the port, and of IPv6 the /64, in which a host has as many as it likes."""
    host = address.rpartition(":")[0] or address
    if not host.startswith("["):
        return host
    try:
        found = ipaddress.IPv6Address(host.strip("[]").partition("%")[0])
    except ValueError:
        return host
    return str(found.ipv4_mapped or ipaddress.IPv6Network((found, 64), strict=False))


@define(eq=False, weakref_slot=False)
class Address:
    """The memory and places of all links of a network address."""

    network: str = ""
    held: int = 0
    links: int = 0
    running: int = 0
    """Places that its requests have taken."""


@define(eq=False, weakref_slot=False)
class Share:
    """The memory of an accepted link."""

    address: Address = field(factory=Address)
    held: int = 0

    def join(self, known: dict[str, Address], address: str) -> None:
        """Enter the address of the link, with its port, among all that have links or keep something. Called once, at first."""
        network = network_of(address)
        self.address = known.setdefault(network, Address(network))
        self.address.links += 1

    def has_room(self, size: int, free: int, total: int) -> bool:
        """Check that the link may hold so much more, when `free` of the total are left then."""
        if not free:
            return False
        # The square of the free part for a link, and four times that for its address: of which the free part again, squared.
        part = free / total
        left = part - (self.address.held + size) / (_LINKS * free)
        return left > 0 and self.held + size <= left * left * total

    def leave(self, known: dict[str, Address]) -> None:
        """End: the link is over. Memory that is still kept, as for handlers that have not stopped, counts for its address."""
        address = self.address
        address.links -= 1
        if address.links:
            return
        if not (address.held or address.running):
            known.pop(address.network, None)
        else:  # so do others perhaps, for which nothing is kept by now
            for gone in [other for other in known.values() if not (other.links or other.held or other.running)]:
                del known[gone.network]


class Ledger(Protocol):
    """The sums of one bus. Its `Runtime` has them."""

    limits: Limits
    buffered: int
    """Bytes of all budgets."""
    addresses: dict[str, Address]
    """Network addresses of the accepted links."""


class MemoryBudget:
    """Bytes that are kept for one owner, within its own limit, within `Limits.total_bytes` and, where it is part of another
    budget, within that one.

    Args:
        ledger: The bus's `Runtime`.
        limit: In bytes.
        share: The link's that they are kept for; None where this application itself is the cause.
        part_of: Another budget, which has the share.
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
        """Check that so much more fits. An owner that keeps nothing may always keep one thing, as far as the total allows."""
        if self.held and self.held + size > self.limit:
            return False
        if self._part_of is not None:
            return self._part_of.has_room(size)
        total = self._ledger.limits.total_bytes
        free = total - self._ledger.buffered - size
        return free >= 0 and (self._share is None or self._share.has_room(size, free, total))

    def hold(self, size: int) -> bool:
        """Keep so much more. False, and nothing is kept, if it does not fit."""
        if self._part_of is not None:
            if not self.has_room(size):
                return False
            self.charge(size)
            return True
        # The usual case, in one piece: this is done for every message that waits.
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
        """Keep so much more, whether it fits or not."""
        self.held += size
        if self._part_of is not None:
            self._part_of.charge(size)
            return
        self._ledger.buffered += size
        if self._share is not None:
            self._share.held += size
            self._share.address.held += size

    def release(self, size: int) -> None:
        """Keep so much less."""
        self.charge(-size)


class AddressBudget:
    """Bytes that are kept for a client without a link, as if it had one. Implements `plugins.Reservation`."""

    __slots__ = ("_budget", "_addresses", "_share")

    def __init__(self, ledger: Ledger, address: str) -> None:
        self._addresses = ledger.addresses
        self._share = Share()
        self._share.join(self._addresses, address)
        self._budget = MemoryBudget(ledger, share=self._share)

    def hold(self, size: int) -> bool:
        """Keep so much more. False, and nothing more is kept, if it does not fit."""
        return self._budget.hold(size)

    def give_back(self, size: int) -> None:
        """Keep so much less."""
        self._budget.release(size)

    def release(self) -> None:
        """Keep nothing any more. To be called once, at the end."""
        self._budget.release(self._budget.held)
        self._share.leave(self._addresses)
