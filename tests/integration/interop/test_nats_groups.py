"""Groups at real NATS servers: the publisher's own members, those of other polybus programs, and nats-py."""

from collections import Counter
from contextlib import AsyncExitStack
from typing import Any

from polybus import Bus, connect
from tests.contract.nats_groups import GROUPS, Member, each_is_for_one_member_of_a_group

from .nats_py_peer import Msg, NatsPy, nats_py
from .nats_servers import NatsServer


async def _join(theirs: NatsPy) -> tuple[dict[str, Counter[str]], list[Msg]]:
    """Let nats-py join the groups, and listen outside of them."""
    heard: dict[str, Counter[str]] = {group: Counter() for group in GROUPS}

    def into(counter: Counter[str]) -> Any:
        async def count(message: Msg) -> None:
            counter[message.data.decode().strip('"')] += 1

        return count

    for group, pattern in GROUPS.items():
        await theirs.subscribe(pattern, into(heard[group]), queue=group)
    return heard, await theirs.subscribe("fence")


async def test_one_member_of_a_group_gets_each_publication_whoever_publishes(server: NatsServer) -> None:
    async with AsyncExitStack() as stack:
        ours = [Member(Bus(), "own"), Member(Bus(), "other")]
        for member in ours:
            await stack.enter_async_context(connect(server.url, bus=member.bus))
        theirs = await stack.enter_async_context(nats_py(server.address))
        heard, fences = await _join(theirs)

        async def publish(subject: str, body: str) -> None:
            await theirs.publish(subject, f'"{body}"'.encode())

        chosen = await each_is_for_one_member_of_a_group(
            ours, foreign=heard, publish=publish, fenced=lambda: len(fences) == len(ours) + 1
        )
        assert all(heard.values())
        assert all(chosen[group][member.name] for group in GROUPS for member in ours)
