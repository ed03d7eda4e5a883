"""A process that records its own requests, in segments of 64 KiB or a moment, decoded on the side, until it is killed.

``python -m tests.unit.capture.sealing_process FOLDER``; it prints a line at its start.
"""

import sys
from typing import Any

import anyio
from attrs import evolve

from polybus import Bus
from polybus.capture import CaptureRecorder, make_recorder
from polybus.testing import pair


async def main(folder: str) -> None:
    bus = Bus()

    @bus.handle("echo")
    async def echo(body: dict[str, Any]) -> Any:
        return body

    async with pair(bus) as client:
        recording: Any = client.record(folder)
        settings = evolve(make_recorder(folder, decode=True)._settings, segment_bytes=1 << 16, segment_seconds=0.2)
        recording.recorder = CaptureRecorder(settings)
        await recording.__aenter__()
        print("it records", flush=True)
        number = 0
        while True:
            number += 1
            assert await client.request("echo", {"number": number, "text": "x" * (number % 97)}) is not None
            if number % 50 == 0:
                await anyio.sleep(0.01)  # some thousand requests a second are enough


if __name__ == "__main__":
    anyio.run(main, sys.argv[1])
