"""The client side of a connection to a NATS server, without I/O.

The session answers INFO with CONNECT, the inbox subscription and PING, and the server's PONG completes the handshake. From then
on each publication, subscription and request is one operation. A dialect interprets the operations: `native` for NATS clients,
or `cluster` for cluster nodes.
"""

from __future__ import annotations

import enum
import math
import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from attrs import evolve
from msgspec.structs import replace

from ...errors import EncodeError, Forbidden, LocalProtocolError, RemoteProtocolError, Unsupported
from ...limits import Limits
from ...message import Message
from ...plugins import Capabilities, CloseWanted, Confirmed, Frames, OtherServers, Refused, SessionOutput
from .cluster.dialect import ClusterDialect
from .codec import NatsCodec
from .connection import NatsConnection, ServerInfo
from .credentials import Credentials
from .headers import ServerError, read_error
from .native import NativeDialect
from .operations import INBOX_SID, PING, PONG, NatsOperation, refuse, write_json, write_subscription, write_unsubscription

if TYPE_CHECKING:
    from .adapter import Nats


class NatsState(enum.Enum):
    WAITING = "waiting"
    CONNECTING = "connecting"  # CONNECT and PING are sent; the PONG is awaited
    READY = "ready"
    CLOSED = "closed"


class NatsEvent(enum.Enum):
    INFO = "info"
    MESSAGE = "message"
    PING = "ping"
    PONG = "pong"
    OK = "ok"
    ERROR = "error"
    FOREIGN = "foreign"
    MALFORMED = "malformed"
    END = "end"


_WAITING, _CONNECTING, _READY, _CLOSED = NatsState.WAITING, NatsState.CONNECTING, NatsState.READY, NatsState.CLOSED

TRANSITIONS: Final[Mapping[NatsState, Mapping[NatsEvent, NatsState]]] = {
    # A NATS server begins with INFO.
    _WAITING: {**dict.fromkeys(NatsEvent, _CLOSED), NatsEvent.INFO: _CONNECTING},
    _CONNECTING: {
        **dict.fromkeys(NatsEvent, _CONNECTING),
        **dict.fromkeys((NatsEvent.MESSAGE, NatsEvent.FOREIGN, NatsEvent.MALFORMED, NatsEvent.END), _CLOSED),
        NatsEvent.PONG: _READY,
    },
    # A malformed message affects only itself; the link counts them.
    _READY: {**dict.fromkeys(NatsEvent, _READY), NatsEvent.FOREIGN: _CLOSED, NatsEvent.END: _CLOSED},
    _CLOSED: dict.fromkeys(NatsEvent, _CLOSED),
}

_NATIVE: Final = Capabilities(patterns=True, extensions=False, handlers=True, groups=True, many_senders=True)
_CLUSTER: Final = replace(_NATIVE, extensions=True, built_in=True, numbers=True)
_MESSAGES: Final = (b"MSG ", b"HMSG ")
_CONNECT: Final = {"verbose": False, "pedantic": False, "lang": "python-polybus", "protocol": 1}
_HANDSHAKE: Final = 0  # Key of the PING that completes the handshake
_RETIRED: Final = -1  # Key of the PING after the last UNSUB: its PONG confirms that no more messages come
_QUIET: Final = 2.0
"""Seconds of silence before the session sends a PING to a cluster's engine, so that nodes detect its failure soon."""
_NO_HEADERS: Final = "this NATS server does not support headers, which a cluster needs: use nats-server 2.2 or later"
_CLOSE_CODES: Final[Mapping[str, int]] = {
    "stale connection": 1006,
    "slow consumer": 1013,
    "maximum connections": 1013,
    "maximum payload": 1009,
    "server shutdown": 1001,
}
"""Close codes by the beginning of the error message. Any other error is a protocol error."""


