"""Dead letters: stored publications that no attempt could deal with, kept with what is known of them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from attrs import define, field, frozen

from ...message import Message
from ...protocols.nats.cluster.subjects import escape_subject
from .stores import stream_name

if TYPE_CHECKING:
    from .publishing import StoredPublishing
    from .stores import Stores

NAME: Final = "dead"
"""The name of their store."""
_DAYS: Final = 30
"""Days for which they are kept."""
_TEXT: Final = 500
"""Characters of an error that are kept."""
_PATIENCE: Final = 10.0
"""Seconds to store one."""
_NO_LINE: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]+")


@frozen
class Death:
    """The end of a stored publication that no attempt could deal with.

    Attributes:
        attempts: How often a handler had it.
        reason: Why there are no more, for people.
        error_id: Of the last failure, as in the log; empty where a worker did not come back.
        stream: Where it was stored.
        number: Its number there.
    """

    attempts: int
    reason: str
    error_id: str
    stream: str
    number: int


@define(eq=False)
class DeadLetters:
    """Stores dead letters, under ``<cluster>.dead.<durable>.<subject>``."""

    _cluster: str
    _publishing: StoredPublishing
    _stores: Stores
    _replicas: int
    _made: bool = field(default=False, init=False)

    async def prepare(self) -> None:
        """Make their store where there is none: one that is there is as its makers want it.

        Raises:
            BusError: As `Stores.prepare`.
        """
        await self._stores.make_if_absent(
            {
                "name": stream_name(self._cluster, NAME),
                "subjects": [f"{self._cluster}.dead.>"],
                "retention": "limits",
                "storage": "file",
                "discard": "old",
                "max_age": _DAYS * 86_400 * 1_000_000_000,
                "num_replicas": self._replicas,
            }
        )

    async def keep(self, message: Message, durable: str, death: Death, now: float) -> None:
        """Return when a dead letter is stored; once, however often it is tried.

        Raises:
            BusError: As `StoredPublishing.store`.
        """
        facts = {
            "Polybus-Durable": durable,
            "Polybus-Attempts": str(death.attempts),
            "Polybus-Origin": f"{death.stream} {death.number}",
            "Polybus-Death": _NO_LINE.sub(" ", death.reason)[:_TEXT],
        }
        if death.error_id:
            facts["Polybus-Error-Id"] = death.error_id
        headers = {name: value for name, value in (message.headers or {}).items() if name.lower() != "nats-msg-id"}
        copy = message.with_headers({**headers, **facts})
        at = f"{self._cluster}.dead.{durable}.{escape_subject(message.subject)}"
        await self._publishing.store(copy, f"{death.stream}.{durable}.{death.number}", now + _PATIENCE, at)
