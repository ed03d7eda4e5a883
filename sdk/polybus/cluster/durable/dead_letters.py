"""Stores, reads and retries dead letters, which are stored publications that failed at every attempt."""

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
from .jetstream import NANOSECONDS, JetStream, JetStreamError, again, config_of, count_of, is_stream_name
from .stores import Stores, copy_of, stream_name

if TYPE_CHECKING:
    from .delivery import Delivery
    from .jetstream import StoredPublishing
    from .storage import DurableSpec

NAME: Final = "dead"  # Name of the store for dead letters
_AGE: Final = 30 * 86_400 * NANOSECONDS  # Time after which dead letters expire, in nanoseconds
_ONCE: Final = 86_400 * NANOSECONDS
"""Nanoseconds during which a publication has only one dead letter, even if a restarted server redelivers it."""
_TEXT: Final = 500  # Maximum length of a stored error text
_PATIENCE: Final = 10.0
_SUBJECTS: Final = 4096  # Maximum number of subjects for counting letters by handler. The engine's answer lists every subject.
ID: Final = "Polybus-Id"  # Header with the publication's id. The handler receives the same id on a retry.
WHOLE: Final = "Polybus-Whole"
"""Header of an incomplete letter: the number of the complete publication in the store of dead letters.

That publication has the subject ``<cluster>.dead.<durable>``, which does not match any pattern for letters.
"""
_LEFT_OUT: Final = "Polybus-Left-Out"
_REST: Final = 30 * 86_400.0
"""Seconds until redelivery if the letter is incomplete and the store removes acknowledged publications."""
_RESTS: Final = "; its letter is incomplete, so the publication stays stored until the letter is retried or dropped"
OVER: Final = "+TERM"  # Acknowledgement that ends redelivery. Newer servers also accept a reason after it.
_WORDS: Final = ("polybus-", "nats-")
_NO_LINE: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]+")


@frozen
class Death:
    """The reason why a stored publication becomes a dead letter."""

    attempts: int
    reason: str
    error_id: str = ""


class Graveyard(Protocol):
    """Interface of classes that store dead letters: `DeadLetters` and `foreign.ForeignLetters`."""

    @property
    def place(self) -> tuple[str, str] | None:
        """Stream and subject prefix of the letters, or `None` if letters are not stored."""
        ...

    async def prepare(self, stream: str) -> None:
        """Find or create the store for the dead letters of a stream."""

    async def bury(self, delivery: Delivery, spec: DurableSpec, death: Death, now: float) -> tuple[str, str]:
        """Store as much of a dead letter as possible. Raises `BusError` if no letter could be stored.

        An ordered handler cannot continue until the publication is acknowledged. Returns a suffix for the reason in the log,
        and the acknowledgement for the engine.
        """
        ...


@define(eq=False)
class LetterWriter:
    """Writes dead letters to ``<prefix>.<durable>.<subject>``."""

    prefix: str
    _publishing: StoredPublishing

    async def write(self, delivery: Delivery, durable: str, death: Death, now: float) -> bool:
        """Store a dead letter, only once per publication. Returns False if the whole publication could not be stored.

        If the letter would exceed a limit, it is stored without the headers and if necessary without the body, and records what
        is missing. The publication is then stored separately and unchanged, and the letter contains its number.
        """
        message, stream, number = delivery.message, delivery.stream, delivery.to.number
        facts = {
            "Polybus-Durable": durable,
            "Polybus-Attempts": str(death.attempts),
            "Polybus-Origin": f"{stream} {number}",
            "Polybus-Death": _NO_LINE.sub(" ", death.reason)[:_TEXT],
        }
        if death.error_id:
            facts["Polybus-Error-Id"] = death.error_id
        if delivery.all_came and message.id:  # otherwise the id is unknown
            facts[ID] = str(message.id)
        at = f"{self.prefix}.{durable}.{escape_subject(message.subject)}"
        id, deadline = f"{stream}.{delivery.created}.{durable}.{number}", now + _PATIENCE
        whole = message.with_headers({**_headers(message), **facts})
        if not delivery.to.fault and await self._fits(whole, id, deadline, at) is not None:
            return True
        kept = None
        if delivery.all_came:  # without an id, which may be too long: a second copy is harmless
            kept = await self._fits(message, "", deadline, f"{self.prefix}.{durable}", delivery.to.block)
        if kept is not None:
            facts[WHOLE] = str(kept["seq"])
        *larger, smallest = _parts(delivery, facts)
        for letter in larger:
            if await self._fits(letter, id, deadline, at) is not None:
                return kept is not None
        await self._publishing.store(smallest, id, deadline, at)
        return kept is not None

    async def _fits(self, message: Message, id: str, deadline: float, at: str, block: bytes = b"") -> dict[str, Any] | None:
        with suppress(LocalProtocolError, TooLarge):
            return await self._publishing.store(message, id, deadline, at, block=block)
        return None


