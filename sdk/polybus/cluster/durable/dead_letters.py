"""Dead letters: stored publications that no attempt could deal with, kept with what is known of them."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Protocol

from attrs import define, frozen

from ...errors import LocalProtocolError, TooLarge
from ...headers import VIA
from ...message import Message
from ...protocols.nats.cluster.subjects import escape_subject
from .jetstream import NANOSECONDS, NOT_FOUND, JetStreamError, count_of
from .stores import stream_name

if TYPE_CHECKING:
    from .jetstream import JetStream
    from .publishing import StoredPublishing
    from .stores import Stores

NAME: Final = "dead"
"""The name of their store."""
_DAYS: Final = 30
"""Days for which they are kept."""
_ONCE: Final = 86_400
"""Seconds within which a publication has one letter: a server that was killed may give out once more what was dealt with."""
_TEXT: Final = 500
"""Characters of an error that are kept."""
_PATIENCE: Final = 10.0
"""Seconds to store one."""
_SUBJECTS: Final = 4096
"""Subjects of letters up to which they are counted by their handlers: an engine answers with the name of each."""
ID: Final = "Polybus-Id"
"""The id of the publication, by which its handlers know it when it is tried again."""
WHOLE: Final = "Polybus-Whole"
"""The number of the whole publication in the store of dead letters, where its letter leaves something out.

Its subject there is ``<cluster>.dead.<durable>``: no pattern of letters matches that."""
_LEFT_OUT: Final = "Polybus-Left-Out"
_RESTS: Final = "; its letter has not all of it, so it rests where it is stored until that is retried or dropped"
OVER: Final = "+TERM"
"""The word by which a publication comes no more, which newer servers hear the reason behind."""
_WORDS: Final = ("polybus-", "nats-")
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
        readable: False where its headers could not be read, or nothing has come of it.
        block: Such headers, as they came; empty where nothing has.
        created: When the stream was made, by which it is told from a later one of its name; empty where that is not known.
    """

    attempts: int
    reason: str
    error_id: str
    stream: str
    number: int
    id: str = ""
    readable: bool = True
    block: bytes = b""
    created: str = ""

    @property
    def all_came(self) -> bool:
        """True where all of the publication has come, whether it could be read or not."""
        return self.readable or bool(self.block)


@frozen
class Burial:
    """The result of keeping a dead letter.

    Attributes:
        note: Behind the reason, for people.
        word: The word by which the engine gives the publication out no more.
        rests: The publication has to rest where it is stored: nobody else has all of it.
    """

    note: str
    word: str
    rests: bool = False


class Graveyard(Protocol):
    """Keeps dead letters: `DeadLetters`; of streams of others `foreign.NoLetters`, `foreign.ForeignLetters`."""

    @property
    def place(self) -> tuple[str, str] | None:
        """The stream of the letters, and the first tokens of their subjects; None where none are kept."""
        ...

    async def prepare(self, stream: str) -> None:
        """See to it that letters of publications of a stream can be kept."""

    async def bury(self, message: Message, durable: str, death: Death, now: float, *, ordered: bool) -> Burial:
        """Return when a dead letter is kept, as far as that can be.

        Args:
            message: The publication.
            durable: The name of its handler.
            death: What is known of it.
            now: The time.
            ordered: The handler stands still while a publication rests.
        """
        ...


