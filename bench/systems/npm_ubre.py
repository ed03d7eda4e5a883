"""npm ubre in Node: as a client of our server, or at both ends. The Python process of such an end only starts it and waits."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from . import ours
from ._base import Client, Laps, Publisher, json_text
from ._needs import NODE_FOLDER

__all__ = ["connect", "serve"]

_LONGEST_LINE = 64 * 1024 * 1024


def _command(*arguments: str) -> list[str]:
    node = shutil.which("node")
    assert node is not None
    return [node, str(Path(__file__).with_suffix(".mjs")), str(NODE_FOLDER), *arguments]


async def serve(options: dict[str, Any], ready: Callable[[str], None]) -> None:
    if options["server"] == "node":
        # In the place of this process, so that it has its id, its pipes and its end; it says its URL itself.
        command = _command("server")
        os.execv(command[0], command)
    await ours.serve(options, ready)


class NodeClient(Publisher):
    """Tells the client in Node what to do, and for how long."""

    def __init__(self, process: asyncio.subprocess.Process, size: int) -> None:
        super().__init__(size)
        self.process = process

    async def tell(self, **command: Any) -> Any:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(command).encode() + b"\n")
        line = await self.process.stdout.readline()
        if not line:
            raise RuntimeError("the client in Node has ended")
        return json.loads(line)

    async def request(self) -> object:
        return await self.requests(1, 0.0)

    async def requests(self, in_flight: int, seconds: float) -> Laps:
        return Laps(**await self.tell(command="request", in_flight=in_flight, seconds=seconds))

    async def publish(self) -> None:
        await self.publications(0.0)

    async def publications(self, seconds: float) -> Laps:
        return Laps(**await self.tell(command="publish", seconds=seconds))

    async def counted(self, total: int) -> None:
        """Nothing: its publications have been counted when it says so."""


@asynccontextmanager
async def connect(options: dict[str, Any], url: str, size: int) -> AsyncIterator[Client]:
    command = _command("client", url.replace("ubre+", ""), json_text(size).decode())
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=_LONGEST_LINE
    )
    try:
        client = NodeClient(process, size)
        await client.tell(command="open")
        yield client
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
