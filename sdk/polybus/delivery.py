"""Policies beyond one attempt: asking again while there is time, and telling of messages that could not be delivered.

Both are objects of the application, and work over every protocol.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import anyio
from attrs import field, frozen

from ._util.repeated_warnings import Warnings
from ._validation import seconds
from .backoff import Backoff
from .errors import BusError, Code, DeadlineExceeded, Disconnected, RequestError
from .events import DeadLettered
from .subjects import Subject, resolve

if TYPE_CHECKING:
    from ._bus.bus import Bus
    from ._peer.peer import Peer

__all__ = ["Retry", "publish_dead_letters"]

logger: logging.Logger = logging.getLogger("polybus")

_SECRET = frozenset({"token", "hash"})


@frozen(kw_only=True)
class Retry:
    """Asks again while the request has not expired: ``await Retry().request(bus, "door.open", 7, timeout=10)``.

    What was asked may then be done more than once: only for requests that may. Each attempt travels with the time that is left.

    Args:
        codes: Answers after which it is asked again.
        disconnected: Whether it is asked again when the link broke meanwhile.
        attempts: How often at most; None for as often as there is time.
        backoff: The pauses between.

    Raises:
        ValueError: There is to be no attempt.
    """

    codes: frozenset[Code] = field(default=frozenset({Code.UNAVAILABLE, Code.RESOURCE_EXHAUSTED}), converter=frozenset)
    disconnected: bool = True
    attempts: int | None = None
    backoff: Backoff = field(factory=lambda: Backoff(initial=0.05, maximum=2.0))

    def __attrs_post_init__(self) -> None:
        if self.attempts is not None and self.attempts < 1:
            raise ValueError(f"attempts={self.attempts}: at least 1")

    async def request(
        self,
        bus: Bus | Peer,
        subject: str | int | Subject[Any, Any],
        body: Any = None,
        *,
        timeout: float = 30.0,
        returns: Any = Any,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """Ask until there is an answer.

        Raises:
            RequestError: An answer after which it is not asked again, or the last one of all attempts.
            Disconnected: Likewise.
            DeadlineExceeded: The time has passed.
            BusError, TypeError, ValueError: As `Bus.request`.
        """
        name, returns = resolve(subject, returns)
        if isinstance(subject, Subject):
            body = subject.given(body)
        timeout = seconds(timeout)
        started = anyio.current_time()
        deadline = started + timeout
        asked = 0
        while True:
            asked += 1
            left = deadline - anyio.current_time()
            try:
                return await bus.request(name, body, timeout=left, returns=returns, headers=headers)
            except (RequestError, Disconnected) as error:
                again = self.disconnected if isinstance(error, Disconnected) else error.code in self.codes
                if not again or asked == self.attempts:
                    raise
                pause = self.backoff.delay(asked - 1)
                if anyio.current_time() + pause >= deadline:
                    raise DeadlineExceeded(name, anyio.current_time() - started, "local") from error
            await anyio.sleep(pause)


async def publish_dead_letters(bus: Bus, topic: str = "dead.letters", *, bodies: bool = False) -> None:
    """Publish what could not be delivered, until the bus is left: run it in a task group.

    A publication has ``subject``, ``kind``, ``code`` (google.rpc.Code), ``reason``, ``at`` (ISO 8601), and what the wire said
    of it as ``attributes``: never a token or a hash.

    Args:
        bus: Whose dead letters; they are published on it too.
        topic: Under which subject.
        bodies: Whether the body goes along, where the event still has it.
    """
    warnings = Warnings()
    async for event in bus.events():
        if not isinstance(event, DeadLettered) or event.subject == topic:
            continue
        message = event.message
        letter: dict[str, Any] = {
            "subject": event.subject,
            "kind": message.kind.value if message is not None else None,
            "code": int(event.code),
            "reason": event.reason,
            "at": event.at.isoformat(),
            "attributes": _told(message.attributes) if message is not None else {},
        }
        try:
            if bodies and message is not None and message.has_body:
                letter["body"] = message.body
            await bus.publish(topic, letter, timeout=1.0)
        except BusError as error:
            text = "the dead letter of %r could not be published: %s"
            warnings.warn(logger, text, event.subject, error)


def _told(attributes: Mapping[str, Any]) -> dict[str, Any]:
    plain = (str, int, float, bool, type(None))
    return {name: value for name, value in attributes.items() if name not in _SECRET and isinstance(value, plain)}
