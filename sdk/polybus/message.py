"""Protocol-independent messages, exchanged between protocol adapters and the bus."""

from __future__ import annotations

import copy
import enum
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Protocol

from attrs import define, field

from .body import JSON, OCTETS, BodyFormat, read_body
from .errors import Code, LocalProtocolError

if TYPE_CHECKING:
    from cloudevents.core.base import BaseCloudEvent
    from typing_extensions import TypeVar

    from ._core.peer.peer import Peer

    T_co = TypeVar("T_co", default=Any, covariant=True)
else:
    from typing import TypeVar  # without a default, which needs Python 3.13

    T_co = TypeVar("T_co", covariant=True)

__all__ = ["Kind", "Message"]

RELAYED: Final = "polybus-relayed"
"""Attribute set on messages that crossed a bridge. It contains the ``id`` and ``priority`` from the first connection."""


class Kind(enum.Enum):
    """Purpose of a message."""

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
        # Members are singletons. `Enum.__hash__` is a Python function, and kinds are looked up in sets and tables for every
        # message.
        __hash__ = object.__hash__


class _Missing(enum.Enum):
    MISSING = 0


MISSING: Final = _Missing.MISSING


class Settlement(Protocol):
    """Reports the outcome of a stored publication to its store. The blocking API implements this interface too."""

    def ack(self) -> None: ...

    def retry(self, delay: float | None) -> None: ...

    def reject(self, reason: str) -> None: ...


