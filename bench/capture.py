"""What recording costs: processor time for each frame in a tight loop, and for each request of a busy bus.

``python -m bench.capture [--frames 1000000] [--requests 4000]``

The second is measured in one run, in turns of some tenths of a second: two clients of one server, only one of them recorded,
and that one again while a process decodes a capture, as it does beside a recording. That process stands still in the other
turns. The server and both ends of TCP run in the same process. ``more`` is what a request costs that process more when it is
recorded; ``clock`` is how much longer it takes.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import statistics
import tempfile
import time
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import anyio
from attrs import frozen

from polybus import Bus, connect
from polybus.capture import CaptureRecorder, make_recorder
from polybus.capture.columns.places import TABLES
from polybus.capture.columns.process import DecodingProcess
from polybus.capture.rows import DIRECTION_OUT, FIELDS, MOST, RowHeader
from polybus.capture.store.segments import SegmentWriter
from tests.unit.capture.generator import traffic

ROUNDS = 25
PROTOCOLS = ("ubre", "csb", "jrep", "uprotocol")


def tight(frames: int, redact: Any) -> tuple[float, int]:
    """Frames for each second of processor time, and how many are on the disk."""
    with tempfile.TemporaryDirectory() as folder:
        recorder = make_recorder(folder, redact=redact)
        recorder.open()
        end = RowHeader(DIRECTION_OUT, "c-1", "127.0.0.1:9000", "ubre", "tcp", (), "{}")
        some = [b'{"request":"user.get","id":"x%d","body":{"id":%d,"name":"Ann of the north"}}' % (n, n) for n in range(1000)]
        rows, clock, enough = recorder.rows, time.monotonic_ns, recorder.enough * FIELDS
        began = time.process_time()
        for number in range(frames):
            while len(rows) >= MOST:
                time.sleep(0.0005)  # the writer is behind: in a bus, frames would be dropped now
            rows.extend((end, clock(), some[number % 1000], None))
            if len(rows) == enough:
                recorder.wake()
        while recorder.stats().waiting:
            time.sleep(0.01)
        here = time.process_time() - began
        recorder.close()
        stats = recorder.stats()
        assert stats.dropped == 0
        return frames / here, stats.frames


async def written(recorder: CaptureRecorder) -> None:
    """The writer's work belongs to what caused it."""
    while recorder.stats().waiting:  # noqa: ASYNC110  # its thread tells nobody
        await anyio.sleep(0.01)


class Decoder:
    """Decodes a capture again and again in another process, within its blocks only."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        for number, rows in enumerate(traffic(200_000).batches(1 << 16)):
            segment = SegmentWriter(folder, number)
            segment.write(rows, rows.column("seq")[0].as_py())
            segment.seal()
        self._process: DecodingProcess | None = None
        self.begin()

    def begin(self) -> None:
        """Begin anew, and stand still."""
        if self._process is not None:
            self._process.stop()
        for table in TABLES:
            shutil.rmtree(f"{self._folder}/{table}", ignore_errors=True)
        self._process = DecodingProcess(self._folder)
        self._process.ask()
        self._process.turn()
        while not os.path.exists(f"{self._folder}/events"):
            time.sleep(0.01)
        self._signal(signal.SIGSTOP)

    def _signal(self, number: int) -> bool:
        assert self._process is not None
        self._process.turn()
        if self._process.pid is not None:
            os.kill(self._process.pid, number)
        return self._process.pid is not None

    def __enter__(self) -> None:
        if not self._signal(signal.SIGCONT):
            self.begin()
            self._signal(signal.SIGCONT)

    def __exit__(self, *_: object) -> None:
        self._signal(signal.SIGSTOP)

    def end(self) -> None:
        """End the process."""
        self._signal(signal.SIGCONT)
        assert self._process is not None
        self._process.stop()


@frozen
class Burst:
    """Seconds of a burst of requests: of the processor, and of the clock."""

    own: float
    clock: float


async def busy(protocol: str, requests: int, at_once: int, decoder: Decoder) -> list[str]:
    """Microseconds of processor time for a request that is not recorded, and what one costs more."""
    subject = "//v/body/1/rpc.Get" if protocol == "uprotocol" else "user.get"
    server, plain, recorded = Bus(), Bus(), Bus()

    @server.handle(subject)
    async def get(body: Any) -> Any:
        return body

    async def burst(bus: Bus, around: AbstractContextManager[None]) -> Burst:
        with around:
            began, clock = time.process_time(), time.perf_counter()
            for _ in range(requests // at_once):
                replies = [bus.request(subject, {"id": 7, "name": "Ann"}) for _ in range(at_once)]
                for reply in replies:
                    await reply
            clock = time.perf_counter() - clock
            await written(recorder)
            return Burst(time.process_time() - began, clock)

    with tempfile.TemporaryDirectory() as folder:
        async with server.serve(f"{protocol}+tcp://127.0.0.1:0") as listener, connect(listener.url, bus=plain), recorded:
            async with recorded.record(folder) as recording, connect(listener.url, bus=recorded):
                recorder: Any = recording.recorder
                turns = ((plain, nullcontext()), (recorded, nullcontext()), (recorded, decoder))
                rounds = [[await burst(*turn) for turn in turns] for _ in range(ROUNDS + 1)][1:]
                assert recording.stats().dropped == 0
                assert recording.stats().frames > 4 * requests * ROUNDS
    cells = [f"{statistics.median(one[0].own for one in rounds) / requests * 1e6:.1f}"]
    for turn in (1, 2):
        for part in ("own", "clock"):
            ratios = [getattr(one[turn], part) / getattr(one[0], part) for one in rounds]
            cells.append(f"{statistics.median(ratios) - 1:.0%}")
    return cells


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument("--requests", type=int, default=4_000)
    parser.add_argument("--protocols", default=",".join(PROTOCOLS))
    given = parser.parse_args()
    print("| recorder in a tight loop | frames/s of processor time | frames written |")
    print("| --- | --- | --- |")
    for name, redact in (("secrets blanked", "default"), ("as it is", None)):
        here, frames = tight(given.frames, redact)
        print(f"| {name} | {here:,.0f} | {frames:,} |", flush=True)
    print("\n| requests over TCP | at once | µs | recorded: more | clock | beside decoding: the same | |")
    print("|" + " --- |" * 7)
    with tempfile.TemporaryDirectory() as folder:
        decoder = Decoder(folder)
        for at_once in (50, 1):
            for protocol in given.protocols.split(","):
                cells = anyio.run(busy, protocol, given.requests // (1 if at_once > 1 else 4), at_once, decoder)
                print(f"| {' | '.join((protocol, str(at_once), *cells))} |", flush=True)
        decoder.end()


if __name__ == "__main__":
    main()
