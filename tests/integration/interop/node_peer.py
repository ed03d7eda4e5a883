"""npm ubre in a Node process, controlled by the test."""

import json
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

from tests.support import BOUND, free_port, missing

TEXT = 'text with "quotes", \u2028 and \U0001f600'
BODIES: list[Any] = [{"id": 7, "tags": ["a", None, True, 1.5]}, [], {}, TEXT, 0, -1.25, 2**53 - 1, False, ""]
"""What goes there and back unchanged, whoever sends it."""

_FOLDER = Path(__file__).parent / "node"
_LONGEST_LINE = 1024 * 1024


def require_node(*packages: str) -> None:
    """Skip the test where Node or its packages are not installed, those of ubre if none is named; in CI that is a failure."""
    if shutil.which("node") is None:
        missing("node is not installed")
    for package in packages or ("ubre", "ws", "ws8"):
        if not (_FOLDER / "node_modules" / package).is_dir():
            missing(f"the npm package {package} is not installed: make peers")


class Rejected(Exception):
    def __init__(self, value: Any) -> None:
        self.value = value
        super().__init__(value)


class NodePeer:
    """One Node process; see ``node/peer.mjs`` and ``node/nats.mjs`` for its commands."""

    def __init__(self, process: Process) -> None:
        self._process = process
        assert process.stdin is not None and process.stdout is not None
        self._commands = process.stdin
        self._lines = BufferedByteReceiveStream(process.stdout)
        self._reading = anyio.Lock()
        self._number = 0
        self._outcomes: dict[int, dict[str, Any]] = {}
        self._events: list[dict[str, Any]] = []
        self.port = 0

    @property
    def url(self) -> str:
        return f"ubre+ws://127.0.0.1:{self.port}/"

    async def tell(self, command: str, **facts: Any) -> Any:
        """Give a command and wait for what comes of it."""
        self._number = number = self._number + 1
        await self._commands.send(json.dumps({"n": number, "command": command, **facts}).encode() + b"\n")
        with anyio.fail_after(BOUND):
            while number not in self._outcomes:
                await self._read(lambda: number in self._outcomes)
        outcome = self._outcomes.pop(number)
        if "error" in outcome:
            raise Rejected(outcome["error"])
        return outcome["value"]

    async def event(self, name: str) -> dict[str, Any]:
        with anyio.fail_after(BOUND):
            while True:
                for event in self._events:
                    if event["event"] == name:
                        self._events.remove(event)
                        return event
                seen = len(self._events)
                await self._read(lambda: len(self._events) > seen)  # noqa: B023  # called before `seen` changes

    async def _read(self, done: Callable[[], bool]) -> None:
        """One line; of several tasks that wait, one reads for all."""
        async with self._reading:
            if done():
                return
            try:
                line = json.loads(await self._lines.receive_until(b"\n", _LONGEST_LINE))
            except (anyio.IncompleteRead, anyio.EndOfStream):
                raise AssertionError("the Node process has ended; its words are above") from None
        if "event" in line:
            self._events.append(line)
        else:
            self._outcomes[line["n"]] = line

    async def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
        with anyio.fail_after(BOUND):
            await self._process.wait()


@asynccontextmanager
async def _running(*arguments: str, program: str = "peer.mjs") -> AsyncIterator[NodePeer]:
    process = await anyio.open_process(["node", program, *arguments], cwd=_FOLDER, stderr=None)
    peer = NodePeer(process)
    try:
        peer.port = (await peer.event("ready")).get("port", 0)
        yield peer
    finally:
        with anyio.CancelScope(shield=True):
            await peer.kill()
            await process.aclose()


def node_client(ws: str, url: str) -> AbstractAsyncContextManager[NodePeer]:
    """A client of our server, connected when the block is entered."""
    require_node()
    return _running("client", ws, url.removeprefix("ubre+"))


def node_server(ws: str, port: int | None = None) -> AbstractAsyncContextManager[NodePeer]:
    """A server for our client, listening when the block is entered; at its port another one may take its place."""
    require_node()
    return _running("server", ws, str(port or free_port()))


def node_nats(address: str) -> AbstractAsyncContextManager[NodePeer]:
    """A client of a NATS server, connected when the block is entered."""
    require_node("@nats-io/transport-node")
    return _running(address, program="nats.mjs")
