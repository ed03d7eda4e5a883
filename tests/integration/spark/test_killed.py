"""Whoever writes is killed, and everything is there once.

``POLYBUS_KILL_ROUNDS=20`` is for those who have the time; the seed is printed, ``POLYBUS_FAULT_SEED=`` takes it.
"""

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest

from polybus.analysis.ranges import ReadPosition, reach
from polybus.analysis.results import Output
from polybus.analysis.storage import TableStorage
from polybus.capture import Capture
from tests.support import eventually
from tests.unit.capture.generator import traffic

from .kills import ROOT, check, end_group

pytestmark = [pytest.mark.full, pytest.mark.timeout(3600)]

ROUNDS = int(os.environ.get("POLYBUS_KILL_ROUNDS", "6"))
SEED = int(os.environ.get("POLYBUS_FAULT_SEED", random.SystemRandom().randrange(1 << 32)))
WORKERS = ("CoarseGrainedExecutorBackend", "pyspark.daemon")
VICTIMS = ("worker", "decoder", "driver")
FRAMES = 3_000
"""Of a round: a segment."""
LONGEST = 600
"""Seconds until what is new is in the tables; three JVMs may have to start before."""


class Stream:
    """A stream over a capture on two workers, each with a JVM and Python of its own."""

    def __init__(self, capture: Path, out: Path) -> None:
        command = [sys.executable, "-m", "tests.integration.spark.kills", str(capture), str(out)]
        command += ["--rows", str(FRAMES // 3), "--master", "local-cluster[2,1,1024]", "--every", "500 milliseconds"]
        self.log = out.with_name(f"{out.name}.log").open("a")
        environment = {**os.environ, "SPARK_WORKER_DIR": str(out.parent)}
        self.process = subprocess.Popen(
            command, stdout=self.log, stderr=subprocess.STDOUT, text=True, cwd=ROOT, env=environment, start_new_session=True
        )

    def workers(self) -> list[psutil.Process]:
        """The executors, and what decodes for them."""
        try:
            children = psutil.Process(self.process.pid).children(recursive=True)
            return [one for one in children if any(name in " ".join(one.cmdline()) for name in WORKERS)]
        except psutil.Error:
            return []

    def end(self) -> None:
        if self.process.poll() is None:
            end_group(self.process)
        self.log.close()


def _until(condition: Callable[[], Any]) -> None:
    anyio.run(eventually, condition, LONGEST)


def _kill(victim: str, stream: Stream, decoder: subprocess.Popen[bytes], out: Path, chance: random.Random) -> bool:
    """Kill somebody at work, at a moment that nobody has chosen; True where it was there."""
    if victim == "decoder":
        _until(lambda: decoder.poll() is not None or list(out.with_name("capture").glob("*/.*")))
        time.sleep(chance.uniform(0, 0.05))
        hit = decoder.poll() is None
        decoder.kill()
        return hit
    _until(lambda: list(out.glob("_staging/*")) and (victim == "driver" or stream.workers()))
    time.sleep(chance.uniform(0, 1))
    if victim == "driver":
        stream.end()
        return True
    workers = stream.workers()
    if workers:
        chance.choice(workers).kill()
    return bool(workers)


def test_events_and_pairs_are_there_once_whoever_of_driver_worker_and_decoder_is_killed(tmp_path: Path) -> None:
    print(f"POLYBUS_FAULT_SEED={SEED}")
    chance, capture, out = random.Random(SEED), tmp_path / "capture", tmp_path / "out"
    made = traffic(ROUNDS * FRAMES, alike=False)
    whole = made.write(tmp_path / "whole", rows=250, segment_batches=FRAMES // 250)
    segments, hits = sorted(whole.iterdir()), list[str]()
    capture.mkdir()
    stream = Stream(capture, out)

    def is_read() -> bool:
        assert stream.process.poll() is None, Path(stream.log.name).read_text()[-3000:]
        last = Output(TableStorage(out)).last
        return last is not None and last.end >= reach(Capture(capture), ReadPosition())

    try:
        for number, segment in enumerate(segments):
            os.link(segment, capture / segment.name)
            decoder = subprocess.Popen([sys.executable, "-m", "polybus", "capture", "decode", str(capture)], cwd=ROOT)
            victim = VICTIMS[number % 3]
            if _kill(victim, stream, decoder, out, chance):
                hits.append(victim)
            if stream.process.poll() is not None:
                stream = Stream(capture, out)
            _until(is_read)
            assert decoder.wait(LONGEST) == 0 or victim == "decoder"
    finally:
        stream.end()
    assert len(hits) > ROUNDS // 2, hits
    assert check(capture, out) == sum(made.events.values())
    print(f"{sum(made.events.values())} events, each once, though these were killed: {hits}")
