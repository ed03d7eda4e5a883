"""A wire over request/response exchanges: an answer leaves in the exchange of its question (as CloudEvents over HTTP).

Transport and session share one secret: a frame may be an `Exchanged`, which knows its exchange. The link does not.
"""

from __future__ import annotations

import random
from functools import lru_cache
from typing import Any, ClassVar

from attrs import frozen

from polybus.limits import Limits
from polybus.message import Kind, Message
from polybus.plugins import Capabilities, Role

from .by_subject import BySubjectCodec, BySubjectSession
from .common import ShapeAdapter
from .wires import Exchanged


class ExchangeSession(BySubjectSession):
    """`by_subject` on exchanges. Every exchange gets exactly one answer: an empty one where there is nothing to say."""

    capabilities = Capabilities()

    def __init__(self, codec: BySubjectCodec, rng: random.Random | None) -> None:
        super().__init__(codec, rng)
        self._open: dict[Any, int] = {}
        """The exchanges of requests that are being answered."""

    def receive(self, frame: bytes, now: float) -> None:
        if not frame:
            return
        before = len(self._events)
        super().receive(frame, now)
        exchange = getattr(frame, "exchange", None)
        if exchange is None:
            return
        answered_later = False
        for message in self._events[before:]:
            if isinstance(message, Message) and message.kind is Kind.REQUEST:
                self._open[message.id] = exchange
                answered_later = True
            elif isinstance(message, Message) and message.kind is Kind.CANCEL:
                self._end(message.id)
        if not answered_later:
            self._frames.append(Exchanged.of(b"", exchange))

    def _end(self, id: Any) -> None:
        exchange = self._open.pop(id, None)
        if exchange is not None:
            self._frames.append(Exchanged.of(b"", exchange))

    def send(self, message: Message, now: float, peer_key: Any = None) -> str | None:
        if message.kind in (Kind.RESPONSE, Kind.ERROR) and message.id in self._open:
            frame = self.codec.encode([message])
            self.queue(Exchanged.of(frame, self._open.pop(message.id)))
            return None
        return super().send(message, now, peer_key)


@frozen(kw_only=True)
class Exchange(ShapeAdapter):
    name: ClassVar[str] = "exchange"

    def codec(self, limits: Limits = Limits()) -> BySubjectCodec:  # noqa: B008  # immutable
        return _codec(limits)

    def session(self, role: Role, limits: Limits = Limits(), rng: random.Random | None = None) -> ExchangeSession:  # noqa: B008
        return ExchangeSession(_codec(limits), rng)


_codec = lru_cache(BySubjectCodec)
