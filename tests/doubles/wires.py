"""In-memory connections for these tests: ends that pass each frame to a function, and a broker."""

import struct
from collections.abc import Callable

from polybus.plugins import Closed, DialOptions, Host, Receiver, Transport


class End:
    """One end of a connection: what is sent goes to `carry`, in a later turn of the event loop; so does the end to `gone`."""

    name = "double"
    hops = 0
    address = "double"

    def __init__(self, host: Host, carry: Callable[[bytes], None], gone: Callable[[Closed], None]) -> None:
        self.host = host
        self.max_frame = host.limits.message
        self._carry = carry
        self._gone = gone
        self.receiver: Receiver | None = None
        self._early: list[bytes] = []
        self._over = False

    def start(self, receiver: Receiver) -> None:
        self.receiver = receiver
        early, self._early = self._early, []
        if early:
            self.host.call_soon(lambda: receiver.frames_received(early))

    def send(self, frame: bytes) -> None:
        if not self._over:
            self.host.call_soon(lambda: self._carry(frame))

    def deliver(self, frame: bytes) -> None:
        if self.receiver is None:
            self._early.append(frame)
        elif not self._over:
            self.receiver.frames_received([frame])

    def write_backlog(self) -> int:
        return 0

    def close(self, code: int = 1000, reason: str = "") -> None:
        self.abort(Closed(code, reason))

    def abort(self, why: Closed) -> None:
        if not self._over:
            self.lost(why)
            self.host.call_soon(lambda: self._gone(why))

    def lost(self, why: Closed) -> None:
        if not self._over:
            self._over = True
            receiver = self.receiver
            if receiver is not None:
                self.host.call_soon(lambda: receiver.closed(why))

    def tick(self, now: float) -> None:
        """Nothing can go silent here."""


class Dial:
    reconnects = False
    url = "double://"

    def __init__(self, make: Callable[[DialOptions], Transport], *, reconnects: bool = False) -> None:
        self._make = make
        self.reconnects = reconnects

    async def connect(self, options: DialOptions) -> Transport:
        return self._make(options)


class Broker:
    """Multiplexes clients over one connection to a server, with `numbered`'s headers. It never looks into a payload."""

    OPENED, CLOSED, CLOSE = 0xD0, 0xE0, 0xF0

    def __init__(self) -> None:
        self.server: End | None = None
        self.clients: dict[int, Callable[[bytes], None]] = {}
        self.next_id = 100
        self.sent_away: list[int] = []

    def for_server(self) -> Dial:
        return Dial(self._server, reconnects=True)

    def _server(self, options: DialOptions) -> Transport:
        self.server = End(options.host, self.from_server, lambda why: None)
        for client in self.clients:
            self._control(client, self.OPENED)
        return self.server

    def enter(self, client: Callable[[bytes], None]) -> int:
        """A client has come: a function that takes what is sent to it."""
        number, self.next_id = self.next_id, self.next_id + 1
        self.clients[number] = client
        self._control(number, self.OPENED)
        return number

    def leave(self, number: int) -> None:
        if self.clients.pop(number, None) is not None:
            self._control(number, self.CLOSED)

    def from_client(self, number: int, frame: bytes) -> None:
        if self.server is not None and number in self.clients:
            self.server.deliver(struct.pack(">I", number) + frame)

    def from_server(self, frame: bytes) -> None:
        number, kind = struct.unpack_from(">IB", frame)
        if kind & 0xF0 == self.CLOSE:
            self.sent_away.append(number)
            self.leave(number)
        elif (client := self.clients.get(number)) is not None:
            client(frame[4:])

    def stop_reading(self) -> None:
        """Take nothing more from the server."""
        self._receiver().pause_writing()

    def go_on_reading(self) -> None:
        self._receiver().resume_writing()

    def _receiver(self) -> Receiver:
        assert self.server is not None and self.server.receiver is not None
        return self.server.receiver

    def cut(self) -> None:
        """The connection to the server breaks, and with it go all clients."""
        server, self.server = self.server, None
        self.clients.clear()
        if server is not None:
            server.lost(Closed(1006, "cut"))

    def _control(self, number: int, kind: int) -> None:
        if self.server is not None:
            self.server.deliver(struct.pack(">IBBHI", number, kind, 0, 0, 0))
