"""Publications to a store: sent until the engine has said that it has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import anyio
from attrs import define, field

from ..._util.pattern_index import SubjectIndex
from ..._util.sources import sources
from ...errors import DeadlineExceeded, Disconnected, LocalProtocolError, NoHandler, QueueFull
from ...message import Kind, Message
from ...plugins import ToStore
from .jetstream import JetStreamError, read_answer

if TYPE_CHECKING:
    from ..._bus.store import Store
    from ..._core.services import Services
    from ...errors import BusError
    from ..membership import Membership

_AGAIN: Final = 2.0
"""Seconds without a word of the engine, after which a publication is sent again."""
_PAUSE: Final = 0.25
"""Seconds until one is sent again which the engine could not take."""


_UNKNOWN: Final = (
    "the engine has not said that it is stored, and it may be: published again under the same id=, it is stored once"
)


@define(eq=False)
class StoredPublishing:
    """Publishes to stores."""

    _services: Services
    _known: Membership
    _kept: SubjectIndex[str] = field(factory=lambda: SubjectIndex[str]())
    """The names of stores by what they keep."""

    def add(self, store: Store) -> None:
        """Take note of what a store keeps."""
        for pattern in store.subjects:
            self._kept.add(pattern, store.name)

    def keeps(self, subject: str | int) -> bool:
        """Tell whether publications of a subject are stored."""
        return bool(self._kept.match(subject))

    async def publish(self, message: Message, id: str | None, deadline: float) -> None:
        """Return when the engine has stored a publication of a store's subject.

        Raises:
            BusError: As `store`.
        """
        await self.store(message, sources.get().urandom(12).hex() if id is None else id, deadline)

    async def store(self, message: Message, id: str, deadline: float, at: str = "", only: str = "") -> None:
        """Return when the engine has stored a publication; sent again under its id as long as it does not say so.

        Args:
            message: The publication.
            id: Under which it is stored once.
            deadline: Time until which it is tried.
            at: Its subject on the wire, where that is another one than of a publication.
            only: The one durable handler that it is for, where that is not all.

        Raises:
            QueueFull: The store is full, or waits for room to this engine.
            LocalProtocolError: The engine stores no such subject any more.
            DeadlineExceeded: It has not said so in time: it may be stored, and may not.
            Disconnected, EncodeError, TooLarge, Forbidden: As a request.
        """
        runtime, subject = self._services.running, message.subject
        began, to = runtime.time(), ToStore(id, at, only)
        last: BusError | None = None
        while (left := deadline - runtime.time()) > 0:
            peer = self._known.peer
            if peer is None:
                break
            try:
                read_answer(await peer.pass_on(_question(message, to), min(left, _AGAIN)))
                return
            except JetStreamError as error:
                last = _refused(subject, error)
                if not error.passes:
                    raise last from None
                await anyio.sleep(min(_PAUSE, max(deadline - runtime.time(), 0)))
            except DeadlineExceeded as error:
                last = error
            except (Disconnected, NoHandler) as error:  # the engine is about to come back, or has not got its streams yet
                if peer.gone:
                    raise
                last = error
                await anyio.sleep(min(_PAUSE, max(deadline - runtime.time(), 0)))
        elapsed = runtime.time() - began
        raise DeadlineExceeded(subject, elapsed, "local", _UNKNOWN) from last


def _refused(subject: str | int, error: JetStreamError) -> BusError:
    said = f"{subject!r} is not stored: the NATS server says: {error.text}"
    if error.full:
        return QueueFull(f"{said}; the store is full (max_bytes=), or what the server or its account may keep")
    return LocalProtocolError(said)


def _question(message: Message, to: ToStore) -> Message:
    """The publication as something that is answered; anew for each time that it is sent."""
    asked = Message(Kind.REQUEST, message.subject, None, message.raw, message.format, message.headers, attributes={"to": to})
    asked.decoded = message.decoded
    return asked
