"""Ports over a byte stream: the standard input and output of a child process.

Two framings. ``length``: four bytes, big endian, then the message; the highest bit says that it is text. ``lines``: each
line is a message in UTF-8, for peers that read line by line; it carries text without line breaks alone.
"""

from __future__ import annotations

import math
import os
import stat
import sys
from typing import Any, Final, Literal

import anyio
import anyio.lowlevel
from anyio.abc import ByteStream, Process
from anyio.streams.stapled import StapledByteStream

from ...errors import LocalProtocolError
from ._port import PortData, ProcessPort, as_text

_TEXT: Final = 0x8000_0000
_CHUNK: Final = 64 * 1024
_BACKLOG: Final = 8 * 1024 * 1024
"""Bytes that may wait to be written; a peer of ours asks for less by its acknowledgements."""
_LIMIT: Final = 64 * 1024 * 1024
_LAST_WORDS: Final = 2.0
"""Seconds for what was posted before `close`."""


class _Lengths:
    """Messages to bytes and back. `feed` may raise `ValueError`: a message is too large."""

    def __init__(self, limit: int) -> None:
        self._buffer = bytearray()
        self._limit = limit

    def frame(self, data: PortData) -> bytes:
        content, mark = (data.encode("utf-8", "surrogatepass"), _TEXT) if isinstance(data, str) else (data, 0)
        return (len(content) | mark).to_bytes(4, "big") + content

    def feed(self, data: bytes) -> list[PortData]:
        buffer, found, at = self._buffer, list[PortData](), 0
        buffer += data
        while len(buffer) - at >= 4:
            head = int.from_bytes(buffer[at : at + 4], "big")
            size = head & ~_TEXT
            if size > self._limit:
                raise ValueError(f"a message of {size} bytes, the limit is {self._limit}")
            if len(buffer) - at - 4 < size:
                break
            content = bytes(buffer[at + 4 : at + 4 + size])
            found.append(as_text(content) if head & _TEXT else content)
            at += 4 + size
        del buffer[:at]
        return found


class _Lines:
    """The same. `frame` may raise `LocalProtocolError`: it cannot be carried."""

    def __init__(self, limit: int) -> None:
        self._parts: list[bytes] = []
        self._size = 0
        self._limit = limit

    def frame(self, data: PortData) -> bytes:
        if not isinstance(data, str) or "\n" in data:
            raise LocalProtocolError("framing='lines' carries text without line breaks: say framing='length'", protocol="port")
        return data.encode("utf-8", "surrogatepass") + b"\n"

    def feed(self, data: bytes) -> list[PortData]:
        *ended, rest = data.split(b"\n")
        found: list[PortData] = []
        for part in ended:
            line = b"".join((*self._parts, part)).removesuffix(b"\r")
            self._parts, self._size = [], 0
            if len(line) > self._limit:
                raise ValueError(f"a line of {len(line)} bytes, the limit is {self._limit}")
            if line:
                found.append(as_text(line))
        if rest:
            self._parts.append(rest)
            self._size += len(rest)
            if self._size > self._limit:
                raise ValueError(f"a line of more than {self._limit} bytes")
        return found