@define(eq=False)
class DeadLetters:
    """Stores dead letters in ``<cluster>.dead.<durable>.<subject>``. Implements `Graveyard`."""

    _cluster: str
    _writer: LetterWriter
    _stores: Stores

    @property
    def place(self) -> tuple[str, str] | None:
        return stream_name(self._cluster, NAME), self._writer.prefix

    async def prepare(self, stream: str) -> None:
        """Create the store for dead letters if it does not exist, with as many replicas as `stream`."""
        wanted: dict[str, Any] = {
            "name": stream_name(self._cluster, NAME),
            "subjects": [f"{self._writer.prefix}.>"],
            "retention": "limits",
            "storage": "file",
            "discard": "old",
            "max_age": _AGE,
            "duplicate_window": _ONCE,
            "num_replicas": await self._stores.replicas(stream),
        }
        subjects = (await self._stores.make_if_absent(wanted)).get("subjects")
        if subjects != wanted["subjects"]:
            raise LocalProtocolError(
                f"the stream {wanted['name']!r} of the NATS server stores {shown(subjects)} instead of the dead letters "
                f"{self._writer.prefix}.>: a store of another cluster has that name; rename one of them"
            )

    async def bury(self, delivery: Delivery, spec: DurableSpec, death: Death, now: float) -> tuple[str, str]:
        stream = delivery.stream
        try:
            whole = await self._writer.write(delivery, spec.name, death, now)
        except LocalProtocolError:  # the store was removed, or lost with the engine's disk
            await self.prepare(stream)
            whole = await self._writer.write(delivery, spec.name, death, now)
        stays = whole or (await self._stores.config(stream)).get("retention") == "limits"
        if not stays and spec.ordered:
            members = {"retention": "limits", "storage": "file", "max_age": _AGE}
            subject = f"{self._cluster}.p.{escape_subject(delivery.message.subject)}"
            stays = await self._stores.copy_one(stream, delivery.to.number, subject, members)
        return ("", OVER) if stays else (_RESTS, again(_REST))


async def count_letters(jetstream: JetStream, stream: str, prefix: str, durable: str = "*") -> dict[str, int]:
    info = await jetstream.find(f"STREAM.INFO.{stream}", {"subjects_filter": f"{prefix}.{durable}.>"})
    state = (info or {}).get("state")
    subjects = state.get("subjects") if isinstance(state, dict) else None
    counts = dict[str, int]()
    for subject in subjects if isinstance(subjects, dict) else ():
        name = str(subject).removeprefix(f"{prefix}.").partition(".")[0]
        counts[name] = counts.get(name, 0) + count_of(subjects, subject)
    return counts


async def count_few_letters(jetstream: JetStream, stream: str, prefix: str) -> dict[str, int] | None:
    """Count dead letters by durable handler. Returns None if there are too many subjects for the engine to list."""
    state = (await jetstream.ask(f"STREAM.INFO.{stream}")).get("state")
    if not count_of(state, "messages"):
        return {}
    return await count_letters(jetstream, stream, prefix) if count_of(state, "num_subjects") <= _SUBJECTS else None


def _parts(delivery: Delivery, facts: dict[str, str]) -> list[Message]:
    """Return smaller versions of a letter, the largest first. Each omits more of the publication."""
    message, smallest = delivery.message, "headers, body"
    headers, without_headers = _headers(message), message.with_headers({**facts, _LEFT_OUT: "headers"})
    if not delivery.all_came:
        larger = []
    elif delivery.to.fault:
        larger = [message.with_headers({**headers, **facts, _LEFT_OUT: "headers"}), without_headers]
    elif headers:
        larger = [without_headers]
    else:
        larger, smallest = [], "body"
    return [*larger, Message(message.kind, message.subject, headers={**facts, _LEFT_OUT: smallest})]


def _headers(message: Message) -> dict[str, str]:
    """Return the headers, except dead-letter and engine headers, which a client may have sent."""
    headers = (message.headers or {}).items()
    return {name: value for name, value in headers if name.lower() == VIA or not name.lower().startswith(_WORDS)}


