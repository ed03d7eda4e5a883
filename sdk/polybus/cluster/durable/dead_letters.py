"""Dead letters: stored publications that no attempt could deal with, kept with what is known of them."""

from __future__ import annotations

import base64
import re
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Protocol

from attrs import define, evolve, frozen

from ...body import JSON, OCTETS
from ...errors import BusError, LocalProtocolError, TooLarge
from ...headers import VIA
from ...message import Kind, Message
from ...plugins.tools import shown
from ...protocols.nats.cluster.subjects import covers, escape_subject, unescape_subject
from ...protocols.nats.headers import MESSAGE_ID, HeaderBlock, HeaderReader
from .jetstream import NANOSECONDS, NOT_FOUND, JetStream, JetStreamError, config_of, count_of, is_stream_name
from .stores import Stores, copy_of, stream_name

if TYPE_CHECKING:
    from .jetstream import StoredPublishing

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


# -- letters, read and tried again ------------------------------------------------------------------------------------------

_NO_MESSAGE: Final = 10037
_GONE: Final = (_NO_MESSAGE, 10043, 10057)
"""Numbers of errors of a removal: there is no such message."""
_LARGEST_HEADERS: Final = 64 * 1024 * 1024
"""Bytes: whatever a publisher was allowed, and a server takes."""
_NO_HEADERS: Final = b"NATS/1.0\r\n\r\n"
_AGAIN: Final = 30.0
"""Seconds to store a dead letter again."""
_FACTS: Final = (
    "polybus-durable",
    "polybus-attempts",
    "polybus-origin",
    "polybus-death",
    "polybus-error-id",
    "polybus-left-out",
    "nats-msg-id",
    ID.lower(),
    WHOLE.lower(),
)


def _block_of(message: dict[str, Any]) -> HeaderBlock:
    """Read the headers of a stored message. May raise BusError or ValueError: any program may have written them."""
    return HeaderReader(_LARGEST_HEADERS).read(base64.b64decode(message.get("hdrs") or "") or _NO_HEADERS)


def _id_of(block: HeaderBlock) -> str:
    """Find the id of a publication in its headers; empty where it has none."""
    facts = {name.lower(): value for name, value in (block.fields or {}).items()}
    return facts.get(ID.lower()) or facts.get(MESSAGE_ID.lower()) or ""


@frozen
class DeadLetter:
    """A dead letter.

    Attributes:
        number: In the store of dead letters.
        at: When it died, as the engine writes it.
        durable: The durable handler that could not deal with it.
        subject: Of the publication.
        attempts: How often a handler had it.
        death: Why there are no more attempts.
        error_id: Of the last failure, as in the log; empty where there is none.
        origin: Stream and number of the publication.
        id: The id that its handler saw.
        headers: Of the application.
        body: As it was.
        octets: The body is bytes, whatever it looks like.
        left_out: ``headers``, ``body`` or both, where there was no room for them beside its story.
        whole: The number in the store of dead letters under which the publication is as it was; 0 where it is not there.
        fault: Why it cannot be read; empty where it can.
    """

    number: int
    at: str
    durable: str
    subject: str | int
    attempts: int
    death: str
    error_id: str
    origin: str
    headers: dict[str, str]
    body: bytes
    octets: bool
    left_out: str = ""
    whole: int = 0
    id: str = ""
    fault: str = ""


@frozen
class LetterPlace:
    """The place where dead letters are kept, and the publications that they are of.

    Attributes:
        owner: Whose they are, for people.
        stream: The stream of the letters.
        prefix: The first tokens of their subjects.
        written: Gives the subject of a publication on the wire.
        ours: What rests in a stream because of a letter is this bus's own, and removed with it.
    """

    owner: str
    stream: str
    prefix: str
    written: Callable[[str | int], str]
    ours: bool


