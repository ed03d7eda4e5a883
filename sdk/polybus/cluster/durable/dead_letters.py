"""Dead letters: stored publications that no attempt could deal with, kept with what is known of them."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from attrs import define, frozen

from ...errors import LocalProtocolError, TooLarge
from ...message import Message
from ...protocols.nats.cluster.subjects import escape_subject
from .jetstream import NANOSECONDS
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
ID: Final = "Polybus-Id"
"""The id of the publication, by which its handlers know it when it is tried again."""
_LEFT_OUT: Final = "Polybus-Left-Out"
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
        id: The id that its handlers saw.
        readable: False where neither its headers nor its body could be read.
    """

    attempts: int
    reason: str
    error_id: str
    stream: str
    number: int
    id: str = ""
    readable: bool = True


@define(eq=False)
class DeadLetters:
    """Stores dead letters, under ``<cluster>.dead.<durable>.<subject>``."""

    _cluster: str
    _publishing: StoredPublishing
    _stores: Stores
    _replicas: int

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
                "max_age": _DAYS * 86_400 * NANOSECONDS,
                "num_replicas": self._replicas,
            }
        )

    async def keep(self, message: Message, durable: str, death: Death, now: float) -> bool:
        """Return when a dead letter is stored; once, however often it is tried. False where something is left out of it.

        What has no room beside its story is left out, and said to be: the headers, else the body, too.

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
        if death.id:
            facts[ID] = death.id
        at = f"{self._cluster}.dead.{durable}.{escape_subject(message.subject)}"
        *larger, smallest = _letters(message, facts, readable=death.readable)
        id, deadline = f"{death.stream}.{durable}.{death.number}", now + _PATIENCE
        for letter in larger:
            with suppress(LocalProtocolError, TooLarge):  # it is over the limits
                await self._publishing.store(letter, id, deadline, at)
                return _LEFT_OUT not in (letter.headers or {})
        await self._publishing.store(smallest, id, deadline, at)
        return False

    async def keeps_original(self, stream: str) -> bool:
        """Tell whether a publication stays where it is stored when it is dealt with.

        Raises:
            BusError: As `JetStream.ask`.
        """
        return await self._stores.retention(stream) == "limits"


def _letters(message: Message, facts: dict[str, str], *, readable: bool) -> list[Message]:
    """Make the letter of a publication and its story, and smaller ones."""
    if not readable:
        return [Message(message.kind, message.subject, headers={**facts, _LEFT_OUT: "headers, body"})]
    headers = {name: value for name, value in (message.headers or {}).items() if name.lower() != "nats-msg-id"}
    letters = [message.with_headers({**headers, **facts})]
    left_out = "body"
    if headers:
        letters.append(message.with_headers({**facts, _LEFT_OUT: "headers"}))
        left_out = "headers, body"
    letters.append(Message(message.kind, message.subject, headers={**facts, _LEFT_OUT: left_out}))
    return letters
