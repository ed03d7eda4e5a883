"""The process that writes, and the connection to it: shipments go there, counts and what it has to say come back."""

from __future__ import annotations

import json
import logging
import select
import signal
import socket
import subprocess
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from attrs import asdict

from ..errors import CaptureError
from ..interpreter import begin_interpreter
from ..record.packing import END
from .stats import WriterSettings

logger: logging.Logger = logging.getLogger("polybus.capture")

_BEGINNING: Final = 30.0
"""Seconds until the process must have answered."""
_BUFFER: Final = 1 << 20
"""Bytes that the connection may hold, where the system lets it."""


class Helper:
    """One process that writes.

    Args:
        settings: Without a function: they are sent as JSON.
        reported: Is called with what it has done, in the thread that calls `attend`.

    Raises:
        CaptureError: The folder cannot be made or written.
        OSError: The process could not be begun, or did not answer.
    """

    def __init__(self, settings: WriterSettings, reported: Callable[[list[int]], None]) -> None:
        self.gone: bool = False
        """True if it, or the connection to it, has ended."""
        self.seq: int = 0
        """Number of the first row that it writes."""
        self._reported = reported
        self._unsent, self._heard = memoryview(b""), bytearray()
        self._ended = False
        self._connection, theirs = socket.socketpair()
        try:
            with theirs:
                for end in (self._connection, theirs):
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)
                self._process = begin_interpreter(
                    "polybus.capture.writer.main", stdin=theirs.fileno(), stdout=subprocess.DEVNULL
                )
        except BaseException:
            self._connection.close()
            raise
        self.pid: int = self._process.pid
        """Of the process."""
        try:
            self._begin(settings)
        except BaseException:
            self.abandon()
            raise
        self._connection.setblocking(False)
        self._poll = select.poll()
        self._poll.register(self._connection, select.POLLIN)

    def _begin(self, settings: WriterSettings) -> None:
        self._connection.settimeout(_BEGINNING)
        self._connection.sendall(json.dumps(asdict(settings)).encode() + b"\n")
        while True:
            line, found, rest = self._heard.partition(b"\n")
            if found:
                self._heard = rest
                message = json.loads(line)
                if "error" in message:
                    raise CaptureError(message["error"])
                if "seq" in message:
                    self.seq = message["seq"]
                    return
                self._received(message)
            elif some := self._connection.recv(1 << 16):
                self._heard += some
            else:
                raise OSError("the process that is to write has ended at once")

    @property
    def behind(self) -> bool:
        """True while a part of an earlier message is not sent yet."""
        return bool(self._unsent)

    def ready(self) -> bool:
        """True when all earlier messages are sent: tries to send the rest."""
        if self._unsent:
            self._push()
        return not self._unsent and not self.gone and not self._ended

    def send(self, shipment: bytes) -> None:
        """Send it, as far as there is room for it now; the rest is sent by and by."""
        self._unsent = memoryview(shipment)
        self._push()

    def send_end(self) -> None:
        """Say that nothing more comes, once."""
        if self.ready():
            self._ended = True
            self.send(END)

    def _push(self) -> None:
        try:
            while self._unsent:
                self._unsent = self._unsent[self._connection.send(self._unsent, getattr(socket, "MSG_NOSIGNAL", 0)) :]
        except BlockingIOError:
            pass
        except OSError:
            self._lose()

    def attend(self, seconds: float) -> None:
        """Wait so long for what it says, or for room for what is left; then hear all it has said, and send on."""
        self._poll.modify(self._connection, select.POLLIN | (select.POLLOUT if self._unsent else 0))
        if not self._poll.poll(seconds * 1000):
            return
        try:
            while some := self._connection.recv(1 << 16):
                self._heard += some
            self._lose()
        except BlockingIOError:
            pass
        except OSError:
            self._lose()
        *lines, self._heard = self._heard.split(b"\n")
        for line in lines:
            self._received(json.loads(line))

    def _received(self, message: dict[str, Any]) -> None:
        if "log" in message:
            level, text = message["log"]
            logger.log(level, "%s", text)
        elif "counts" in message:
            self._reported(message["counts"])

    def _lose(self) -> None:
        self.gone = True
        self._unsent = memoryview(b"")

    def abandon(self) -> None:
        """End it."""
        self._lose()
        self._connection.close()
        self._process.kill()
        self._process.wait()

    def ended(self) -> str:
        """Wait for its end, which the end of the connection asks for, and say how it was. May take as long as the disk does."""
        self._connection.close()
        code = self._process.wait()
        with suppress(ValueError):
            return signal.Signals(-code).name
        return f"exit code {code}"
