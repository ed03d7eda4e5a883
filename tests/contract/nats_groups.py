"""Queue groups on a NATS network deliver each publication once, to the publisher's own members and to others."""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from functools import partial

from polybus import Bus
from tests.support import eventually

EACH = 40
GROUPS = {"workers": "orders.*", "audit": "orders.>"}


class Member:
    """One program with a handler in each of two groups on overlapping patterns, and one in none."""

    def __init__(self, bus: Bus, name: str) -> None:
        self.bus, self.name = bus, name
        self.heard: dict[str, Counter[str]] = {what: Counter() for what in (*GROUPS, "alone")}
        self.fences = Counter[str]()
        for group, pattern in GROUPS.items():
            bus.on(pattern, group=group)(partial(self._hear, group))
        bus.on("orders.placed")(partial(self._hear, "alone"))
        bus.on("fence", group=f"fence-{name}")(self._fence)  # over the network, also to the one that publishes it

    async def _hear(self, what: str, body: str) -> None:
        self.heard[what][body] += 1

    async def _fence(self, body: str) -> None:
        self.fences[body] += 1


async def each_is_for_one_member_of_a_group(
    members: Iterable[Member],
    *,
    foreign: dict[str, Counter[str]] | None = None,
    publish: Callable[[str, str], Awaitable[None]] | None = None,
    fenced: Callable[[], bool] = lambda: True,
) -> dict[str, Counter[str]]:
    """Let all members publish, and another program with `publish`; check what they, and another program, have heard.

    Returns:
        How often the members were chosen, for each group.
    """
    members = list(members)
    sent = [f"{member.name} {n}" for member in members for n in range(EACH)]
    for member in members:
        for n in range(EACH):
            await member.bus.publish("orders.placed", f"{member.name} {n}")
        await member.bus.publish("fence", member.name)
    if publish is not None:
        for n in range(EACH):
            await publish("orders.placed", f"foreign {n}")
        await publish("fence", "foreign")
        sent += [f"foreign {n}" for n in range(EACH)]
    fences = len(members) + (publish is not None)
    await eventually(lambda: all(sum(member.fences.values()) == fences for member in members) and fenced())
    chosen: dict[str, Counter[str]] = {}
    for group in GROUPS:
        shares = [member.heard[group] for member in members] + ([] if foreign is None else [foreign[group]])
        assert sum(shares, Counter()) == Counter(sent), group
        chosen[group] = Counter({member.name: member.heard[group].total() for member in members})
    for member in members:
        assert member.heard["alone"] == Counter(sent), member.name
        assert member.bus.stats().dropped == 0
    return chosen
