"""The gateway of a ring, between the servers at two URLs."""

import json
import sys

import anyio

from polybus import Backoff, Bus, Route, bridge, connect
from tests.support import BOUND

SOON = Backoff(initial=0.01, maximum=0.05)
BOTH_WAYS = [Route("ring.>", "ring.{rest}"), Route("ring.>", "ring.{rest}", reverse=True)]


async def join(left_url: str, right_url: str) -> None:
    """Join two servers until the process is killed."""
    left, right = Bus(), Bus()
    async with (
        connect(left_url, bus=left, backoff=SOON, wait=BOUND),
        connect(right_url, bus=right, backoff=SOON, wait=BOUND),
        bridge(left, right, routes=BOTH_WAYS),
    ):
        print(json.dumps({"urls": []}), flush=True)
        await anyio.sleep_forever()


if __name__ == "__main__":
    anyio.run(join, *json.loads(sys.argv[1])["between"])
