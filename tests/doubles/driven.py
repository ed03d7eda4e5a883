"""A session with inspectable output: events on one side, frames on the other."""

from typing import Any, cast

from polybus.message import Message
from polybus.plugins import Frames, Session, SessionEvent, SessionOutput


class Driven:
    """A session that somebody else looks at: what it gives is kept until `events` and `frames_to_send` take it."""

    def __init__(self, session: Session) -> None:
        self.session: Any = session
        self._events: list[Message | SessionEvent] = []
        self._frames: list[bytes] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.session, name)

    def _keep(self, output: SessionOutput | Frames) -> None:
        for one in cast("Any", (output,) if isinstance(output, (bytes, Message)) else output):
            (self._frames if isinstance(one, bytes) else self._events).append(one)

    def start(self, now: float = 0.0) -> None:
        self._keep(self.session.start(now))

    def receive(self, frame: bytes, now: float) -> None:
        self._keep(self.session.receive(frame, now))

    def tick(self, now: float) -> None:
        self._keep(self.session.tick(now))

    def send(self, message: Message, now: float, peer_key: Any = None) -> Any:
        key, frames = self.session.send(message, now, peer_key)
        self._keep(frames)
        return key

    def confirm(self, now: float) -> Any:
        key, frames = self.session.confirm(now)
        self._keep(frames)
        return key

    def forget(self, key: Any, now: float) -> None:
        self._keep(self.session.forget(key, now))

    def retire(self) -> None:
        self._keep(self.session.retire())

    def close(self, code: int, reason: str, now: float, peer_key: Any = None) -> None:
        self._keep(self.session.close(code, reason, now, peer_key))

    def connection_lost(self, reason: str) -> None:
        self.session.connection_lost(reason)
        self._frames.clear()

    def events(self) -> list[Any]:
        events, self._events = self._events, []
        return events

    def frames_to_send(self) -> list[bytes]:
        frames, self._frames = self._frames, []
        return frames