_GONE: Final = (10037, 10043, 10057)  # Error numbers for removing a message that does not exist
_LARGEST_HEADERS: Final = 64 * 1024 * 1024  # Maximum size of the headers, in bytes. No server accepts more from a publisher.
_NO_HEADERS: Final = b"NATS/1.0\r\n\r\n"
_AGAIN: Final = 30.0  # Maximum number of seconds for storing a publication again
_OWN: Final = ("durable", "attempts", "origin", "death", "error-id", "left-out")
_FACTS: Final = (*(f"polybus-{name}" for name in _OWN), MESSAGE_ID.lower(), ID.lower(), WHOLE.lower())


def _block_of(message: dict[str, Any]) -> HeaderBlock:
    """Parse the headers of a stored message. Raises `BusError` or `ValueError` if they are invalid."""
    return HeaderReader(_LARGEST_HEADERS).read(base64.b64decode(message.get("hdrs") or "") or _NO_HEADERS)


def _id_of(block: HeaderBlock) -> str:
    facts = {name.lower(): value for name, value in (block.fields or {}).items()}
    return facts.get(ID.lower()) or facts.get(MESSAGE_ID.lower()) or ""


@frozen
class DeadLetter:
    number: int  # Sequence number in the store of dead letters
    at: str  # Time at which the letter was stored, in the engine's format
    durable: str
    subject: str | int
    attempts: int
    death: str  # Reason why there were no more attempts
    error_id: str  # Id of the last failure in the log. Empty if no worker reported a failure.
    origin: str  # Stream and number of the publication
    headers: dict[str, str]
    body: bytes
    octets: bool  # True if the body is bytes, even if it looks like JSON
    left_out: str = ""  # ``headers``, ``body`` or both, if they did not fit into the letter
    whole: int = 0  # Number of the complete publication in the store of dead letters, or 0 if it is not stored there
    id: str = ""  # Id that the handler received
    fault: str = ""  # Reason why the letter cannot be decoded, or an empty string


@frozen
class LetterPlace:
    owner: str  # Name of the cluster or stream, for error texts
    stream: str
    prefix: str
    written: Callable[[str | int], str]  # Converts a subject to a wire subject
    ours: bool  # True if the stream belongs to this cluster. Removing a letter then also removes the publication stored for it.


