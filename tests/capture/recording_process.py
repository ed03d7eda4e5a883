"""A process that records its own traffic until somebody kills it; it counts in a file what it has sent so far."""

from __future__ import annotations

import mmap
import resource
import signal
import struct
import sys

import anyio

from polybus import Bus
from polybus.testing import pair


async def main(folder: str, shared: mmap.mmap, limit: int) -> None:
    if limit:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    bus = Bus()

    @bus.handle("echo")
    async def echo(body: int) -> int:
        return body

    async with pair(bus) as client, client.record(folder):
        print("ready", flush=True)
        for number in range(1, 1 << 40):
            assert await client.request("echo", number) == number
            # Two frames for each request, and both are in the recorder's hands by now.
            shared[:8] = struct.pack("<q", number)
            if number % 8 == 0:
                await anyio.sleep(0.0005)  # as a server that waits for its peers now and then


if __name__ == "__main__":
    with open(sys.argv[2], "r+b") as file, mmap.mmap(file.fileno(), 16) as counter:
        anyio.run(main, sys.argv[1], counter, int(sys.argv[3]))
