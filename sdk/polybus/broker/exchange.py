"""Forwards frames between clients and servers, without sockets.

The broker decodes only frame headers. A server's frames can reach only clients on that server's connection. A client's frames
can reach only its own server, and always carry that client's number. This means that participants cannot impersonate each other
or reach another server's clients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ..errors import Code, TooLarge
from ..plugins import TransportFeatures
from ..protocols.csb import wire
from . import frames
from .events import DropReason
from .frames import BROKER, HEAD
from .registry import SLOW, BrokerClient, ClientRegistry, Event, Server, Stage

_FIRST_BAD: Final = 0x10
_PAST_GOOD: Final = 0x30  # Lowest first byte of a frame that is neither a request nor a response
_AS_RESPONSE: Final = 0x20
_RESERVED: Final = 0xFF  # First byte of a reserved action
_UNANSWERED: Final = frozenset(
    wire.NUMBER.pack(action) for action in range(wire.SUBSCRIBE, wire.DEADLINE + 1) if action not in wire.REQUESTS
)
"""The broker expects no answer to these reserved actions."""
_NOT_OWED: Final = _UNANSWERED | {wire.NUMBER.pack(wire.HELLO)}
"""Reserved actions that a client need not answer. Clients without polybus do not answer hellos."""
_OF_CHANNELS: Final = frozenset(wire.NUMBER.pack(action) for action in wire.CHANNEL_KINDS)
_NOT_TURNED_DOWN: Final = _UNANSWERED - {wire.NUMBER.pack(wire.OPEN)}


class Exchange:
    """Forwards frames between servers and clients. Closes a server with more than `most_for_server` unread bytes."""

    def __init__(self, registry: ClientRegistry, most_for_server: int = 64 * 1024 * 1024) -> None:
        self.registry: ClientRegistry = registry
        self._most_for_server = most_for_server

    def from_server(self, server: Server, given: Sequence[bytes]) -> None:
        """Forward a server's frames (steps 4.2, 5 and 7)."""
        if server not in self.registry.servers:  # already closing
            return
        clients = server.clients
        unpack = HEAD.unpack_from
        count = 0
        for frame in given:
            if len(frame) >= 12:
                number, first = unpack(frame)
                client = clients.get(number)
                if client is not None and _FIRST_BAD <= first < _PAST_GOOD:
                    client.send(frame[4:])
                    count += 1
                    if first >= _AS_RESPONSE:
                        if frame[8] < _RESERVED or frame[8:12] not in _UNANSWERED:
                            client.asked -= 1
                    elif frame[8] < _RESERVED or frame[8:12] not in _NOT_OWED:
                        client.owes += 1
                    if client.paused:
                        self.registry.readers.check(client)
                    continue
            self._odd_from_server(server, frame)
            if server.gone:  # expelled for this frame
                break
        self.registry.counters.frames_to_clients_total += count

    def _odd_from_server(self, server: Server, frame: bytes) -> None:
        if len(frame) < 12:
            self.registry.drop(server, "short_frame", f"truncated header: {len(frame)} of 12 bytes")
            return
        number, first = HEAD.unpack_from(frame)
        kind = first >> 4
        if number == BROKER:
            self.registry.introduced(server, frame)
        elif kind not in (wire.REQUEST, wire.RESPONSE, wire.CLOSE):
            reason: DropReason = "forbidden_kind" if kind in wire.CONTROL_WORDS else "bad_kind"
            self.registry.drop(server, reason, f"kind {kind:#x} from a server")
            if reason == "forbidden_kind":
                self.registry.expel(server, 1008, f"a server must not send Connected or Closed (kind {kind:#x})")
        else:
            self._about_client(server, number, kind, frame)

    def _about_client(self, server: Server, number: int, kind: int, frame: bytes) -> None:
        client = self.registry.clients.get(number)
        if client is None:
            self.registry.drop(server, "unknown_client", f"client {number} is not known")
            server.send(frames.control(number, wire.CLOSED))
        elif client.server is not server and not (server.id and server.id == client.server.id):
            self.registry.drop(server, "not_your_client", f"client {number} is another server's")
            self.registry.expel(server, 1008, f"client {number} is not yours")
        elif kind == wire.CLOSE:
            self.registry.send_away(client, *frames.closing(frame))
        else:
            self.registry.step(client, Event.SERVER_SPEAKS, frame=frame)

    def from_client(self, client: BrokerClient, given: Sequence[bytes]) -> None:
        """Forward a client's frames (steps 4 and 5.2)."""
        if not client.is_open():
            for frame in given:
                self.registry.step(client, Event.CLIENT_SPEAKS, frame=frame)
            return
        if self.registry.draining:
            given = [frame for frame in given if not self._turned_down(client, frame)]
            if not client.is_open():  # too slow to read its answers
                return
        server = client.server
        send, prefix = server.send, client.prefix
        count = asked = 0
        for frame in given:
            if len(frame) >= 8 and _FIRST_BAD <= (first := frame[0]) < _PAST_GOOD:
                try:
                    send(prefix + frame)
                    count += 1
                    if first < _AS_RESPONSE:
                        if frame[4] < _RESERVED or frame[4:8] not in _UNANSWERED:
                            asked += 1
                    elif frame[4] < _RESERVED or frame[4:8] not in _NOT_OWED:
                        client.owes -= 1
                    continue
                except TooLarge:
                    self._too_large_from_client(client, frame)
            else:
                self._odd_from_client(client, frame)
            if not client.is_open():  # closed for this frame
                break
        client.asked += asked
        self.registry.counters.frames_to_servers_total += count
        if server.paused:
            self._hold(server, client)

    def _turned_down(self, client: BrokerClient, frame: bytes) -> bool:
        if len(frame) < 8 or frame[0] >> 4 != wire.REQUEST or frame[4:8] in _NOT_TURNED_DOWN:
            return False
        text = "the broker is shutting down: use another broker, or try again later"
        self.registry.send(client, frames.refusal(frame, text, Code.UNAVAILABLE))
        return True

    def _hold(self, server: Server, client: BrokerClient) -> None:
        if client.stage is Stage.OPEN and client not in server.held:
            server.held[client] = None
            TransportFeatures.of(client.end).pause_reading()
        if server.end.write_backlog() > self._most_for_server:
            self.registry.expel(server, 1013, SLOW)

    def _odd_from_client(self, client: BrokerClient, frame: bytes) -> None:
        if len(frame) < 8:
            self.registry.drop(client, "short_frame", f"truncated header: {len(frame)} of 8 bytes")
            return
        kind = frame[0] >> 4
        if kind in wire.CONTROL_WORDS:
            self.registry.drop(client, "forbidden_kind", f"{wire.CONTROL_WORDS[kind]} from a client")
            self.registry.send_away(client, 1008, f"a client must not send Connected, Closed or Close (kind {kind:#x})")
        else:
            text = f"kind {kind:#x} is not defined in CSB"
            self.registry.drop(client, "bad_kind", text)
            self.registry.send(client, frames.refusal(frame, text))

    def _too_large_from_client(self, client: BrokerClient, frame: bytes) -> None:
        """Respond to a frame that exceeds the size limit once the client's number is added."""
        text = "too large to be forwarded with the client's number, 4 bytes (Limits.message)"
        answer = frames.refusal(frame, text, Code.RESOURCE_EXHAUSTED, reason="too_large")
        self.registry.drop(client, "too_large", text)
        if frame[4:8] in _OF_CHANNELS:  # the server would not notice the gap
            self.registry.send_away(client, 1009, text)
        elif frame[0] >> 4 == wire.REQUEST:
            self.registry.send(client, answer)
        else:
            client.owes -= 1
            client.server.send(client.prefix + answer)
