"""Message ports to other processes: over standard input and output, and over a pipe of `multiprocessing`. Copy the parts you
need.

A port is any object with the methods of `polybus.transports.postmessage.MessagePort`.
"""

import os
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import connection as pipes
from queue import SimpleQueue
from typing import Any

import anyio
import anyio.from_thread
import anyio.to_thread
from anyio.abc import ByteStream, Process
from anyio.lowlevel import current_token
from anyio.streams.stapled import StapledByteStream

from polybus.transports.postmessage import PortInfo

TEXT = 0x8000_0000
"""Bit in the length of a message that marks text."""
LIMIT = 64 * 1024 * 1024
"""Bytes of the largest accepted message."""
BACKLOG = 8 * 1024 * 1024
"""Unwritten bytes; the acknowledgements of a polybus peer keep it lower."""
LAST_WORDS = 2.0
"""Seconds to write earlier messages at the end."""


class ProcessPort(ABC):
    """Callbacks of a port, and an end that is reported once."""

    def __init__(self, address: str) -> None:
        self.info: PortInfo = PortInfo(address=address)
        self._callback: Callable[[str | bytes], None] = lambda data: None
        self._on_close: Callable[[str], None] | None = None
        self._waiting = 0
        """Posted but unwritten bytes."""
        self._closed = False

    def on_message(self, callback: Callable[[str | bytes], None]) -> None:
        self._callback = callback

    def on_close(self, callback: Callable[[str], None]) -> None:
        self._on_close = callback

    def post(self, data: str | bytes) -> None:
        """Post a message without waiting. Ignored after the end."""
        if self._closed:
            return
        if self._waiting > BACKLOG:
            self.end(f"the other end does not read: {self._waiting} bytes wait")
            return
        frame = self.frame(data)
        self._waiting += len(frame)
        self.put(frame)

    def close(self) -> None:
        self._on_close = None
        self.end("the port was closed")

    def end(self, reason: str) -> None:
        if not self._closed:
            self._closed = True
            self.wake()
            if self._on_close is not None:
                self._on_close(reason)

    @abstractmethod
    def frame(self, data: str | bytes) -> bytes:
        """Bytes of a message."""

    @abstractmethod
    def put(self, frame: bytes) -> None:
        """Queue a frame for writing."""

    @abstractmethod
    def wake(self) -> None:
        """Wake `run` for the end."""

    @abstractmethod
    async def run(self) -> None:
        """Read and write until one of the two ends closes."""


