"""The one vocabulary between the protocols and the bus."""

from __future__ import annotations

import copy
import enum
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Protocol

from attrs import define, field

from ._type_variables import T_co
from .body import JSON, OCTETS, BodyFormat, read_body
from .errors import Code, LocalProtocolError

if TYPE_CHECKING:
    from cloudevents.core.base import BaseCloudEvent

    from ._core.peer.peer import Peer

__all__ = ["Kind", "Message"]

RELAYED: Final = "polybus-relayed"
"""The attribute of a message that has crossed a bridge: its ``id`` and ``priority`` on the wire that it came from."""


class Kind(enum.Enum):
    """The purpose of a message."""

    REQUEST = "request"
    RESPONSE = "response"
    ERROR = "error"
    PUBLISH = "publish"
    SUBSCRIBE = "subscribe"
    UNSUBSCRIBE = "unsubscribe"
    NOTIFY = "notify"
    CANCEL = "cancel"
    OPEN = "open"
    ITEM = "item"
    CREDIT = "credit"
    END = "end"
    CONTROL = "control"

    if not TYPE_CHECKING:
        # There is one of each. That of `Enum` is a Python function, and sets and tables of kinds are asked for every message.
        __hash__ = object.__hash__


class _Missing(enum.Enum):
    MISSING = 0


MISSING: Final = _Missing.MISSING


class Settlement(Protocol):
    """The part that tells a store what has become of a publication, or the same for the calling thread."""

    def ack(self) -> None:
        """Say that it is dealt with."""

    def retry(self, delay: float | None) -> None:
        """Have it come again."""

    def reject(self, reason: str) -> None:
        """Make it a dead letter."""


