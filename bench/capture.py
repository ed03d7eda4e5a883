"""What recording costs: processor time for each frame in a tight loop, and for each request of a busy bus.

``python -m bench.capture [--frames 1000000] [--requests 20000]``

The second is measured in one run: two clients of one server take turns of some tenths of a second, and only one of them is
recorded. The server and both ends of TCP run in the same process. ``more`` is what a request costs that process more when it is
recorded, ``with the writer`` the same with what the process costs that writes.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from typing import Any

import anyio

from polybus import Bus, connect
from polybus.capture import CaptureRecorder, make_recorder
from polybus.capture.rows import DIRECTION_OUT, FIELDS, MOST, RowHeader
from polybus.capture.writer.process import WriterProcess

ROUNDS = 5
PROTOCOLS = ("ubre", "csb", "jrep", "uprotocol")


def writer_time(recorder: CaptureRecorder) -> float:
    """Seconds of processor time of the process that writes."""
    writer = recorder._writer
    if not isinstance(writer, WriterProcess) or writer.pid is None:
        return 0.0
    return time.clock_gettime((~writer.pid << 3) | 2)  # clock_getcpuclockid(3) of Linux


def tight(frames: int, redact: Any) -> tuple[float, float, int]:
    """Frames for each second of processor time here, the same with that of the writer, and how many are on the disk."""
    with tempfile.TemporaryDirectory() as folder:
        recorder = make_recorder(folder, redact=redact)
        recorder.open()
        end = RowHeader(DIRECTION_OUT, "c-1", "127.0.0.1:9000", "ubre", "tcp", (), "{}")
        some = [b'{"request":"user.get","id":"x%d","body":{"id":%d,"name":"Ann of the north"}}' % (n, n) for n in range(1000)]
        rows, clock, enough = recorder.rows, time.monotonic_ns, recorder.enough * FIELDS
        began, writer_began = time.process_time(), writer_time(recorder)
        for number in range(frames):
            while len(rows) >= MOST:
                time.sleep(0.0005)  # the writer is behind: in a bus, frames would be dropped now
            rows.extend((end, clock(), some[number % 1000], None))
            if len(rows) == enough:
                recorder.wake()
        here = time.process_time() - began
        while recorder.stats().waiting:
            time.sleep(0.01)
        there = writer_time(recorder) - writer_began
        recorder.close()
        stats = recorder.stats()
        assert stats.dropped == 0
        return frames / here, frames / (here + there), stats.frames


async def written(recorder: CaptureRecorder) -> None:
    """The writer's work belongs to what caused it."""
    while recorder.stats().waiting:  # noqa: ASYNC110  # another process writes, and tells nobody here
        await anyio.sleep(0.01)


async def busy(protocol: str, requests: int, at_once: int) -> tuple[float, float, float]:
    """Microseconds of processor time for one that is not recorded, and what one costs more, without and with the writer."""
    subject = "//v/body/1/rpc.Get" if protocol == "uprotocol" else "user.get"
    server, plain, recorded = Bus(), Bus(), Bus()

    @server.handle(subject)
    async def get(body: Any) -> Any:
        return body

    async def burst(bus: Bus) -> tuple[float, float]:
        began, writer_began = time.process_time(), writer_time(recorder)
        for _ in range(requests // at_once):
            replies = [bus.request(subject, {"id": 7, "name": "Ann"}) for _ in range(at_once)]
            for reply in replies:
                await reply
        await written(recorder)
        here = time.process_time() - began
        return here, here + writer_time(recorder) - writer_began

    with tempfile.TemporaryDirectory() as folder:
        async with server.serve(f"{protocol}+tcp://127.0.0.1:0") as listener, connect(listener.url, bus=plain), recorded:
            async with recorded.record(folder) as recording, connect(listener.url, bus=recorded):
                recorder = recording.recorder
                for bus in (plain, recorded):
                    await burst(bus)
                rounds = [(await burst(plain), await burst(recorded)) for _ in range(ROUNDS)]
                assert recording.stats().dropped == 0
                assert recording.stats().frames > 2 * requests * ROUNDS
    without = statistics.median(here for (here, _), _ in rounds)
    more, with_writer = (statistics.median(burst[which] / here for (here, _), burst in rounds) for which in (0, 1))
    return without / requests * 1e6, more - 1, with_writer - 1


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument("--requests", type=int, default=20_000)
    given = parser.parse_args()
    print("| recorder in a tight loop | frames/s of processor time | with the writer | frames written |")
    print("| --- | --- | --- | --- |")
    for name, redact in (("secrets blanked", "default"), ("as it is", None)):
        here, both, frames = tight(given.frames, redact)
        print(f"| {name} | {here:,.0f} | {both:,.0f} | {frames:,} |", flush=True)
    print("\n| requests over TCP | at once | µs of processor time | more when recorded | with the writer |")
    print("| --- | --- | --- | --- | --- |")
    for at_once in (50, 1):
        for protocol in PROTOCOLS:
            without, more, both = anyio.run(busy, protocol, given.requests // (1 if at_once > 1 else 4), at_once)
            print(f"| {protocol} | {at_once} | {without:.1f} | {more:.0%} | {both:.0%} |", flush=True)


if __name__ == "__main__":
    main()
