"""A port over a pipe of `multiprocessing`, with two threads, because such a pipe can only be waited for by blocking."""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from multiprocessing import connection as pipes
from queue import SimpleQueue
from typing import Any, Final

import anyio
import anyio.from_thread
from anyio.lowlevel import current_token

from ..._util.own_thread import in_own_thread
from ._port import PortData, ProcessPort, as_text

logger: logging.Logger = logging.getLogger("polybus.transports")

_TEXT: Final = b"t"
_BINARY: Final = b"b"
_BACKLOG: Final = 8 * 1024 * 1024
_LIMIT: Final = 64 * 1024 * 1024
_BATCH: Final = 64
"""Messages that cross from the reading thread at once."""
_LAST_WORDS: Final = 2.0


class PipePort(ProcessPort):
    """A port over one end of ``multiprocessing.Pipe()``; the other end is a `PipePort` in the other process.

    Messages are sent as bytes and never pickled. The end belongs to the port, which closes it.

    Args:
        connection: One end of a duplex pipe.
        limit: The largest message in bytes.
    """

    def __init__(self, connection: Any, *, limit: int = _LIMIT) -> None:
        super().__init__("pipe")
        self._connection = connection
        self._limit = limit
        self._out: SimpleQueue[bytes | None] = SimpleQueue()
        self._posted = 0
        self._written = 0
        self._over = anyio.Event()

    def post(self, data: PortData) -> None:
        """Hand over a message without waiting."""
        if self._closed:
            return
        framed = _TEXT + data.encode("utf-8", "surrogatepass") if isinstance(data, str) else _BINARY + data
        if self._posted - self._written > _BACKLOG:
            self._end(f"the other end does not read: {self._posted - self._written} bytes wait")
            return
        self._posted += len(framed)
        self._out.put(framed)

    def _wake(self) -> None:
        self._out.put(None)
        self._over.set()

    async def run(self) -> None:
        """Read and write until one of the two ends closes."""
        woken, wake = pipes.Pipe(duplex=False)
        reader = threading.Thread(target=self._read, args=(woken, current_token()), name="polybus pipe reader", daemon=True)
        writer = threading.Thread(target=self._write, name="polybus pipe writer", daemon=True)
        reader.start()
        writer.start()
        try:
            await self._over.wait()
        finally:
            self._end("the bus was left")
            wake.close()
            with anyio.CancelScope(shield=True):
                await in_own_thread(reader.join, _LAST_WORDS)
                await in_own_thread(writer.join, _LAST_WORDS)
            woken.close()
            if writer.is_alive():
                logger.warning("the other end of a pipe does not read; what it was sent last is lost when it ends")
            else:
                self._connection.close()

    # -- in the threads ----------------------------------------------------------------------------------------------------

    def _read(self, woken: Any, token: Any) -> None:
        reason = "the other end has closed its side"
        try:
            while woken not in pipes.wait([self._connection, woken]):
                batch = [self._connection.recv_bytes(self._limit)]
                while len(batch) < _BATCH and self._connection.poll():
                    batch.append(self._connection.recv_bytes(self._limit))
                anyio.from_thread.run_sync(self._arrived, batch, token=token)
        except EOFError:
            pass
        except OSError as error:
            reason = f"the pipe is broken: {error}"
        except (RuntimeError, anyio.RunFinishedError):
            return  # the event loop is over
        else:
            return
        with suppress(RuntimeError, anyio.RunFinishedError):
            anyio.from_thread.run_sync(self._end, reason, token=token)

    def _write(self) -> None:
        try:
            while (framed := self._out.get()) is not None:
                self._connection.send_bytes(framed)
                self._written += len(framed)
        except OSError:
            return  # the reader finds out as well

    def _arrived(self, batch: list[bytes]) -> None:
        for framed in batch:
            if self._callback is not None and not self._closed:
                mark, content = framed[:1], framed[1:]
                self._callback(as_text(content) if mark == _TEXT else content)
