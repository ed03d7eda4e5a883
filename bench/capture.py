"""What recording costs: processor time for each frame in a tight loop, and for each request of a busy bus.

``python -m bench.capture [--frames 1000000] [--requests 20000]``

The second is measured in one run: two clients of one server take turns of some tenths of a second, and only one of them is
recorded. Its column is what a request costs more, with the writing in its thread and all; the server and both ends of TCP run
in the same process.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from typing import Any

import anyio

from polybus import Bus, connect
from polybus.capture import make_recorder
from polybus.capture.schema import DIRECTION_OUT
from polybus.capture.taps import MOST, WAKE, End

ROUNDS = 5
PROTOCOLS = ("ubre", "csb", "jrep", "uprotocol")


def tight(frames: int, redact: Any) -> tuple[float, int]:
    """Frames for each second of processor time, and how many are on the disk."""
    with tempfile.TemporaryDirectory() as folder:
        recorder = make_recorder(folder, redact=redact)
        recorder.open()
        end = End(DIRECTION_OUT, "c-1", "127.0.0.1:9000", "ubre", "tcp", (), "{}")
        some = [b'{"request":"user.get","id":"x%d","body":{"id":%d,"name":"Ann of the north"}}' % (n, n) for n in range(1000)]
        rows, clock = recorder.rows, time.monotonic_ns
        began = time.process_time()
        for number in range(frames):
            while len(rows) >= MOST:
                time.sleep(0.0005)  # the thread is behind: in a bus, frames would be dropped now
            rows.extend((end, clock(), some[number % 1000], None))
            if len(rows) == WAKE:
                recorder.wake()
        recorder.close()
        stats = recorder.stats()
        assert stats.dropped == 0
        return frames / (time.process_time() - began), stats.frames


async def eventually_written(recording: Any) -> None:
    """The thread's work belongs to what caused it."""
    while True:
        await anyio.sleep(0.01)
        if not recording.stats().waiting:
            return


async def busy(protocol: str, requests: int, at_once: int) -> tuple[float, float]:
    """Microseconds of processor time for a request, without and with a recording: the medians of some rounds."""
    subject = "//v/body/1/rpc.Get" if protocol == "uprotocol" else "user.get"
    server, plain, recorded = Bus(), Bus(), Bus()

    @server.handle(subject)
    async def get(body: Any) -> Any:
        return body

    async def burst(bus: Bus) -> float:
        began = time.process_time()
        for _ in range(requests // at_once):
            replies = [bus.request(subject, {"id": 7, "name": "Ann"}) for _ in range(at_once)]
            for reply in replies:
                await reply
        await eventually_written(recording)
        return (time.process_time() - began) / requests * 1e6

    with tempfile.TemporaryDirectory() as folder:
        async with server.serve(f"{protocol}+tcp://127.0.0.1:0") as listener, connect(listener.url, bus=plain), recorded:
            async with recorded.record(folder) as recording, connect(listener.url, bus=recorded):
                for bus in (plain, recorded):
                    await burst(bus)
                pairs = [(await burst(plain), await burst(recorded)) for _ in range(ROUNDS)]
                assert recording.stats().dropped == 0
                assert recording.stats().frames > 2 * requests * ROUNDS
    without = statistics.median(one for one, _ in pairs)
    return without, without * statistics.median(other / one for one, other in pairs)


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument("--requests", type=int, default=20_000)
    given = parser.parse_args()
    print("| recorder in a tight loop | frames/s of processor time | frames written |\n| --- | --- | --- |")
    for name, redact in (("secrets blanked", "default"), ("as it is", None)):
        rate, written = tight(given.frames, redact)
        print(f"| {name} | {rate:,.0f} | {written:,} |")
    print("\n| requests over TCP | at once | µs of processor time | recorded | more |\n| --- | --- | --- | --- | --- |")
    for at_once in (50, 1):
        for protocol in PROTOCOLS:
            without, with_it = anyio.run(busy, protocol, given.requests // (1 if at_once > 1 else 4), at_once)
            print(f"| {protocol} | {at_once} | {without:.1f} | {with_it:.1f} | {with_it / without - 1:.0%} |")


if __name__ == "__main__":
    main()