class StdioPort(ProcessPort):
    """A port over the standard input and output of a process.

    In the parent it takes the `anyio.abc.Process` of ``anyio.open_process(command)``; closing the port closes both streams,
    which a child takes for the end. In the child it takes nothing: it uses the process's own, and what the program prints goes
    to the standard error meanwhile, because it would not be understood.

    Args:
        process: The child; or any `anyio.abc.ByteStream`; None for our own standard streams (POSIX).
        framing: ``length``, or ``lines`` for a peer that reads line by line.
        limit: The largest message in bytes.

    Raises:
        ValueError: Another framing.
        TypeError: Neither a process with pipes nor a stream.
    """

    def __init__(
        self,
        process: Process | ByteStream | None = None,
        *,
        framing: Literal["length", "lines"] = "length",
        limit: int = _LIMIT,
    ) -> None:
        if framing not in ("length", "lines"):
            raise ValueError(f"framing={framing!r}: 'length' or 'lines'")
        super().__init__("stdio" if process is None else "process")
        self._stream = _stream_of(process)
        self._framing = _Lengths(limit) if framing == "length" else _Lines(limit)
        self._out: list[bytes] = []
        self._backlog = 0
        self._writing = anyio.CancelScope()
        self._cut = False
        """True if something may have been written in part: then nothing can follow."""
        self._news = anyio.Event()

    def post(self, data: PortData) -> None:
        """Hand over a message without waiting.

        Raises:
            LocalProtocolError: The framing cannot carry it.
        """
        if self._closed:
            return
        framed = self._framing.frame(data)
        self._out.append(framed)
        self._backlog += len(framed)
        if self._backlog > _BACKLOG + len(framed):
            self._out = []
            self._end(f"the other end does not read: {self._backlog} bytes wait")
        self._news.set()

    def _wake(self) -> None:
        if self._cut:
            self._writing.deadline = anyio.current_time() + _LAST_WORDS
        self._news.set()

    async def run(self) -> None:
        """Read and write until one of the two ends closes."""
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._read, group.cancel_scope)
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
        """Messages leave whole: at the end what is being written is given some time, and nothing follows what is cut."""
        while self._out and not self._cut:
            out, self._out = self._out, []
            deadline = anyio.current_time() + _LAST_WORDS if self._closed else math.inf
            self._cut = True
            with anyio.CancelScope(shield=True, deadline=deadline) as self._writing:
                try:
                    await self._stream.send(b"".join(out))
                except (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
                    self._end("the other end has closed its side")
                    return
                self._cut = False
            self._backlog -= sum(map(len, out))

    async def _read(self, scope: anyio.CancelScope) -> None:
        reason = "the bus was left"
        try:
            while True:
                for data in self._framing.feed(await self._stream.receive(_CHUNK)):
                    if self._callback is not None:
                        self._callback(data)
        except ValueError as error:
            reason = str(error)
        except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
            reason = "the other end has closed its side"
        finally:
            self._end(reason)
        scope.cancel()


def _stream_of(process: Any) -> ByteStream:
    """May raise `TypeError`: no stream, and no process with pipes."""
    if process is None:
        return _OwnStreams()
    if isinstance(process, ByteStream):
        return process
    stdin: Any = getattr(process, "stdin", None)
    stdout: Any = getattr(process, "stdout", None)
    if stdin is None or not hasattr(stdout, "receive"):
        raise TypeError(
            "StdioPort() takes a process of anyio.open_process() with stdin and stdout as pipes, a byte stream, or nothing, "
            f"not {type(process).__name__}"
        )
    return StapledByteStream(stdin, stdout)


class _OwnStreams(ByteStream):
    """Standard input and output of this process, without threads."""

    def __init__(self) -> None:
        sys.stdout.flush()
        self._in = sys.__stdin__.fileno() if sys.__stdin__ is not None else 0
        self._out = os.dup(1)
        os.dup2(2, 1)  # what the program prints would be taken for messages
        self._polled = _can_be_polled(self._in)
        self._blocking = os.get_blocking(self._out)
        if _can_be_polled(self._out):
            os.set_blocking(self._out, False)
        self._open = True

    async def receive(self, max_bytes: int = _CHUNK) -> bytes:
        if self._polled:
            await anyio.wait_readable(self._in)
        else:
            await anyio.lowlevel.checkpoint()
        data = os.read(self._in, max_bytes)
        if not data:
            raise anyio.EndOfStream
        return data

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
        if self._open:
            self._open = False
            os.set_blocking(self._out, self._blocking)
            sys.stdout.flush()
            os.dup2(self._out, 1)
            os.close(self._out)


def _can_be_polled(descriptor: int) -> bool:
    """Pipes, sockets and terminals can; a file is always ready."""
    return not stat.S_ISREG(os.fstat(descriptor).st_mode)
