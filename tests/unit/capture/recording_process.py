"""A process that records its own traffic until it is killed; it counts sent messages in a file."""

import mmap
import os
import signal
import struct
import sys
from functools import partial
from typing import Any

import anyio

from polybus import Bus
from polybus.capture import RecorderStats
from polybus.capture.store.segments import END_OF_STREAM, SegmentWriter
from polybus.testing import pair
from tests.support import eventually

HELD_BACK = 4096 - 100


def end_after(last: int) -> None:
    """Kill this process with the byte `last` of what the recorder writes."""
    written, end = 0, len(END_OF_STREAM)
    put = SegmentWriter._put

    def putting(self: SegmentWriter, data: bytes) -> None:
        nonlocal written
        left, written = last - written, written + len(data) - end
        put(self, data if written < last else data[:left])
        if written >= last:
            os.kill(os.getpid(), signal.SIGKILL)

    SegmentWriter._put = putting  # type: ignore[method-assign]


def done(stats: RecorderStats) -> int:
    return stats.frames + stats.dropped


def keeps_up(recording: Any, frames: int) -> bool:
    """Whether the writer does, so that a kill costs what the docs say: two frames more, and no more than a batch is lost."""
    return frames - done(recording.stats()) <= HELD_BACK


async def main(folder: str, shared: mmap.mmap) -> None:
    bus = Bus()

    @bus.handle("echo")
    async def echo(body: int) -> int:
        return body

    async with pair(bus) as client:
        recording: Any = client.record(folder)
        await recording.__aenter__()
        print("it records", flush=True)
        for number in range(1, 1 << 40):
            assert await client.request("echo", number) == number
            # Two frames for each request, and both are in the recorder's hands by now.
            shared[:8] = struct.pack("<q", number)
            if not keeps_up(recording, 2 * number):
                await eventually(partial(keeps_up, recording, 2 * number))


if __name__ == "__main__":
    with open(sys.argv[2], "r+b") as file, mmap.mmap(file.fileno(), 16) as counter:
        if int(sys.argv[3]):
            end_after(int(sys.argv[3]))
        anyio.run(main, sys.argv[1], counter)
