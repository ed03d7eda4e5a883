"""Publishes undeliverable messages as dead letters."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from . import Bus
from .errors import BusError
from .events import DeadLettered
from .plugins.tools import Warnings, log_fields

__all__ = ["publish_dead_letters"]

logger: logging.Logger = logging.getLogger("polybus")

_SECRET = frozenset({"token", "hash"})


async def publish_dead_letters(bus: Bus, topic: str = "dead.letters", *, bodies: bool = False) -> None:
    """Publish undeliverable messages as dead letters until the bus closes. Run this in a task group.

    The body of a dead letter has the fields ``subject``, ``kind``, ``code`` (google.rpc.Code), ``reason``, ``at`` (ISO 8601)
    and ``attributes``. ``attributes`` contains the protocol's attributes, except for tokens and hashes.

    Args:
        bus: Bus to watch, and to publish on.
        topic: Subject of the dead letters.
        bodies: Include the body of the message if it is still available.

    Raises:
        LocalProtocolError: If the bus runs in another event loop.
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
            warnings.warn(logger, text, event.subject, error, extra=log_fields(event.peer, subject=event.subject))


def _told(attributes: Mapping[str, Any]) -> dict[str, Any]:
    plain = (str, int, float, bool, type(None))
    return {name: value for name, value in attributes.items() if name not in _SECRET and isinstance(value, plain)}