# eq=False, so that messages are compared by identity and remain hashable. Not frozen, which would triple the cost of creation.
@define(eq=False, slots=True, repr=False)
class Message(Generic[T_co]):
    """A message, independent of its protocol. A typed subscription yields a ``Message[T]`` with a ``T`` as `body`.

    Attributes:
        kind: Purpose of the message.
        subject: The subject, or the pattern to subscribe to or unsubscribe from. It is an ``int`` if the protocol numbers its
            actions.
        id: Identifier that matches a response to its request. Its format is private to the session that created it.
        raw: The body as bytes in `format`, or None if it has not been encoded yet.
        format: Format of `raw`.
        headers: Headers as a dict of strings, or None.
        ttl: Seconds from sending to the deadline, or None if there is no deadline.
        code: Code of an error or an end.
        reply_to: Address for the response, if the protocol has one.
        attributes: Data for particular protocols and kinds of messages. An error or end has ``text``, ``reason`` and
            ``detail``, and ``undelivered`` if the bus refused the message before a handler received it. An open has ``mode``
            (``"stream"``, ``"channel"`` or ``"tunnel"``), ``credit`` and ``hops``. A credit has ``credit``. A subscribe or
            unsubscribe for a handler has ``handler`` if the protocol has groups (`plugins.Capabilities`). A message that
            crossed a bridge has ``polybus-relayed`` with the original ``id`` and ``priority``, if there were any.
        extras: The dict behind `attributes`, or None if nothing was set. Codecs set it.
        peer: The sender.
        decoded: The body as a value, or `MISSING` if it has not been decoded yet. Set by codecs that parse the body anyway.
        answer_headers: Response headers that the handler set with `Context.answer_headers`, or None.
        expires: Time on the bus's clock at which a publication expires, or None.
        checked: The object in `raw` if its bytes are known to be valid, because the bus or a built-in adapter produced them.
            Any other `raw` is validated before it is sent.
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

    # A function that imports `polybus.protocols.uprotocol`. The package injects it, because that module is in a higher layer.
    cloudevents: ClassVar[Any]

    @property
    def attributes(self) -> dict[str, Any]:
        """Data for particular protocols and kinds of messages. May be empty."""
        if self.extras is None:
            self.extras = {}
        return self.extras

    @property
    def spellings(self) -> tuple[str, ...]:
        """Equivalent subjects, such as the address behind a name that the protocol derived from it."""
        return ()

    @property
    def body(self) -> T_co:
        """The body as plain values, decoded on first access, or None if there is no body.

        Raises:
            BadRequest: If the bytes cannot be decoded.
        """
        value = self.decoded
        if value is MISSING:
            raw = self.raw
            if raw is None:
                return None  # type: ignore[return-value]  # not cached: a body of null differs from no body
            value = self.decoded = self.format.decode(raw)
        return value  # type: ignore[no-any-return]  # converted earlier if a type was declared

    @property
    def has_body(self) -> bool:
        """True if there is a body, including a body of null."""
        return self.raw is not None or self.decoded is not MISSING

    def encoded(self, formats: tuple[BodyFormat, ...], choose: Any = None) -> bytes | None:
        """Return the body as bytes in a format that the protocol supports, or None if there is no body.

        The body is re-encoded only if necessary.

        Args:
            formats: Formats that the protocol supports. Values are encoded in the first format.
            choose: ``choose(value)`` returns the format for a value. By default this is the first format.

        Raises:
            EncodeError: If the format cannot represent the value, or the bytes are invalid.
            BadRequest: If bytes that must be converted cannot be decoded.
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
        # Stored for the next peer with this format.
        shared = self.shared
        again = shared.get(chosen)
        if again is None:
            again = shared[chosen] = chosen.encode(value)
        return again

    def _check(self, raw: bytes) -> None:
        """Validate bytes from an application or a third-party adapter before they are sent."""
        value = read_body(raw, self.format)
        if self.decoded is MISSING:
            self.decoded = value
        self.checked = raw

    @property
    def shared(self) -> dict[Any, bytes]:
        """Encoded data shared by several peers: frames by codec, and bodies by format."""
        if self._shared is None:
            self._shared = {}
        return self._shared

    def to_cloudevent(self, *, entity: str = "/polybus/1") -> BaseCloudEvent:
        """Convert this message to a ``cloudevents`` event according to the rules of uProtocol.

        Missing attributes are generated: the id from the current time, and the addresses from `entity`.

        Args:
            entity: The uEntity of this program.

        Raises:
            EncodeError: If the event cannot carry the body.
            LocalProtocolError: If the message violates a rule, for example if a request has no ttl. The text names the rule.
            Unsupported: If this kind of message has no CloudEvents representation.
            ValueError: If `entity` is invalid.
        """
        event: BaseCloudEvent = Message.cloudevents().to_cloudevent(self, entity=entity)
        return event

    @classmethod
    def from_cloudevent(cls, event: BaseCloudEvent, *, mode: str = "document", entity: str = "/polybus/1") -> Message:
        """Convert a ``cloudevents`` event that follows the rules of uProtocol.

        Args:
            event: An event with an id, a source and a type.
            mode: ``document``, ``strict`` or ``lenient``, as in `protocols.UProtocol`.
            entity: As in `to_cloudevent`. Its addresses are converted back to plain subjects.

        Raises:
            RemoteProtocolError: If the event violates a rule. The error names it.
            ValueError: If `mode` or `entity` is invalid.
        """
        message: Message = cls.cloudevents().from_cloudevent(event, mode=mode, entity=entity)
        return message

    @property
    def attempt(self) -> int:
        """Number of times that this stored message has been delivered, including this time. Always 1 for other messages."""
        return 1 if self.extras is None else int(self.extras.get("attempt", 1))

    def ack(self) -> None:
        """Acknowledge this message of a durable subscription.

        Raises:
            LocalProtocolError: If the message is not from ``subscribe(..., durable=)``, has already been settled, or belongs to
                another event loop.
        """
        self._settlement("ack").ack()

    def retry(self, delay: float | None = None) -> None:
        """Ask the store to redeliver this message of a durable subscription. Any worker with a free slot may receive it.

        After the last attempt, the message becomes a dead letter.

        Args:
            delay: Minimum number of seconds until redelivery. Defaults to the pause from the subscription's ``retry=``.

        Raises:
            LocalProtocolError: As for `ack`.
            TypeError, ValueError: If `delay` is not a number of seconds.
        """
        self._settlement("retry").retry(delay)

    def reject(self, reason: str = "") -> None:
        """Turn this message of a durable subscription into a dead letter.

        Args:
            reason: Human-readable reason. The first 500 characters are stored with the dead letter.

        Raises:
            LocalProtocolError: As for `ack`.
            TypeError: If `reason` is not a string.
        """
        self._settlement("reject").reject(reason)

    def _settlement(self, verb: str) -> Settlement:
        found: Settlement | None = None if self.extras is None else self.extras.get("delivery")
        if found is None:
            raise LocalProtocolError(
                f"message.{verb}() is for bus.subscribe(..., durable='billing'); the message of a durable handler is "
                "settled when the function returns or raises"
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
        """Return an independent copy for another reader. Changes to one copy, even in the body, do not affect the other."""
        made = copy.copy(self)
        made._shared = None if self._shared is None else {**self._shared}
        made.headers = None if self.headers is None else {**self.headers}
        made.extras = None if self.extras is None else {**self.extras}
        made.forget_value()
        return made

    def with_headers(self, headers: dict[str, str] | None) -> Message:
        on = Message(self.kind, self.subject, None, self.raw, self.format, headers, attributes=self.extras)
        on.decoded, on.checked, on.expires, on.ttl = self.decoded, self.checked, self.expires, self.ttl
        return on

    def forget_shared(self) -> None:
        """Drop the shared frames once all ready peers have them, so that waiting peers do not store the message twice."""
        self._shared = None

    def forget_value(self) -> None:
        """Drop the decoded body to save memory while the message waits. The next access decodes it again."""
        if self.raw is not None:
            self.decoded = MISSING

    def __repr__(self) -> str:
        size = len(self.raw) if self.raw is not None else 0
        return f"<Message {self.kind.value} {self.subject!r} id={self.id!r} {size} bytes>"
