"""Dead letters, as those look at them who keep a cluster or a stream for letters: listed, shown, tried again, dropped."""

from __future__ import annotations

import base64
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from attrs import define, evolve, frozen

from ..._validation import shown
from ...body import JSON, OCTETS
from ...errors import BusError, LocalProtocolError
from ...message import Kind, Message
from ...protocols.nats.cluster.subjects import covers, unescape_subject
from ...protocols.nats.headers import MESSAGE_ID, HeaderBlock, HeaderReader
from .dead_letters import ID, WHOLE, count_letters
from .jetstream import NOT_FOUND, JetStream, JetStreamError, config_of, count_of, is_stream_name
from .stores import Stores, copy_of

if TYPE_CHECKING:
    from .publishing import StoredPublishing

_NO_MESSAGE: Final = 10037
_GONE: Final = (_NO_MESSAGE, 10043, 10057)
"""Numbers of errors of a removal: there is no such message."""
_LARGEST_HEADERS: Final = 64 * 1024 * 1024
"""Bytes: whatever a publisher was allowed, and a server takes."""
_NO_HEADERS: Final = b"NATS/1.0\r\n\r\n"
_PATIENCE: Final = 30.0
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
        await self._publishing.store(message, id, self._time() + _PATIENCE, only=letter.durable)
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
