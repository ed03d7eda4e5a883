"""Raw sockets that connect, subscribe and count bytes: minimal work beside the measured server."""

from __future__ import annotations

import selectors
import socket
from struct import pack
from time import perf_counter, sleep

from .processes import Meter
from .systems.base import Wire, split_address

__all__ = ["fan_out", "open_idle"]

_TIMEOUT = 60.0
_ONE_BY_ONE = 0.3


def _framed(wire: Wire, text: bytes) -> bytes:
    """Prefix a length, or make it a text message of a WebSocket, where a mask of zeros leaves it unchanged."""
    length = len(text)
    if not wire.path:
        return pack(">I", length) + text
    head = pack(">BB", 0x81, 0x80 | length) if length < 126 else pack(">BBH", 0x81, 0x80 | 126, length)
    return head + bytes(4) + text


def _greeting(wire: Wire, host: str) -> bytes:
    lines = (
        f"GET {wire.path} HTTP/1.1",
        f"Host: {host}",
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
    )
    return "\r\n".join([*lines, "", ""]).encode()


def open_idle(wire: Wire, url: str, connections: int) -> list[socket.socket]:
    """Open connections, including their handshake."""
    return [_open(wire, url) for _ in range(connections)]


def _open(wire: Wire, url: str) -> socket.socket:
    address = split_address(url)
    connection = socket.create_connection(address, timeout=10)
    if wire.path:
        connection.sendall(_greeting(wire, f"{address[0]}:{address[1]}"))
        answer = b""
        while not answer.endswith(b"\r\n\r\n"):
            # Byte by byte at the end of the head, as frames may follow it.
            piece = connection.recv(1)
            if not piece:
                raise ConnectionError(f"the server refused: {answer[:60]!r}")
            answer += piece
        if b" 101 " not in answer.partition(b"\r\n")[0]:
            raise ConnectionError(f"the server refused: {answer[:60]!r}")
    return connection


class FanOut:
    """Subscribed connections, and one more that requests the publications."""

    def __init__(self, wire: Wire, url: str, connections: int) -> None:
        self.wire = wire
        self.control = _open(wire, url)
        self.selector = selectors.DefaultSelector()
        self.connections = connections
        for _ in range(connections):
            connection = _open(wire, url)
            connection.sendall(_framed(wire, wire.subscribe))
            connection.setblocking(False)
            self.selector.register(connection, selectors.EVENT_READ, [connection.recv, 0])
        self.frame_size = self._settle()

    def _settle(self) -> int:
        """Publish until every connection has received a publication; returns its size."""
        end = perf_counter() + _TIMEOUT
        while perf_counter() < end:
            self._receive(until_quiet=_ONE_BY_ONE)  # skip answers to a handshake
            self._forget()
            self.burst(1)
            self._receive(until_quiet=_ONE_BY_ONE)
            sizes = {key.data[1] for key in self.selector.get_map().values()}
            if len(sizes) == 1 and 0 not in sizes:
                return int(sizes.pop())
            sleep(0.1)
        raise TimeoutError("some connections received nothing")

    def _forget(self) -> None:
        for key in self.selector.get_map().values():
            key.data[1] = 0

    def burst(self, count: int) -> None:
        self.control.sendall(_framed(self.wire, self.wire.burst % count))

    def _receive(self, *, until_quiet: float, expected: float = float("inf")) -> int:
        total, select = 0, self.selector.select
        while total < expected and (ready := select(until_quiet)):
            for key, _ in ready:
                data = key.data
                size = len(data[0](65536))
                if not size:
                    raise ConnectionError("the server closed a connection")
                data[1] += size
                total += size
        return total

    def measure(self, count: int) -> None:
        """Request `count` publications and return when every connection has all of them."""
        self._forget()
        self.burst(count)
        expected = count * self.frame_size * self.connections
        total = self._receive(until_quiet=_TIMEOUT, expected=expected)
        if total != expected:
            raise RuntimeError(f"{total} of {expected} bytes arrived")


def fan_out(wire: Wire, url: str, connections: int, deliveries: int, server: int) -> dict[str, float]:
    """Measure a burst with a total of `deliveries`, after a shorter one that does not count."""
    clients = FanOut(wire, url, connections)
    count = max(1, deliveries // connections)
    clients.measure(max(1, count // 3))
    meter = Meter(server)
    clients.measure(count)
    return meter.read(count * connections)