# eq=False: messages are compared by identity, and stay hashable. Not frozen: frozen triples the cost of creation.
@define(eq=False, slots=True, repr=False)
class Message(Generic[T_co]):
    """One message, whichever wire it came from or goes to. Of a typed subscription it is a ``Message[T]``, with such a `body`.

    Attributes:
        kind: What it is for.
        subject: What it is about; ``int`` where the protocol numbers its actions. A pattern for subscribe and unsubscribe.
        id: Ties an answer to its question. Opaque: only the session that made it knows its form.
        raw: The body as bytes in `format`, or None while it exists only as a value.
        format: How `raw` is written.
        headers: Text to text, or None.
        ttl: Seconds that the message had left when it was sent, or None for no deadline.
        code: Of an error or an end.
        reply_to: Where an answer is wanted, for wires that say so.
        attributes: What only that wire knows. Of an error or an end: ``text``, ``reason``, ``detail``, and ``undelivered``
            where the bus itself refuses what has not come to a handler. Of an open: ``mode`` (``"stream"``, ``"channel"``,
            ``"tunnel"``), ``credit``, ``hops``. Of a credit: ``credit``. Of a subscribe or unsubscribe: ``handler`` where it
            tells of a handler, on wires that have groups (`plugins.Capabilities`). Of what has crossed a bridge:
            ``polybus-relayed``, with the ``id`` and the ``priority`` that it had before, where it had any.
        extras: The same as it was set: None where there are none. Codecs set it.
        peer: Who sent it.
        decoded: The body as a value; `MISSING` while it exists only as `raw`. Codecs that have parsed it anyhow set it.
        answer_headers: Of a request: the headers of its answer, which its handler sets by `Context.answer_headers`; None where
            it has set none.
        expires: Of a publication: when it is worth nothing any more, on the clock of the bus; None for never.
        checked: The very bytes that are known to be what `format` says, for the bus has written them, or an adapter of ours has
            read all of them. Any other bytes in `raw` are read before they stand in a frame.
    """

    kind: Kind
    subject: str | int = ""
    id: Any = None
    raw: bytes | None = None
    format: BodyFormat = JSON
    headers: dict[str, str] | None = None
    ttl: float | None = None
    code: Code | None = None
    reply_to: str | None = None
    extras: dict[str, Any] | None = field(default=None, alias="attributes")
    peer: Peer | Any = None
    decoded: Any = field(default=MISSING, alias="body")
    _shared: dict[Any, bytes] | None = field(default=None, alias="_shared")
    expires: float | None = None
    answer_headers: dict[str, str] | None = None
    checked: bytes | None = None

    # A function that loads `polybus.protocols.uprotocol`, a floor above: handed in by the package.
    cloudevents: ClassVar[Any]

    @property
    def attributes(self) -> dict[str, Any]:
        """Facts that only that wire knows; empty where there is nothing."""
        if self.extras is None:
            self.extras = {}
        return self.extras

    @property
    def spellings(self) -> tuple[str, ...]:
        """Other subjects that stand for the same: of a name that its wire has made of an address, that address."""
        return ()

    @property
    def body(self) -> T_co:
        """The body as plain values, decoded when first read; None where the message has none.

        Raises:
            BadRequest: The bytes do not decode.
        """
        value = self.decoded
        if value is MISSING:
            raw = self.raw
            if raw is None:
                return None  # type: ignore[return-value]  # not kept: a body of null is another thing than no body
            value = self.decoded = self.format.decode(raw)
        return value  # type: ignore[no-any-return]  # whoever says which type it is has had it converted

    @property
    def has_body(self) -> bool:
        """True if there is a body at all (a body of null is one)."""
        return self.raw is not None or self.decoded is not MISSING

    def encoded(self, formats: tuple[BodyFormat, ...], choose: Any = None) -> bytes | None:
        """The body as bytes in one of the formats of a wire, re-encoded only where it must be; None where there is none.

        Args:
            formats: What the wire can carry; the first is used when the body must be written anew and `choose` is None.
            choose: ``choose(value)`` gives the format for a value.

        Raises:
            EncodeError: The value does not fit the format, or the bytes that nobody has checked are not what it says.
            BadRequest: The bytes that must be translated do not decode.
        """
        if self.raw is not None and self.format in formats:
            if self.raw is not self.checked and self.format is not OCTETS:
                self._check(self.raw)
            return self.raw
        if not self.has_body:
            return None
        value = self.body
        chosen = formats[0] if choose is None else choose(value)
        if self.raw is None:
            self.raw = self.checked = chosen.encode(value)
            self.format = chosen
            return self.raw
        # A second wire with another format: remembered beside the first, for the next peer of that wire.
        shared = self.shared
        again = shared.get(chosen)
        if again is None:
            again = shared[chosen] = chosen.encode(value)
        return again

    def _check(self, raw: bytes) -> None:
        """Read bytes of an application or of an adapter that says nothing of them: in a frame they shall be the body alone."""
        value = read_body(raw, self.format)
        if self.decoded is MISSING:
            self.decoded = value
        self.checked = raw

    @property
    def shared(self) -> dict[Any, bytes]:
        """Things made of this message once for several peers: frames by codec, bodies by format."""
        if self._shared is None:
            self._shared = {}
        return self._shared

    def to_cloudevent(self, *, entity: str = "/polybus/1") -> BaseCloudEvent:
        """This message as an event of the ``cloudevents`` package, by the rules of uProtocol.

        What it does not say is made: an id with the time of now, addresses of `entity`.

        Raises:
            EncodeError: The body does not fit.
            LocalProtocolError: It breaks a rule, for example a request without ttl; the text names it.
            Unsupported: There is no event for this kind of message.
        """
        event: BaseCloudEvent = Message.cloudevents().to_cloudevent(self, entity=entity)
        return event

    @classmethod
    def from_cloudevent(cls, event: BaseCloudEvent, *, mode: str = "document", entity: str = "/polybus/1") -> Message:
        """The message of an event of the ``cloudevents`` package that keeps the rules of uProtocol.

        Args:
            event: With an id, a source and a type of its own: nothing is invented.
            mode: As of `protocols.UProtocol`: ``document``, ``strict`` or ``lenient``.
            entity: As of `to_cloudevent`: its addresses become the plain subjects that they were made of.

        Raises:
            RemoteProtocolError: It breaks a rule; the error names it.
        """
        message: Message = cls.cloudevents().from_cloudevent(event, mode=mode, entity=entity)
        return message

    @property
    def attempt(self) -> int:
        """Number of times that this publication of a store was given out, this one included; 1 for all else."""
        return 1 if self.extras is None else int(self.extras.get("attempt", 1))

    def ack(self) -> None:
        """Say that this publication of a durable subscription is dealt with.

        Raises:
            LocalProtocolError: It is not from ``subscribe(..., durable=)``, is settled already, or belongs to another event
                loop.
        """
        self._settlement("ack").ack()

    def retry(self, delay: float | None = None) -> None:
        """Have this publication of a durable subscription come again, to whoever has room.

        After its last attempt it is a dead letter.

        Args:
            delay: Seconds until then, at the least; None for the pause that ``retry=`` of the subscription says.

        Raises:
            LocalProtocolError: As `ack`.
            TypeError, ValueError: `delay` is no number of seconds.
        """
        self._settlement("retry").retry(delay)

    def reject(self, reason: str = "") -> None:
        """Make this publication of a durable subscription a dead letter.

        Args:
            reason: For people; it is kept with the dead letter, of which the first 500 characters are.

        Raises:
            LocalProtocolError: As `ack`.
            TypeError: `reason` is no text.
        """
        self._settlement("reject").reject(reason)

    def _settlement(self, verb: str) -> Settlement:
        found: Settlement | None = None if self.extras is None else self.extras.get("delivery")
        if found is None:
            raise LocalProtocolError(
                f"message.{verb}() is for what bus.subscribe(..., durable='billing') gives; what a durable handler is given is "
                "settled by its function, which returns or raises"
            )
        return found

    def __copy__(self) -> Message[T_co]:
        return Message(
            self.kind,
            self.subject,
            self.id,
            self.raw,
            self.format,
            self.headers,
            self.ttl,
            self.code,
            self.reply_to,
            self.extras,
            self.peer,
            self.decoded,
            self._shared,
            self.expires,
            self.answer_headers,
            self.checked,
        )

    def for_another(self) -> Message[T_co]:
        """The same for one more reader: what one of them changes, in the body too, the others do not see."""
        made = copy.copy(self)
        made._shared = None if self._shared is None else {**self._shared}
        made.headers = None if self.headers is None else {**self.headers}
        made.extras = None if self.extras is None else {**self.extras}
        made.forget_value()
        return made

    def with_headers(self, headers: dict[str, str] | None) -> Message:
        """The same with other headers, for another way."""
        on = Message(self.kind, self.subject, None, self.raw, self.format, headers, attributes=self.extras)
        on.decoded, on.checked, on.expires, on.ttl = self.decoded, self.checked, self.expires, self.ttl
        return on

    def forget_shared(self) -> None:
        """All have been served who could be at once: those who wait shall not hold the message twice."""
        self._shared = None

    def forget_value(self) -> None:
        """The body is decoded again when it is read: what waits for long shall not be held twice."""
        if self.raw is not None:
            self.decoded = MISSING

    def __repr__(self) -> str:
        size = len(self.raw) if self.raw is not None else 0
        return f"<Message {self.kind.value} {self.subject!r} id={self.id!r} {size} bytes>"
