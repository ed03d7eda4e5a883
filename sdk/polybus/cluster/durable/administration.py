"""Stores and dead letters, as those look at them who keep a cluster: listed, shown, made, removed, tried again."""

from __future__ import annotations

import base64
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from attrs import define, evolve, field, frozen

from ..._bus.bus import Bus, parts_of
from ..._validation import shown
from ...body import JSON, OCTETS
from ...errors import BusError, LocalProtocolError
from ...message import Kind, Message
from ...protocols.nats.cluster.subjects import covers, escape_subject, publication_pattern, unescape_subject
from ...protocols.nats.headers import MESSAGE_ID, HeaderBlock, HeaderReader
from ..backbone import Backbone
from .dead_letters import ID, WHOLE
from .dead_letters import NAME as DEAD
from .jetstream import NO_CONSUMER, NOT_FOUND, JetStream, JetStreamError, config_of, count_of, is_stream_name
from .publishing import StoredPublishing
from .stores import Stores, copy_of, stream_members, stream_name

if TYPE_CHECKING:
    from ..._bus.store import Store

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
class StoreState:
    """A store as it is.

    Attributes:
        name: Of the store.
        patterns: Subjects that it keeps, as they stand on the wire behind the name of the cluster.
        publications: Publications that are there.
        bytes: Their size.
        durables: Durable handlers, with what each has not been given and what it has not dealt with.
    """

    name: str
    patterns: tuple[str, ...]
    publications: int
    bytes: int
    config: dict[str, Any]
    durables: dict[str, tuple[int, int]] = field(factory=dict)


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


