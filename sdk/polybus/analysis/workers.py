"""Processes that decode: a capture of some size is decoded on all cores, since one Python decodes on one.

``python -m polybus.analysis.workers`` is such a process. It reads a line of JSON for each range, first one for all of them, and
answers each with a line. It ends with its input, so also when whoever has started it is killed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from threading import Event, Lock
from typing import IO, Any

import attrs

from polybus.capture.errors import CaptureError

from .ingest import IngestResult, take
from .ranges import Range, ReadPosition, ReadWindow
from .storage import Storage


def take_all(
    capture: str, out: str, staging: str, ranges: Sequence[Range], window: ReadWindow, count: int
) -> list[IngestResult]:
    """Decode ranges of a capture into files of the staging folder, by so many processes; by this one where it is one.

    Raises:
        CaptureError: A segment is gone; a process has ended.
        OSError: A file cannot be written.
    """
    if count < 2:
        storage = Storage(out)
        return [take(capture, storage, _place(staging, number), piece, window) for number, piece in enumerate(ranges)]
    waiting = iter(range(len(ranges)))
    over, lock = Event(), Lock()
    job = {"capture": capture, "out": out, "staging": staging, "window": attrs.asdict(window)}

    def following() -> int | None:
        with lock:
            return None if over.is_set() else next(waiting, None)

    def work() -> dict[int, IngestResult]:
        done = dict[int, IngestResult]()
        with _process() as (ask, answers):
            _send(ask, job)
            while (number := following()) is not None:
                _send(ask, {"number": number, **attrs.asdict(ranges[number])})
                done[number] = _result(answers.readline())
        return done

    with ThreadPoolExecutor(count) as pool:
        parts = [pool.submit(work) for _ in range(count)]
        try:
            wait(parts, return_when=FIRST_EXCEPTION)
        finally:
            over.set()  # where one has failed, or the user has interrupted it, the others stop after the range that they have
        found = dict(pair for part in parts for pair in part.result().items())
    return [found[number] for number in range(len(ranges))]


@contextmanager
def _process() -> Iterator[tuple[IO[str], IO[str]]]:
    command = [sys.executable, "-m", "polybus.analysis.workers"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            yield process.stdin, process.stdout
        except BaseException:
            process.kill()
            raise
        finally:
            with suppress(BrokenPipeError):  # with what it has not read any more
                process.stdin.close()


def _send(ask: IO[str], line: dict[str, Any]) -> None:
    with suppress(BrokenPipeError):  # it has ended: there is no answer either
        print(json.dumps(line), file=ask, flush=True)


def _result(line: str) -> IngestResult:
    if not line:
        raise CaptureError("a process that decodes has ended before its work was done, perhaps for want of memory: run again")
    given = json.loads(line)
    if "failed" in given:
        raise (OSError if given["system"] else CaptureError)(given["failed"])
    return IngestResult(**given)


def _place(staging: str, number: int) -> str:
    return f"{staging}/{number:06d}"


def main() -> None:
    """Work off the ranges that come in."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever has started it ends it
    job = json.loads(sys.stdin.readline() or "null")
    if job is None:
        return
    storage, window = Storage(job["out"]), ReadWindow(**job["window"])
    for line in sys.stdin:
        given = json.loads(line)
        piece = Range(ReadPosition(**given["start"]), given["stop"])
        try:
            answer = attrs.asdict(take(job["capture"], storage, _place(job["staging"], given["number"]), piece, window))
        except (CaptureError, OSError) as error:
            answer = {"failed": str(error), "system": isinstance(error, OSError)}
        try:
            print(json.dumps(answer), flush=True)
        except BrokenPipeError:  # whoever has started it was killed
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python tells of it once more at its end
            return


if __name__ == "__main__":
    main()