class NatsSession:
    def __init__(self, codec: NatsCodec, limits: Limits, rng: random.Random, options: Nats, credentials: Credentials) -> None:
        self.codec: Final = codec
        self.state: NatsState = NatsState.WAITING
        abilities = _CLUSTER if options.cluster else _NATIVE
        self._connection = connection = NatsConnection(codec, limits, rng, options, credentials, abilities)
        self._dialect = ClusterDialect(connection) if options.cluster else NativeDialect(connection)
        self._deliver = self._dialect.delivered
        self._send = self._dialect.send
        self.publication: Callable[[str | int, bytes], bytes | None] = self._dialect.publication
        self._read = codec.reader.read
        self._read_delivery = codec.reader.delivery
        self._serial = _HANDSHAKE
        self._pings: deque[tuple[int | None, tuple[str, ...]]] = deque()
        """PINGs without a PONG, with the key if a caller is waiting, and the sids that ended before the PING."""
        self._retired: bool | None = None
        """False while this side unsubscribes everything, True when this is done. Another connection has then taken over."""
        self._asked_at: float = -math.inf
        self._quiet: float = min(_QUIET, limits.ping_interval) if options.cluster else limits.ping_interval
        self._silent: float = limits.ping_interval + limits.ping_timeout

    @property
    def capabilities(self) -> Capabilities:
        return self._connection.capabilities

    @property
    def server(self) -> ServerInfo:
        return self._connection.info

    @property
    def heard(self) -> float:
        """Time of the last frame, which shows the link whether the engine has gone silent."""
        return self._connection.heard

    def start(self, now: float) -> SessionOutput:
        self._connection.heard = now
        return ()

    def _output(self) -> SessionOutput:
        connection = self._connection
        events, connection.events = connection.events, []
        if connection.frames:
            return [*connection.taken(), *events]
        return events[0] if len(events) == 1 and isinstance(events[0], Message) else events

    # -- in --------------------------------------------------------------------------------------------------------------

    def receive(self, frame: bytes, now: float) -> SessionOutput:
        connection = self._connection
        connection.heard = now
        try:
            if self.state is NatsState.READY and frame.startswith(_MESSAGES):
                self._deliver(*self._read_delivery(frame))
                if self._retired:
                    self._leave_if_idle()
                return self._output()
            operation = self._read(frame)
        except RemoteProtocolError as error:
            self._malformed(error, frame)
            return self._output()
        event, act = _RECEIVERS.get(operation.verb, _FOREIGN)
        if event is NatsEvent.ERROR:
            self._server_error(self._dialect.judged(read_error(operation.text)))
        elif self._move(event, operation.verb):
            act(self, operation)
        return self._output()

    def _move(self, event: NatsEvent, what: str) -> bool:
        before, self.state = self.state, TRANSITIONS[self.state][event]
        if self.state is not NatsState.CLOSED:
            return True
        if before is not NatsState.CLOSED:
            expected = "a NATS server begins with INFO" if before is NatsState.WAITING else "a server does not send that"
            error = refuse(f"{what} in the state {before.value}: {expected}", "unexpected", close_code=1002)
            self._connection.events += [Refused(error), CloseWanted(1002, error.text, error)]
        return False

    def _end(self, wanted: CloseWanted) -> None:
        if self.state is not NatsState.CLOSED:
            self.state = TRANSITIONS[self.state][NatsEvent.END]
            self._connection.events.append(wanted)

    def _malformed(self, error: RemoteProtocolError, frame: bytes) -> None:
        """Count a malformed operation. A malformed request is answered, and a malformed answer fails its request."""
        if not self._move(NatsEvent.MALFORMED, f"{frame[:40]!r} ({error.text})"):
            return
        if error.close_code is not None:  # framing is lost: no other client can cause this
            self._connection.events.append(Refused(error))
            self._end(CloseWanted(error.close_code, error.text, error))
            return
        _, subject, sid, *_ = (*frame[: frame.find(b"\r\n")].decode("utf-8", "replace").split(" "), "", "", "")
        self._dialect.malformed(error, subject, sid, frame)

    def _information(self, operation: NatsOperation) -> None:
        connection = self._connection
        before = connection.info
        info = ServerInfo.read(operation.info or {}, before)
        connection.learn(info)
        if info.others != before.others or info.leaving != before.leaving:
            self._connection.events.append(OtherServers(info.others, info.leaving))
        if before.id is not None:
            if self.state is NatsState.READY and not {*before.others}.issuperset(info.others):
                self._dialect.servers_joined()
            return
        if not info.headers and connection.options.cluster:
            self._end(CloseWanted(1002, _NO_HEADERS, Unsupported(_NO_HEADERS)))
            return
        if not info.headers:
            connection.capabilities = replace(connection.capabilities, headers=False, deadlines=False)
        try:
            connect = write_json("CONNECT", self._connect_members(info))
        except (LocalProtocolError, EncodeError) as error:
            self._end(CloseWanted(4401, error.text, Forbidden(error.text)))
            return
        inbox = write_subscription(self._dialect.inbox, None, INBOX_SID)
        self._connection.frames += [connect, inbox, *self._dialect.probes]
        self._ping(_HANDSHAKE)

    def _leave_if_idle(self) -> None:
        if self._retired and self._dialect.idle:
            text = "the NATS server is about to shut down (lame duck): switching to another"
            self._end(CloseWanted(1012, text))

    # -- plugins.SessionMoves --------------------------------------------------------------------------------------------

    @property
    def moves(self) -> NatsSession:
        return self

    @property
    def signs(self) -> Sequence[str]:
        return self._dialect.signs

    def beside(self, other: NatsSession) -> None:
        self._dialect.know(other.signs)

    def retire(self) -> Frames:
        if self.state is NatsState.READY and self._retired is None:
            self._retired = False
            self._connection.frames += map(write_unsubscription, self._connection.subscriptions.by_sid)
            self._ping(_RETIRED)
        return self._connection.taken()

    def holds(self, key: Any) -> bool:
        return self._dialect.holds(key)

    def asked(self) -> list[str]:
        return self._dialect.asked()

    def _connect_members(self, info: ServerInfo) -> dict[str, Any]:
        able = {"echo": self._dialect.echo, "headers": info.headers, "no_responders": info.headers}
        known = {"tls_required": info.tls_required, "name": self._connection.options.client}
        return {**_CONNECT, **known, **able, **self._connection.credentials.members(info.nonce)}

    def _ping(self, key: int | None) -> None:
        self._pings.append((key, self._connection.subscriptions.leaving()))
        self._connection.frames.append(PING)

    def _asked(self, operation: NatsOperation) -> None:
        self._connection.frames.append(PONG)

    def _pong(self, operation: NatsOperation) -> None:
        if not self._pings:
            self._connection.events.append(Refused(refuse("PONG without a PING", "unexpected")))
            return
        key, left = self._pings.popleft()
        self._connection.subscriptions.left(left)
        if key == _HANDSHAKE:
            self._dialect.ready()
        elif key == _RETIRED:
            self._retired = True
            self._leave_if_idle()
        elif key is not None:
            self._connection.events.append(Confirmed(key, tuple(self._connection.subscriptions.refused)))

    def _ignore(self, operation: NatsOperation) -> None: ...

    # -- errors of the server --------------------------------------------------------------------------------------------

    def _server_error(self, error: ServerError) -> None:
        if error.ends:
            lower = error.text.lower()
            code = next((number for text, number in _CLOSE_CODES.items() if lower.startswith(text)), 1002)
            # The next connection may have newer credentials, read from the file again.
            if error.expired and self._connection.options.creds:
                code = 4401
                error = evolve(error, error=None)
            elif error.error is not None:
                code = 4403 if isinstance(error.error, Forbidden) else 4401
            self._end(CloseWanted(code, f"the NATS server says: {error.text}", error.error))
        elif self._move(NatsEvent.ERROR, f"-ERR {error.text!r}"):
            self._dialect.not_allowed(error)

    def _message(self, operation: NatsOperation) -> None:
        self._deliver(operation.subject, operation.sid, operation.reply, operation.headers, operation.payload)

    # -- out -------------------------------------------------------------------------------------------------------------

    def send(self, message: Message, now: float, peer_key: Any = None) -> tuple[str | None, Frames]:
        key, frames = self._send(message, now), self._connection.frames
        return key, frames.pop() if len(frames) == 1 else self._connection.taken()

    def confirm(self, now: float) -> tuple[int, Frames]:
        """Send a PING. A `Confirmed` event follows when the server has processed everything sent before the PING."""
        self._serial = key = self._serial + 1
        self._ping(key)
        return key, self._connection.taken()

    def forget(self, key: Any, now: float) -> Frames:
        self._dialect.forget(key, now)
        return ()

    # -- time and end ----------------------------------------------------------------------------------------------------

    def next_tick(self) -> float | None:
        if self.state is not NatsState.READY:
            return None
        if self._retired:
            return self._connection.heard
        heard = self._connection.heard
        sign = heard + (self._quiet if heard >= self._asked_at else self._silent)
        return min(sign, self._dialect.due)

    def tick(self, now: float) -> SessionOutput:
        if self.state is not NatsState.READY:
            return ()
        self._dialect.tick(now)
        if self._retired:
            self._leave_if_idle()
        heard = self._connection.heard
        if heard >= self._asked_at:
            if now - heard >= self._quiet:
                self._asked_at = now
                self._ping(None)
        elif now - heard >= self._silent:
            self._end(CloseWanted(1006, f"no PONG within {self._silent - self._quiet:g} s"))
        return self._output()

    def close(self, code: int, reason: str, now: float, peer_key: Any = None) -> Frames:
        """Send a goodbye if the dialect has one. For a server, closing the connection is enough."""
        if self.state is NatsState.READY:
            self._dialect.leave()
        self.state = TRANSITIONS[self.state][NatsEvent.END]
        return self._connection.taken()

    def connection_lost(self, reason: str) -> None:
        self.state = TRANSITIONS[self.state][NatsEvent.END]
        self._dialect.lost()


_RECEIVERS: Final[Mapping[str, tuple[NatsEvent, Callable[[NatsSession, NatsOperation], None]]]] = {
    "MSG": (NatsEvent.MESSAGE, NatsSession._message),
    "HMSG": (NatsEvent.MESSAGE, NatsSession._message),
    "INFO": (NatsEvent.INFO, NatsSession._information),
    "PING": (NatsEvent.PING, NatsSession._asked),
    "PONG": (NatsEvent.PONG, NatsSession._pong),
    "OK": (NatsEvent.OK, NatsSession._ignore),
    "ERR": (NatsEvent.ERROR, NatsSession._ignore),
}
_FOREIGN: Final = NatsEvent.FOREIGN, NatsSession._ignore
