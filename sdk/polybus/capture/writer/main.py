"""The main function of a process that writes: shipments come in on the connection that is its standard input."""

from __future__ import annotations

import json
import logging
import os
import select
import signal
import socket
import sys
import time
from contextlib import suppress
from typing import Any, Final

from attrs import astuple

from ..errors import CaptureError
from ..record.packing import HEAD, Packed, size_of_body, unpacked
from ..rows import Gap
from .process import WriterProcess
from .stats import BATCH_ROWS, FLUSH_SECONDS, WriterSettings
from .writer import CaptureWriter

_BATCH_BYTES: Final = 8 << 20
"""Of frames that are written together."""
_IDLE: Final = 1.0
"""Seconds after which it looks whether something is due."""
_SOON: Final = 0.01
"""Seconds between two looks at whether the application is gone."""


def main() -> None:
    """Write what comes until the other side says that it was all, or is gone."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # they are meant for the application, whose last frames are to be written
    with socket.socket(fileno=0) as connection:
        words = _MessagesToApplication(connection)
        settings = _settings(connection)
        if settings is None:
            return
        writer = CaptureWriter(settings)
        try:
            writer.open()
        except CaptureError as error:
            words.say(error=str(error))
            return
        words.say(seq=writer.counts.seq)
        _WriterLoop(connection, words, writer).run()


def _settings(connection: socket.socket) -> WriterSettings | None:
    """Settings of the writer, as they arrive; None where the other side has gone."""
    line = b""
    while more := connection.recv(1):
        if more == b"\n":
            return WriterSettings(**json.loads(line))
        line += more
    return None


class _MessagesToApplication(logging.Handler):
    """Messages to the application; records of the writer's logger are logged there."""

    def __init__(self, connection: socket.socket) -> None:
        super().__init__()
        self._connection = connection
        logger = logging.getLogger("polybus.capture")
        logger.addHandler(self)
        logger.propagate = False

    def say(self, **what: Any) -> None:
        """One thing."""
        with suppress(OSError):  # the other side is gone; what it has handed over is written
            self._connection.sendall(json.dumps(what).encode() + b"\n")

    def emit(self, record: logging.LogRecord) -> None:
        """Something that is logged."""
        self.say(log=[record.levelno, self.format(record)])


class _WriterLoop:
    """Collects shipments until they are worth a batch."""

    def __init__(self, connection: socket.socket, words: _MessagesToApplication, writer: CaptureWriter) -> None:
        self._connection = connection
        self._words = words
        self._writer = writer
        self._some: list[Packed] = []
        self._since = 0.0
        self._told = False  # that nothing more comes
        self._cut = False  # in the middle of a shipment: there was more, nobody knows how much
        self._application = int(sys.argv[2])
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)

    def run(self) -> None:
        """Until the end."""
        idle = min(_IDLE, self._writer.segment_seconds)
        while True:
            if self._something_comes(FLUSH_SECONDS if self._some else idle):
                packed = self._receive()
                if packed is None:
                    break
                self._take(packed)
            elif self._is_alone():
                break
            else:
                self._flush()
        self._flush()
        over = self._is_over()
        if over and self._cut:
            self._writer.missing(Gap("killed", 0))
        self._writer.finish(over=over)
        self._report()

    def _take(self, packed: Packed) -> None:
        if packed.known == 0 and self._some:  # it numbers its connections anew
            self._flush()
        now = time.monotonic()
        if not self._some:
            self._since = now
        self._some.append(packed)
        if (
            len(packed) < WriterProcess.enough  # sent because it was time
            or now - self._since >= FLUSH_SECONDS
            or sum(map(len, self._some)) >= BATCH_ROWS
            or sum(len(one.data) for one in self._some) >= _BATCH_BYTES
        ):
            self._flush()

    def _flush(self) -> None:
        some, self._some = self._some, []
        if some:
            self._writer.write(some)
        self._writer.turn()
        if some:
            self._report()

    def _report(self) -> None:
        self._words.say(counts=astuple(self._writer.counts))

    def _something_comes(self, seconds: float) -> bool:
        return bool(self._poll.poll(seconds * 1000))

    def _is_alone(self) -> bool:
        """True when the application is gone. A child that it has forked may still hold the connection, and is not heard."""
        return os.getppid() != self._application

    def _is_over(self) -> bool:
        """True at the end of the recording; else the application has given this process up, and goes on with another one."""
        late = time.monotonic() + _IDLE  # a process that is killed lets go of the connection just before its children
        while not self._told and not self._is_alone() and time.monotonic() < late:
            time.sleep(_SOON)
        return self._told or self._is_alone()

    def _receive(self) -> Packed | None:
        """The next shipment; None at the end."""
        head = self._exactly(HEAD.size)
        if head is None:
            return None
        numbers = HEAD.unpack(head)
        size = size_of_body(numbers)
        self._told = not size  # a shipment of nothing is the last one
        body = self._exactly(size) if size else None
        self._cut = bool(size) and body is None
        return None if body is None else unpacked(numbers, memoryview(body))

    def _exactly(self, size: int) -> bytearray | None:
        """So many bytes; None where the other side has gone before: it was killed in the middle of them."""
        data = bytearray(size)
        view = memoryview(data)
        while view:
            if self._something_comes(_IDLE):
                got = 0
                with suppress(ConnectionError):
                    got = self._connection.recv_into(view)
                if not got:
                    break
                view = view[got:]
            elif self._is_alone():
                break
        self._cut = len(view) not in (0, size)
        return None if view else data