@define(eq=False)
class Letters:
    """The dead letters that are kept at one place."""

    _place: LetterPlace
    _jetstream: JetStream
    _publishing: StoredPublishing
    _time: Callable[[], float]

    async def unknown(self) -> str:
        """Say what may be wrong with the place where there is nothing; empty where that is not known.

        Raises:
            BusError: As `JetStream.ask`.
        """
        return ""

    async def counts(self, durable: str = "*") -> dict[str, int]:
        """Count the dead letters by the durable handlers that they are of, of one or of all.

        Raises:
            BusError: As `JetStream.ask`.
        """
        return await count_letters(self._jetstream, self._place.stream, self._place.prefix, durable)

    async def durables(self) -> set[str]:
        """Find the names of durable handlers that may have letters.

        Raises:
            BusError: As `JetStream.ask`.
        """
        return set(await self.counts())

    async def check(self, durable: str = "") -> None:
        """Check that a place where nothing was found is there, and that such a durable handler is known, if one is named.

        Raises:
            LocalProtocolError: It is not, or its name is close to that of another one.
            BusError: As `JetStream.ask`.
        """
        if unknown := await self.unknown():
            raise LocalProtocolError(unknown)
        known = await self.durables() if durable else set[str]()
        if durable in known:
            return
        from difflib import get_close_matches

        near = get_close_matches(durable, sorted(known), 1)
        if durable and (near or self._place.ours):
            hint = f": did you mean {near[0]!r}?" if near else f"; it has {shown(sorted(known)).strip('[]')}" if known else ""
            raise LocalProtocolError(f"{self._place.owner} has no durable handler {durable!r}{hint}")

    async def letters(self, durable: str = "") -> AsyncGenerator[DeadLetter]:
        """Find the dead letters that there are now, of one durable handler or of all, the oldest first.

        Raises:
            BusError: As `JetStream.ask`.
        """
        number, last = 1, await self._last_letter()
        while number <= last:
            wanted = {"seq": number, "next_by_subj": f"{self._place.prefix}.{durable or '*'}.>"}
            letter = await self._letter(wanted)
            if letter is None or letter.number > last:
                return
            yield letter
            number = letter.number + 1

    async def _last_letter(self) -> int:
        try:
            info = await self._jetstream.ask(f"STREAM.INFO.{self._place.stream}")
        except JetStreamError as error:
            if error.number == NOT_FOUND:
                return 0
            raise LocalProtocolError(f"dead letters: the NATS server says: {error.text}") from None
        return count_of(info.get("state"), "last_seq")

    async def letter(self, number: int) -> DeadLetter:
        """Find one dead letter.

        Raises:
            LocalProtocolError: There is none of this number.
            BusError: As `JetStream.ask`.
        """
        letter = await self._letter({"seq": number})
        if letter is None:
            raise LocalProtocolError(f"{self._place.owner} has no dead letter {number}")
        return letter

    async def _letter(self, wanted: dict[str, Any]) -> DeadLetter | None:
        try:
            answer = await self._jetstream.ask(f"STREAM.MSG.GET.{self._place.stream}", wanted)
        except JetStreamError as error:
            if error.number in (NOT_FOUND, _NO_MESSAGE):
                return None
            raise LocalProtocolError(f"dead letters: the NATS server says: {error.text}") from None
        message = answer.get("message")
        message = message if isinstance(message, dict) else {}
        if self._is_whole(message) or not str(message.get("subject", "")).startswith(f"{self._place.prefix}."):
            return None  # a stream of others may keep more than letters
        try:
            return self._read(message)
        except (BusError, ValueError, KeyError, TypeError) as error:  # any program may have written it
            rest = str(message.get("subject", "")).removeprefix(f"{self._place.prefix}.")
            durable, _, subject = rest.partition(".")
            fault = f"it is no dead letter of polybus, or cannot be read: {error}"
            number, at = count_of(message, "seq"), str(message.get("time", ""))
            return DeadLetter(number, at, durable, subject, 0, fault, "", "", {}, b"", octets=True, fault=fault)

    def _is_whole(self, message: dict[str, Any]) -> bool:
        """Tell whether this is a publication as it was, which a letter leads to, and no letter."""
        head, _, rest = str(message.get("subject", "")).rpartition(".")
        return head == self._place.prefix and bool(rest)

    def _read(self, message: dict[str, Any]) -> DeadLetter:
        block = _block_of(message)
        fields = dict(block.fields or {})
        facts = {name.lower(): value for name, value in fields.items()}
        durable, _, rest = str(message["subject"]).removeprefix(f"{self._place.prefix}.").partition(".")
        return DeadLetter(
            number=int(message["seq"]),
            at=str(message.get("time", "")),
            durable=durable,
            subject=unescape_subject(rest),
            attempts=int(facts.get("polybus-attempts", "0")),
            death=facts.get("polybus-death", ""),
            error_id=facts.get("polybus-error-id", ""),
            origin=facts.get("polybus-origin", ""),
            headers={name: value for name, value in fields.items() if name.lower() not in _FACTS},
            body=base64.b64decode(message.get("data") or ""),
            octets=block.octets,
            left_out=facts.get("polybus-left-out", ""),
            whole=int(facts.get(WHOLE.lower(), "0")),
            id=facts.get(ID.lower(), ""),
        )

    async def retry(self, letter: DeadLetter) -> None:
        """Store a dead letter again, for its durable handler alone, and remove it when it is stored.

        What was left out of it is taken from where the publication is stored.

        Raises:
            LocalProtocolError: That is gone, or the letter cannot be read, or nobody would be given it.
            BusError: As `StoredPublishing.store`.
        """
        if letter.fault:
            raise LocalProtocolError(f"dead letter {letter.number}: {letter.fault}")
        await self._check_wanted(letter)
        whole = await self._completed(letter) if letter.left_out else letter
        format = OCTETS if whole.octets else JSON
        headers = {**whole.headers, **({ID: whole.id} if whole.id else {})}
        message = Message(Kind.PUBLISH, letter.subject, None, whole.body or None, format, headers or None)
        id = f"dead.{letter.durable}.{letter.number}.{letter.at}"
        await self._publishing.store(message, id, self._time() + _AGAIN, only=letter.durable)
        await self.drop(letter)

    async def _check_wanted(self, letter: DeadLetter) -> None:
        """Check that its durable handler is there: anybody else would leave out what is stored again."""
        at = self._place.written(letter.subject)
        names = await self._jetstream.streams(at)
        if not names:
            raise LocalProtocolError(f"dead letter {letter.number}: no store keeps {letter.subject!r} any more")
        try:
            consumer = config_of(await self._jetstream.ask(f"CONSUMER.INFO.{names[0]}.{letter.durable}"))
        except JetStreamError:
            consumer = {}
        if not covers(str(consumer.get("filter_subject", "")), at):
            raise LocalProtocolError(
                f"dead letter {letter.number}: there is no durable handler {letter.durable!r} of the store {names[0]} that is "
                f"given {letter.subject!r}: start one that names it before, or drop the letter"
            )

    async def _completed(self, letter: DeadLetter) -> DeadLetter:
        message = await self._original(letter)
        if message is None:
            missing = f"dead letter {letter.number} has no {letter.left_out}"
            raise LocalProtocolError(f"{missing}, and the publication is not at {letter.origin!r} any more")
        block = _block_of(message)
        fields = {name: value for name, value in (block.fields or {}).items() if name.lower() not in _FACTS}
        body = base64.b64decode(message.get("data") or "")
        id = letter.id or _id_of(block)
        return evolve(letter, headers=fields, body=body, octets=block.octets, left_out="", id=id)

    async def _original(self, letter: DeadLetter) -> dict[str, Any] | None:
        """Find the publication of a letter, as it was; None where it is gone, or another one has its number."""
        if letter.whole:
            message = await self._message_at(self._place.stream, letter.whole)
            return message if self._is_whole(message) else None
        stream, _, number = letter.origin.partition(" ")
        if not is_stream_name(stream) or not (number.isascii() and number.isdigit()):
            return None
        for place, at in ((copy_of(stream, int(number)), 1), (stream, int(number))):
            message = await self._message_at(place, at)
            if message.get("subject") == self._place.written(letter.subject):
                id = _id_of(_block_of(message))
                if not id or not letter.id or id == letter.id:
                    return message
        return None

    async def _message_at(self, stream: str, number: int) -> dict[str, Any]:
        """Find what a stream has under a number; empty where that is nothing."""
        with suppress(JetStreamError):
            message = (await self._jetstream.ask(f"STREAM.MSG.GET.{stream}", {"seq": number})).get("message")
            return message if isinstance(message, dict) else {}
        return {}

    async def _remove_original(self, letter: DeadLetter) -> None:
        """Remove what is kept because a letter has not all of it: beside the letter, or where it rests in a store of work."""
        if letter.whole:
            if await self._original(letter) is not None:
                await self._remove_message(self._place.stream, letter.whole)
            return
        if not self._place.ours:
            return
        stream, _, number = letter.origin.partition(" ")
        if await self._original(letter) is not None:
            await Stores(self._jetstream).remove_copy(stream, int(number))
        if await self._original(letter) is None or await Stores(self._jetstream).retention(stream) != "workqueue":
            return
        await self._remove_message(stream, int(number))

    async def _remove_message(self, stream: str, number: int) -> None:
        with suppress(JetStreamError):  # it is gone
            await self._jetstream.ask(f"STREAM.MSG.DELETE.{stream}", {"seq": number})

    async def drop(self, letter: DeadLetter) -> None:
        """Remove a dead letter, and what rests in a store of work because of it; one that is gone is gone.

        Raises:
            BusError: As `JetStream.ask`.
        """
        if letter.left_out:
            await self._remove_original(letter)
        try:
            await self._jetstream.ask(f"STREAM.MSG.DELETE.{self._place.stream}", {"seq": letter.number})
        except JetStreamError as error:
            if error.number in _GONE:
                return
            raise LocalProtocolError(f"dead letter {letter.number}: the NATS server says: {error.text}") from None
