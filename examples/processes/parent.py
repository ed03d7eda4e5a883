"""Starts helpers and sends them requests: over their standard streams, line by line, and over a pipe of `multiprocessing`."""

import multiprocessing
import subprocess
import sys
from pathlib import Path

import anyio
import anyio.to_thread
import child
from ports import PipePort, ProcessPort, StdioPort

from polybus import Disconnected, Limits, connect
from polybus.transports.postmessage import PortTransport

BARE = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    print(json.dumps({"success": asked["id"], "body": 2 * asked["body"]}), flush=True)
"""
"""A helper without polybus."""
PATIENT = Limits(handshake_timeout=60)
"""The start of a helper counts too, which may take a busy machine more than the usual 5 seconds."""


async def ask(how: str, port: ProcessPort) -> None:
    async with connect(PortTransport(port), protocol="ubre", limits=PATIENT) as bus:
        print(f"{how}: {await bus.request('double', 21)}, {await bus.request('length', 'ü' * 400_000)}")


async def main() -> None:
    program, quiet = str(Path(__file__).with_name("child.py")), subprocess.DEVNULL
    async with await anyio.open_process([sys.executable, program], stderr=quiet) as process:
        await ask("streams", StdioPort(process))
        print("the child has left with status", await process.wait())

    async with await anyio.open_process([sys.executable, "-c", BARE]) as process:
        port = PortTransport(StdioPort(process, lines=True), bare=True)
        async with connect(port, protocol="ubre") as bus:
            print("line by line:", await bus.request("double", 21))

    async with await anyio.open_process([sys.executable, program], stderr=quiet) as process:
        async with connect(PortTransport(StdioPort(process)), protocol="ubre", limits=PATIENT) as bus:
            process.kill()
            await process.wait()
            try:
                await bus.request("double", 21)
            except Disconnected as error:
                print("killed:", error.reason)

    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    helper = multiprocessing.get_context("spawn").Process(target=child.over_pipe, args=(theirs,))
    helper.start()
    theirs.close()
    await ask("pipe", PipePort(ours))
    await anyio.to_thread.run_sync(helper.join)
    print("the helper has left with status", helper.exitcode)


if __name__ == "__main__":
    anyio.run(main)