@define(eq=False)
class Letters:
    _place: LetterPlace
    _jetstream: JetStream
    publishing: StoredPublishing
    _time: Callable[[], float]

    async def unknown(self) -> str:
        """Return a possible reason why there are no letters, or an empty string."""
        return ""

    async def counts(self, durable: str = "*") -> dict[str, int]:
        return await count_letters(self._jetstream, self._place.stream, self._place.prefix, durable)

    async def durables(self) -> set[str]:
        return set(await self.counts())

    async def check(self, durable: str = "") -> None:
        """Raise `LocalProtocolError` if no letters can exist, or if you pass the name of an unknown durable handler."""
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
        info = await self._jetstream.find(f"STREAM.INFO.{self._place.stream}") or {}
        number, last = 1, count_of(info.get("state"), "last_seq")
        while number <= last:
            wanted = {"seq": number, "next_by_subj": f"{self._place.prefix}.{durable or '*'}.>"}
            letter = await self._letter(wanted)
            if letter is None or letter.number > last:
                return
            yield letter
            number = letter.number + 1

    async def letter(self, number: int) -> DeadLetter:
        letter = await self._letter({"seq": number})
        if letter is None:
            raise LocalProtocolError(f"{self._place.owner} has no dead letter {number}")
        return letter

    async def _letter(self, wanted: dict[str, Any]) -> DeadLetter | None:
        message = _message_in(await self._jetstream.find(f"STREAM.MSG.GET.{self._place.stream}", wanted))
        if self._is_whole(message) or not str(message.get("subject", "")).startswith(f"{self._place.prefix}."):
            return None  # an external stream may also contain other messages
        try:
            return self._read(message)
        except (BusError, ValueError, KeyError, TypeError) as error:  # any program may have written it
            rest = str(message.get("subject", "")).removeprefix(f"{self._place.prefix}.")
            durable, _, subject = rest.partition(".")
            fault = f"not a polybus dead letter, or unreadable: {error}"
            number, at = count_of(message, "seq"), str(message.get("time", ""))
            return DeadLetter(number, at, durable, subject, 0, fault, "", "", {}, b"", octets=True, fault=fault)

    def _is_whole(self, message: dict[str, Any]) -> bool:
        """Return True for a complete publication that was stored separately because its letter is incomplete."""
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
        """Store the publication again, for the letter's durable handler only, and remove the letter.

        If the letter is incomplete, the missing parts come from the separately stored publication. Raises `LocalProtocolError`
        if that publication is gone, the letter cannot be decoded, or the handler does not exist.
        """
        if letter.fault:
            raise LocalProtocolError(f"dead letter {letter.number}: {letter.fault}")
        await self._check_wanted(letter)
        whole = await self._completed(letter) if letter.left_out else letter
        format = OCTETS if whole.octets else JSON
        headers = {**whole.headers, **({ID: whole.id} if whole.id else {})}
        body = whole.body or (b"" if whole.octets else None)
        message = Message(Kind.PUBLISH, letter.subject, None, body, format, headers or None)
        id = f"dead.{letter.durable}.{letter.number}.{letter.at}"
        await self.publishing.store(message, id, self._time() + _AGAIN, only=letter.durable)
        await self.drop(letter)

    async def _check_wanted(self, letter: DeadLetter) -> None:
        """Check that the durable handler exists, because no other handler accepts the retry."""
        at = self._place.written(letter.subject)
        names = await self._jetstream.streams(at)
        if not names:
            raise LocalProtocolError(f"dead letter {letter.number}: there is no store for {letter.subject!r} any more")
        try:
            consumer = config_of(await self._jetstream.ask(f"CONSUMER.INFO.{names[0]}.{letter.durable}"))
        except JetStreamError:
            consumer = {}
        if not covers(str(consumer.get("filter_subject", "")), at):
            raise LocalProtocolError(
                f"dead letter {letter.number}: the store {names[0]} has no durable handler {letter.durable!r} for "
                f"{letter.subject!r}: start one first, or drop the letter"
            )

    async def _completed(self, letter: DeadLetter) -> DeadLetter:
        if (message := await self._original(letter)) is None:
            missing = f"dead letter {letter.number} has no {letter.left_out}"
            raise LocalProtocolError(f"{missing}, and the publication is no longer stored at {letter.origin!r}")
        block = _block_of(message)
        fields = {name: value for name, value in (block.fields or {}).items() if name.lower() not in _FACTS}
        body = base64.b64decode(message.get("data") or "")
        id = letter.id or _id_of(block)
        return evolve(letter, headers=fields, body=body, octets=block.octets, left_out="", id=id)

    async def _original(self, letter: DeadLetter) -> dict[str, Any] | None:
        """Find the complete publication of a letter. Returns None if it is gone, even if its number has been reused."""
        if letter.whole:
            message = await self._message_at(self._place.stream, letter.whole)
            return message if self._is_whole(message) else None
        stream, number = _origin(letter)
        if not is_stream_name(stream) or not number:
            return None
        for place, at in ((copy_of(stream, number), 1), (stream, number)):
            message = await self._message_at(place, at)
            if message.get("subject") == self._place.written(letter.subject):
                id = _id_of(_block_of(message))
                if not id or not letter.id or id == letter.id:
                    return message
        return None

    async def _message_at(self, stream: str, number: int) -> dict[str, Any]:
        with suppress(JetStreamError):
            return _message_in(await self._jetstream.ask(f"STREAM.MSG.GET.{stream}", {"seq": number}))
        return {}

    async def _remove_original(self, letter: DeadLetter) -> None:
        """Remove the publication that was stored for an incomplete letter, either next to the letter or in a work store."""
        if not (letter.whole or self._place.ours) or await self._original(letter) is None:
            return
        if letter.whole:
            await self._remove_message(self._place.stream, letter.whole)
            return
        stores, (stream, number) = Stores(self._jetstream), _origin(letter)
        await stores.remove_copy(stream, number)
        if await self._original(letter) is not None and (await stores.config(stream)).get("retention") == "workqueue":
            await self._remove_message(stream, number)

    async def _remove_message(self, stream: str, number: int) -> None:
        with suppress(JetStreamError):  # already gone
            await self._jetstream.ask(f"STREAM.MSG.DELETE.{stream}", {"seq": number})

    async def drop(self, letter: DeadLetter) -> None:
        """Remove a dead letter if it still exists, together with the publication that was stored for it."""
        if letter.left_out:
            await self._remove_original(letter)
        try:
            await self._jetstream.ask(f"STREAM.MSG.DELETE.{self._place.stream}", {"seq": letter.number})
        except JetStreamError as error:
            if error.number not in _GONE:
                raise LocalProtocolError(f"dead letter {letter.number}: {error.text}") from None


def _message_in(answer: dict[str, Any] | None) -> dict[str, Any]:
    message = (answer or {}).get("message")
    return message if isinstance(message, dict) else {}


def _origin(letter: DeadLetter) -> tuple[str, int]:
    """Return the stream and number of a letter's publication. If the header is not valid, the number is 0."""
    stream, _, number = letter.origin.partition(" ")
    return stream, int(number) if number.isascii() and number.isdigit() else 0