class StdioPort(ProcessPort):
    """A port over the standard streams of a process of ``anyio.open_process(command)``, or, for None, of this one (POSIX).

    Other output of a child goes to its standard error, to keep it out of the messages.

    Args:
        lines: Each message is a line of text, for a peer that reads line by line. Otherwise four bytes with the length, big
            endian, precede it; the highest bit marks text.
    """

    def __init__(self, process: Process | None = None, *, lines: bool = False) -> None:
        super().__init__("stdio" if process is None else "process")
        if process is None:
            self._stream: Any = OwnStreams()
        else:
            assert process.stdin is not None and process.stdout is not None
            self._stream = StapledByteStream(process.stdin, process.stdout)
        self._lines = lines
        self._in = bytearray()
        self._out: list[bytes] = []
        self._news = anyio.Event()
        self._writing = anyio.CancelScope()

    def frame(self, data: str | bytes) -> bytes:
        content = data.encode(errors="replace") if isinstance(data, str) else data
        if not self._lines:
            return (len(content) | (TEXT if isinstance(data, str) else 0)).to_bytes(4, "big") + content
        if isinstance(data, bytes) or "\n" in data:
            raise ValueError("a line is text without line breaks")
        return content + b"\n"

    def put(self, frame: bytes) -> None:
        self._out.append(frame)
        self._news.set()

    def wake(self) -> None:
        self._writing.deadline = anyio.current_time() + LAST_WORDS
        self._news.set()

    async def run(self) -> None:
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._read)
                while not self._closed:
                    await self._news.wait()
                    self._news = anyio.Event()
                    await self._write()
                group.cancel_scope.cancel()
        finally:
            self._closed = True
            with anyio.CancelScope(shield=True):
                await self._write()
                await anyio.aclose_forcefully(self._stream)

    async def _write(self) -> None:
        """Messages leave whole: after a failed write nothing follows."""
        while self._out:
            out, self._out = b"".join(self._out), []
            with anyio.CancelScope(shield=True) as self._writing:
                if self._closed:
                    self._writing.deadline = anyio.current_time() + LAST_WORDS
                try:
                    await self._stream.send(out)
                except (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
                    self.end("the other end has closed its side")
            if self._writing.cancelled_caught:
                return
            self._waiting -= len(out)

    async def _read(self) -> None:
        with suppress(anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
            while True:
                self._in += await self._stream.receive(65536)
                while (message := self._message()) is not None:
                    self._callback(message)
                if len(self._in) > LIMIT:
                    self.end(f"a message of more than {LIMIT} bytes")
                    return
        self.end("the other end has closed its side")

    def _message(self) -> str | bytes | None:
        """Take the first message of the input if it is complete."""
        if self._lines:
            line, found, rest = self._in.partition(b"\n")
            if not found:
                return None
            self._in = rest
            return line.decode(errors="replace")
        head = int.from_bytes(self._in[:4], "big")
        end = 4 + (head & ~TEXT)
        if len(self._in) < max(4, end):
            return None
        content = bytes(self._in[4:end])
        del self._in[:end]
        return content.decode(errors="replace") if head & TEXT else content


class OwnStreams(ByteStream):
    """Standard input and output of this process, without threads."""

    def __init__(self) -> None:
        sys.stdout.flush()
        self._out = os.dup(1)
        os.dup2(2, 1)  # other output would be taken for messages
        os.set_blocking(self._out, False)

    async def receive(self, max_bytes: int = 65536) -> bytes:
        await anyio.wait_readable(0)
        if data := os.read(0, max_bytes):
            return data
        raise anyio.EndOfStream

    async def send(self, item: bytes) -> None:
        view = memoryview(item)
        while view:
            try:
                view = view[os.write(self._out, view) :]
            except BlockingIOError:
                await anyio.wait_writable(self._out)

    async def send_eof(self) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        os.close(self._out)


class PipePort(ProcessPort):
    """A port over one end of ``multiprocessing.Pipe()``; the other process has another one at the other end.

    Messages are bytes and never pickled. Two threads read and write, because such a pipe has only blocking calls.
    """

    def __init__(self, connection: Any) -> None:
        super().__init__("pipe")
        self._connection = connection
        self._out: SimpleQueue[bytes] = SimpleQueue()
        self._over = anyio.Event()

    def frame(self, data: str | bytes) -> bytes:
        return b"t" + data.encode(errors="replace") if isinstance(data, str) else b"b" + data

    def put(self, frame: bytes) -> None:
        self._out.put(frame)

    def wake(self) -> None:
        self._out.put(b"")
        self._over.set()

    async def run(self) -> None:
        woken, wake = pipes.Pipe(duplex=False)
        reader = threading.Thread(target=self._read, args=(woken, current_token()), daemon=True)
        writer = threading.Thread(target=self._write, daemon=True)
        reader.start()
        writer.start()
        try:
            await self._over.wait()
        finally:
            self.end("the bus was closed")
            wake.close()
            with anyio.CancelScope(shield=True):
                for thread in (reader, writer):
                    await anyio.to_thread.run_sync(thread.join, LAST_WORDS)
            woken.close()
            if not writer.is_alive():  # else the other end does not read, and loses the last messages
                self._connection.close()

    def _read(self, woken: Any, token: Any) -> None:
        with suppress(RuntimeError, anyio.RunFinishedError):  # the event loop is closed
            try:
                while woken not in pipes.wait([self._connection, woken]):
                    anyio.from_thread.run_sync(self._arrived, self._connection.recv_bytes(LIMIT), token=token)
            except (EOFError, OSError):
                anyio.from_thread.run_sync(self.end, "the other end has closed its side", token=token)

    def _write(self) -> None:
        with suppress(OSError):  # the reader finds out, too
            while frame := self._out.get():
                self._connection.send_bytes(frame)
                self._waiting -= len(frame)

    def _arrived(self, frame: bytes) -> None:
        if not self._closed:
            self._callback(frame[1:].decode(errors="replace") if frame[:1] == b"t" else frame[1:])