@define(eq=False)
class Administration:
    """The stores and dead letters of the cluster that a bus is a node of."""

    _cluster: str
    _jetstream: JetStream
    _publishing: StoredPublishing
    _time: Callable[[], float]

    @classmethod
    def of(cls, bus: Bus) -> Administration:
        """Make it for a bus that is entered.

        Raises:
            LocalProtocolError: The bus is no node of a cluster.
        """
        parts = parts_of(bus)
        backbone = parts.links.cluster
        found = backbone.options.resolved() if isinstance(backbone, Backbone) else None
        if not isinstance(backbone, Backbone) or found is None:
            raise LocalProtocolError("stores are those of a cluster: make the bus with Bus(cluster=...), and name its engine")
        services = parts.services
        jetstream = JetStream(backbone, domain=backbone.domain)
        publishing = StoredPublishing(services, backbone, jetstream, f"{found[1]}.p.")
        return cls(found[1], jetstream, publishing, services.running.time)

    # -- stores ------------------------------------------------------------------------------------------------------------

    async def stores(self) -> list[StoreState]:
        """Find the stores of the cluster, that of dead letters among them.

        Raises:
            BusError: As `JetStream.ask`.
        """
        names = (await self._jetstream.ask("STREAM.NAMES", {"subject": f"{self._cluster}.>"})).get("streams") or []
        own = sorted(name for name in names if str(name).startswith(f"{self._cluster}-"))
        found = []
        for name in own:
            with suppress(LocalProtocolError):  # it is another cluster's, or was removed meanwhile
                found.append(await self.store(name[len(self._cluster) + 1 :]))
        return found

    async def unknown(self) -> str:
        """Say which clusters the engine keeps something of, where this one is not among them; empty where it is, or none is.

        Raises:
            BusError: As `JetStream.ask`.
        """
        end = f"-{DEAD}"
        names = (await self._jetstream.ask("STREAM.NAMES", {"subject": f"*.{DEAD}.>"})).get("streams") or []
        known = sorted(str(name).removesuffix(end) for name in names if str(name).endswith(end))
        if not known or self._cluster in known:
            return ""
        return f"this NATS server keeps nothing of a cluster {self._cluster!r}, but of {shown(known).strip('[]')}"

    async def store(self, name: str) -> StoreState:
        """Find one store, with its durable handlers.

        Raises:
            LocalProtocolError: There is no such store.
            BusError: As `JetStream.ask`.
        """
        stream = stream_name(self._cluster, name)
        info = await self._info(name)
        try:
            consumers = (await self._jetstream.ask(f"CONSUMER.NAMES.{stream}")).get("consumers") or []
        except JetStreamError as error:
            raise self._unknown(name, error) from None
        durables = {}
        for consumer in consumers:
            try:
                found = await self._jetstream.ask(f"CONSUMER.INFO.{stream}.{consumer}")
            except JetStreamError as error:
                if error.number == NO_CONSUMER:  # it was of a replay, or of a copy, and has gone meanwhile
                    continue
                raise self._unknown(name, error) from None
            durables[str(consumer)] = int(found.get("num_pending", 0)), int(found.get("num_ack_pending", 0))
        config, state = info.get("config") or {}, info.get("state") or {}
        head = f"{self._cluster}.p."
        patterns = tuple(str(subject).removeprefix(head) for subject in config.get("subjects") or ())
        return StoreState(name, patterns, int(state.get("messages", 0)), int(state.get("bytes", 0)), config, durables)

    async def add(self, store: Store) -> None:
        """Make a store where there is none.

        Raises:
            BusError: As `Stores.prepare`.
        """
        await Stores(self._jetstream).prepare(store, stream_members(store, self._cluster, publication_pattern(self._cluster)))

    async def remove(self, name: str) -> None:
        """Remove a store with all that it keeps, and its durable handlers.

        Raises:
            LocalProtocolError: There is no such store.
            BusError: As `JetStream.ask`.
        """
        _ = await self._info(name)
        try:
            await self._jetstream.ask(f"STREAM.DELETE.{stream_name(self._cluster, name)}")
        except JetStreamError as error:
            raise self._unknown(name, error) from None

    async def _info(self, name: str) -> dict[str, Any]:
        """Ask about a stream that keeps subjects of this cluster: the stores of another one may be called alike."""
        stream = stream_name(self._cluster, name)
        if not is_stream_name(stream):
            raise LocalProtocolError(f"the cluster {self._cluster!r} has no store {name!r:.60}: that is no name of one")
        try:
            info = await self._jetstream.ask(f"STREAM.INFO.{stream}")
        except JetStreamError as error:
            raise self._unknown(name, error) from None
        subjects = config_of(info).get("subjects")
        if not isinstance(subjects, list) or not all(str(subject).startswith(f"{self._cluster}.") for subject in subjects):
            raise LocalProtocolError(
                f"the cluster {self._cluster!r} has no store {name!r}: the stream {stream!r} is another cluster's, and keeps "
                f"{shown(subjects)}"
            )
        return info

    def _unknown(self, name: str, error: JetStreamError) -> LocalProtocolError:
        if error.number == NOT_FOUND:
            return LocalProtocolError(f"the cluster {self._cluster!r} has no store {name!r}")
        return LocalProtocolError(f"the store {name!r}: the NATS server says: {error.text}")

    # -- dead letters --------------------------------------------------------------------------------------------------------

    async def letters(self, durable: str = "") -> AsyncGenerator[DeadLetter]:
        """Find the dead letters that there are now, of one durable handler or of all, the oldest first.

        Raises:
            BusError: As `JetStream.ask`.
        """
        number, last = 1, await self._last_letter()
        while number <= last:
            wanted = {"seq": number, "next_by_subj": f"{self._cluster}.dead.{durable or '*'}.>"}
            letter = await self._letter(wanted)
            if letter is None or letter.number > last:
                return
            yield letter
            number = letter.number + 1

    async def _last_letter(self) -> int:
        try:
            info = await self._jetstream.ask(f"STREAM.INFO.{stream_name(self._cluster, DEAD)}")
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
            raise LocalProtocolError(f"the cluster {self._cluster!r} has no dead letter {number}")
        return letter

    async def _letter(self, wanted: dict[str, Any]) -> DeadLetter | None:
        try:
            answer = await self._jetstream.ask(f"STREAM.MSG.GET.{stream_name(self._cluster, DEAD)}", wanted)
        except JetStreamError as error:
            if error.number in (NOT_FOUND, _NO_MESSAGE):
                return None
            raise LocalProtocolError(f"dead letters: the NATS server says: {error.text}") from None
        message = answer.get("message")
        message = message if isinstance(message, dict) else {}
        if self._is_whole(message):
            return None
        try:
            return self._read(message)
        except (BusError, ValueError, KeyError, TypeError) as error:  # any program may have written it
            rest = str(message.get("subject", "")).removeprefix(f"{self._cluster}.dead.")
            durable, _, subject = rest.partition(".")
            fault = f"it is no dead letter of polybus, or cannot be read: {error}"
            number, at = count_of(message, "seq"), str(message.get("time", ""))
            return DeadLetter(number, at, durable, subject, 0, fault, "", "", {}, b"", octets=True, fault=fault)

    def _is_whole(self, message: dict[str, Any]) -> bool:
        """Tell whether this is a publication as it was, which a letter leads to, and no letter."""
        head, _, rest = str(message.get("subject", "")).rpartition(".")
        return head == f"{self._cluster}.dead" and bool(rest)

    def _read(self, message: dict[str, Any]) -> DeadLetter:
        block = _block_of(message)
        fields = dict(block.fields or {})
        facts = {name.lower(): value for name, value in fields.items()}
        durable, _, rest = str(message["subject"]).removeprefix(f"{self._cluster}.dead.").partition(".")
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
        at = f"{self._cluster}.p.{escape_subject(letter.subject)}"
        names = (await self._jetstream.ask("STREAM.NAMES", {"subject": at})).get("streams") or []
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
            message = await self._message_at(stream_name(self._cluster, DEAD), letter.whole)
            return message if self._is_whole(message) else None
        stream, _, number = letter.origin.partition(" ")
        if not is_stream_name(stream) or not (number.isascii() and number.isdigit()):
            return None
        for place, at in ((copy_of(stream, int(number)), 1), (stream, int(number))):
            message = await self._message_at(place, at)
            if message.get("subject") == f"{self._cluster}.p.{escape_subject(letter.subject)}":
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
                await self._remove_message(stream_name(self._cluster, DEAD), letter.whole)
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
            await self._jetstream.ask(f"STREAM.MSG.DELETE.{stream_name(self._cluster, DEAD)}", {"seq": letter.number})
        except JetStreamError as error:
            if error.number in _GONE:
                return
            raise LocalProtocolError(f"dead letter {letter.number}: the NATS server says: {error.text}") from None