@define(eq=False)
class LetterWriter:
    """Writes dead letters, under ``<prefix>.<durable>.<subject>``.

    Attributes:
        prefix: The first tokens of their subjects, for which there is a store.
    """

    prefix: str
    _publishing: StoredPublishing

    async def write(self, message: Message, durable: str, death: Death, now: float) -> bool:
        """Return when a dead letter is stored; once, however often it is tried. False where it does not lead to all there was.

        What has no room beside its story is left out, and said to be: the headers, else the body, too. Then the publication is
        stored as it was, too, and the letter names its number.

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
        at = f"{self.prefix}.{durable}.{escape_subject(message.subject)}"
        id, deadline = f"{death.stream}.{death.created}.{durable}.{death.number}", now + _PATIENCE
        if death.readable and await self._fits(_whole(message, facts), id, deadline, at) is not None:
            return True
        # Without an id, which it may have no room for: one that is stored twice is of no more use, and of no harm.
        beside, kept = f"{self.prefix}.{durable}", None
        if death.all_came:
            kept = await self._fits(message, "", deadline, beside, death.block)
        if kept is not None:
            facts[WHOLE] = str(kept["seq"])
        *larger, smallest = _parts(message, facts, death)
        for letter in larger:
            if await self._fits(letter, id, deadline, at) is not None:
                return kept is not None
        await self._publishing.store(smallest, id, deadline, at)
        return kept is not None

    async def _fits(self, message: Message, id: str, deadline: float, at: str, block: bytes = b"") -> dict[str, Any] | None:
        """Store a message, and give what the engine says; None where it is over the limits."""
        with suppress(LocalProtocolError, TooLarge):
            return await self._publishing.store(message, id, deadline, at, block=block)
        return None


@define(eq=False)
class DeadLetters:
    """Stores dead letters, under ``<cluster>.dead.<durable>.<subject>``. Implements `Graveyard`."""

    _cluster: str
    _writer: LetterWriter
    _stores: Stores

    @property
    def place(self) -> tuple[str, str] | None:
        return stream_name(self._cluster, NAME), self._writer.prefix

    async def prepare(self, stream: str) -> None:
        """Make their store where there is none, on as many servers as the first stream that it is for.

        One that is there is as its makers want it.

        Raises:
            BusError: As `Stores.make_if_absent` and `Stores.replicas`.
        """
        await self._stores.make_if_absent(
            {
                "name": stream_name(self._cluster, NAME),
                "subjects": [f"{self._writer.prefix}.>"],
                "retention": "limits",
                "storage": "file",
                "discard": "old",
                "max_age": _DAYS * 86_400 * NANOSECONDS,
                "duplicate_window": _ONCE * NANOSECONDS,
                "num_replicas": await self._stores.replicas(stream),
            }
        )

    async def bury(self, message: Message, durable: str, death: Death, now: float, *, ordered: bool) -> Burial:
        """Return when a dead letter is stored, as `Graveyard.bury`; where their store is gone, it is made again.

        Raises:
            BusError: As `LetterWriter.write` and `prepare`.
        """
        try:
            whole = await self._writer.write(message, durable, death, now)
        except LocalProtocolError:  # nothing keeps it: their store was removed, or lost with what the engine had
            await self.prepare(death.stream)
            whole = await self._writer.write(message, durable, death, now)
        rests = not whole and not await self._keeps_original(death.stream)
        if rests and ordered:
            rests = not await self._copy(message, death.stream, death.number)
        return Burial(_RESTS if rests else "", OVER, rests)

    async def _copy(self, message: Message, stream: str, number: int) -> bool:
        """Have the engine keep a copy of a publication of which its letter has not all; False where it does not."""
        members = {
            "retention": "limits",
            "storage": "file",
            "max_age": _DAYS * 86_400 * NANOSECONDS,
        }
        return await self._stores.copy_one(stream, number, f"{self._cluster}.p.{escape_subject(message.subject)}", members)

    async def _keeps_original(self, stream: str) -> bool:
        """Tell whether a publication stays where it is stored when it is dealt with.

        Raises:
            BusError: As `JetStream.ask`.
        """
        return await self._stores.retention(stream) == "limits"


async def count_letters(jetstream: JetStream, stream: str, prefix: str, durable: str = "*") -> dict[str, int]:
    """Count dead letters by durable handler, of one or of all; nothing where there is no such stream.

    Raises:
        LocalProtocolError: The engine refuses.
        BusError: As `JetStream.ask`.
    """
    try:
        info = await jetstream.ask(f"STREAM.INFO.{stream}", {"subjects_filter": f"{prefix}.{durable}.>"})
    except JetStreamError as error:
        if error.number == NOT_FOUND:
            return {}
        raise LocalProtocolError(f"dead letters: the NATS server says: {error.text}") from None
    state = info.get("state")
    subjects = state.get("subjects") if isinstance(state, dict) else None
    counts = dict[str, int]()
    for subject in subjects if isinstance(subjects, dict) else ():
        name = str(subject).removeprefix(f"{prefix}.").partition(".")[0]
        counts[name] = counts.get(name, 0) + count_of(subjects, subject)
    return counts


async def count_few_letters(jetstream: JetStream, stream: str, prefix: str) -> dict[str, int] | None:
    """Count dead letters by durable handler, where the answer is surely short; None where they have too many subjects.

    Raises:
        BusError, JetStreamError: As `count_letters`, and `JetStream.ask`.
    """
    state = (await jetstream.ask(f"STREAM.INFO.{stream}")).get("state")
    if not count_of(state, "messages"):
        return {}
    return await count_letters(jetstream, stream, prefix) if count_of(state, "num_subjects") <= _SUBJECTS else None


def _whole(message: Message, facts: dict[str, str]) -> Message:
    """Make the letter of a publication with its story."""
    return message.with_headers({**_headers(message), **facts})


def _parts(message: Message, facts: dict[str, str], death: Death) -> list[Message]:
    """Make letters that leave something out, each more than the one before."""
    headers, smallest = _headers(message), "headers, body"
    without_headers = message.with_headers({**facts, _LEFT_OUT: "headers"})
    if not death.all_came:
        larger = []
    elif not death.readable:
        larger = [message.with_headers({**headers, **facts, _LEFT_OUT: "headers"}), without_headers]
    elif headers:
        larger = [without_headers]
    else:
        larger, smallest = [], "body"
    return [*larger, Message(message.kind, message.subject, headers={**facts, _LEFT_OUT: smallest})]


def _headers(message: Message) -> dict[str, str]:
    """The headers of a publication, without words of a letter or of the engine, which clients may send."""
    headers = (message.headers or {}).items()
    return {name: value for name, value in headers if name.lower() == VIA or not name.lower().startswith(_WORDS)}
