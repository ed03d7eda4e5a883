"""The errors that polybus raises.

::

    BusError
    ├── RequestError(code, text)          the peer answered with an error
    │   ├── NoHandler  NotFound  Conflict  BadRequest  Unauthorized  Forbidden
    │   └── TooLarge  TooManyRequests  Unavailable  RemoteError
    ├── DeadlineExceeded                  also TimeoutError
    ├── Disconnected                      also ConnectionError
    ├── ConnectFailed                     also ConnectionError
    ├── ProtocolError
    │   ├── LocalProtocolError            misuse by this program
    │   └── RemoteProtocolError           invalid input from the peer
    └── EncodeError  BadReply  RequestCancelled  QueueFull  SlowConsumer
        Unsupported  AmbiguousRoute  ReservedSubject

A `LocalProtocolError` is a mistake in the calling program. A `RemoteProtocolError` reports that the peer sent something
invalid.
"""

from __future__ import annotations

import copy
import enum
import re
from typing import TYPE_CHECKING, Any, Final, Literal

from ._validation import in_one_line
from .secrets import without_secrets

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "AmbiguousRoute", "BadReply", "BadRequest", "BusError", "Code", "Conflict", "ConnectFailed", "DeadlineExceeded",
    "Disconnected", "EncodeError", "Forbidden", "LocalProtocolError", "NoHandler", "NotFound", "ProtocolError", "QueueFull",
    "RemoteError", "RemoteProtocolError", "RequestCancelled", "RequestError", "ReservedSubject", "SlowConsumer", "TooLarge",
    "TooManyRequests", "Unauthorized", "Unavailable", "Unsupported",
]  # fmt: skip


class Code(enum.IntEnum):
    """Reason why a request failed. Names and numbers are the same as in ``google.rpc.Code``."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class BusError(Exception):
    """Base class of all errors that polybus raises.

    Attributes:
        attempts: Number of attempts made. Always 1 without ``retry=``.
    """

    attempts: int = 1

    def __str__(self) -> str:
        return f"{super().__str__()}{self._asked}"

    @property
    def _asked(self) -> str:
        return f" (after {self.attempts} attempts)" if self.attempts > 1 else ""


class _ByCode(type):
    """Makes ``RequestError(Code.NOT_FOUND)`` a `NotFound`."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        error = super().__call__(*args, **kwargs)
        if cls is RequestError:
            error.__class__ = class_of(error.code, error.reason)
        return error


_TEXT: Final = re.compile(r"[^\n\t]+")
_INTERNAL: Final = re.compile(r"internal error [0-9a-f]{8}")
"""Text that callers receive if a handler raised an unexpected exception. It does not reveal any details."""


def _shown(text: Any, most: int) -> str:
    whole = str(text)
    return whole if len(whole) <= most else f"{whole[:most]}... ({len(whole)} characters)"


def _shown_in_lines(text: Any, most: int) -> str:
    """Shorten a string and escape control characters other than line breaks and tabs."""
    return _TEXT.sub(lambda found: in_one_line(found[0]), _shown(text, most))


class RequestError(BusError, metaclass=_ByCode):
    """The request failed with an error response, from the peer or from the bus on its behalf.

    Raise this error in a handler to send an error response. The caller's request then raises the same error.
    ``RequestError(code, text)`` creates an instance of the subclass for that code: ``except NotFound`` also catches
    ``RequestError(Code.NOT_FOUND, ...)``.

    Args:
        code: A `Code`, its number or its name.
        text: Human-readable message that says what is wrong and what to do next.
        reason: Short machine-readable string that is more specific than the code, such as ``"too_large"``.
        detail: Any value that the protocol can encode.

    Raises:
        ValueError: If the code is not a member of `Code`, or is ``OK``.
    """

    default_code: Code = Code.UNKNOWN
    default_reason: str | None = None

    code: Code
    text: str
    reason: str | None
    detail: Any
    subject: str | int | None
    foreign: bool
    """True if a peer sent this error. False if this bus or one of its handlers raised it."""

    def __init__(self, code: Code | int | str, text: str = "", *, reason: str | None = None, detail: Any = None) -> None:
        self._fill(as_code(code), text, reason, detail)

    def _fill(self, code: Code, text: str, reason: str | None, detail: Any) -> None:
        if code is Code.OK:
            raise ValueError("a RequestError needs a code other than OK: return a value instead")
        # A subclass of str could override conversions, and protocols cannot encode it.
        given = _exact(text)
        super().__init__(given)
        self.code = code
        self.text = given
        self.reason = None if reason is None else _exact(reason)
        self.detail = detail
        self.subject = None
        # True for an error from a peer. It is passed on to another caller only through relay(), not if it escapes from a
        # handler.
        self._received = False
        self.foreign = False

    @property
    def received(self) -> bool:
        """True if a peer sent this error."""
        return self._received

    def relay(self) -> RequestError:
        """Return a copy of a received error. Raise the copy in a handler to pass the error on to the handler's own caller."""
        made = copy.copy(self)
        made._received, made.subject, made.attempts = False, None, 1
        made.foreign = False
        return made

    def __str__(self) -> str:
        about = f" ({self.subject!r})" if self.subject is not None else ""
        reason = f" [{in_one_line(_shown(self.reason, 200))}]" if self.reason else ""
        text = f": {_shown_in_lines(self.text, 4000)}" if self.text else ""
        advice = "; look for this id in the server's log" if _INTERNAL.fullmatch(self.text) else ""
        return f"{self.code.name}{reason}{about}{text}{advice}{self._asked}"

    def __repr__(self) -> str:
        reason = None if self.reason is None else _shown(self.reason, 200)
        return f"{type(self).__name__}({self.code.name}, {_shown(self.text, 4000)!r}, reason={reason!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _made, (type(self), self.code, self.text, self.reason, self.detail), {**self.__dict__}


class _CodedError(RequestError):
    """Base class of errors with a fixed code. The only positional argument is the text, as in ``Forbidden("not yours")``."""

    def __init__(self, text: str = "", *, code: Code | None = None, reason: str | None = None, detail: Any = None) -> None:
        reason = reason if reason is not None else self.default_reason
        self._fill(self.default_code if code is None else as_code(code), text, reason, detail)


def _exact(value: Any) -> str:
    """Convert any object, including instances of `str` subclasses, to a plain `str`."""
    return str.__str__(value if isinstance(value, str) else str(value))


class NoHandler(_CodedError):
    """No handler is registered for this subject (UNIMPLEMENTED)."""

    default_code = Code.UNIMPLEMENTED


class NotFound(_CodedError):
    """The handler did not find the requested item (NOT_FOUND)."""

    default_code = Code.NOT_FOUND


class Conflict(_CodedError):
    """The current state does not allow the request (ALREADY_EXISTS, ABORTED, FAILED_PRECONDITION)."""

    default_code = Code.FAILED_PRECONDITION


class BadRequest(_CodedError):
    """The body is invalid or does not have the expected type (INVALID_ARGUMENT)."""

    default_code = Code.INVALID_ARGUMENT


class Unauthorized(_CodedError):
    """The caller is not authenticated (UNAUTHENTICATED)."""

    default_code = Code.UNAUTHENTICATED


class Forbidden(_CodedError):
    """The caller lacks permission (PERMISSION_DENIED)."""

    default_code = Code.PERMISSION_DENIED


class TooLarge(_CodedError):
    """A message exceeds the size limit (RESOURCE_EXHAUSTED, reason ``too_large``)."""

    default_code = Code.RESOURCE_EXHAUSTED
    default_reason: str | None = "too_large"


class TooManyRequests(_CodedError):
    """The caller has reached its request limit (RESOURCE_EXHAUSTED)."""

    default_code = Code.RESOURCE_EXHAUSTED


class Unavailable(_CodedError):
    """The peer is connected but does not accept requests at the moment, for example because it is draining (UNAVAILABLE)."""

    default_code = Code.UNAVAILABLE


class RemoteError(_CodedError):
    """Any other error that the peer reported."""

    default_code = Code.UNKNOWN


_CLASSES: Mapping[Code, type[_CodedError]] = {
    Code.UNIMPLEMENTED: NoHandler, Code.NOT_FOUND: NotFound, Code.ALREADY_EXISTS: Conflict, Code.ABORTED: Conflict,
    Code.FAILED_PRECONDITION: Conflict, Code.INVALID_ARGUMENT: BadRequest, Code.UNAUTHENTICATED: Unauthorized,
    Code.PERMISSION_DENIED: Forbidden, Code.RESOURCE_EXHAUSTED: TooManyRequests, Code.UNAVAILABLE: Unavailable,
}  # fmt: skip


def as_code(value: Code | int | str) -> Code:
    """Convert a number or name to a `Code`.

    Raises:
        ValueError: If the code is unknown.
    """
    try:
        return Code[value.upper()] if isinstance(value, str) else Code(value)
    except (KeyError, ValueError):
        raise ValueError(f"{value!r} is not a google.rpc.Code: use polybus.Code, for example Code.NOT_FOUND") from None


def class_of(code: Code, reason: str | None) -> type[RequestError]:
    if code is Code.RESOURCE_EXHAUSTED and reason == "too_large":
        return TooLarge
    return _CLASSES.get(code, RemoteError)


def _made(kind: type[RequestError], code: Code, text: str, reason: str | None, detail: Any) -> RequestError:
    error = kind.__new__(kind, text)
    error._fill(code, text, reason, detail)
    return error


def another(error: BusError) -> BusError:
    """Copy an error for another waiter. A shared exception would accumulate the tracebacks and contexts of all waiters."""
    return copy.copy(error)


class DeadlineExceeded(BusError, TimeoutError):
    """The request timed out.

    Attributes:
        subject: Subject of the request.
        elapsed: Seconds since the call.
        where: ``"local"`` if this bus stopped waiting, or ``"remote"`` if the peer reported the timeout.
        text: Text from the peer's error response, if any.
        reason: Reason from the peer's error response; see `RequestError`.
        detail: Detail from the peer's error response; see `RequestError`.
    """

    def __init__(
        self,
        subject: str | int | None = None,
        elapsed: float = 0.0,
        where: Literal["local", "remote"] = "local",
        text: str = "",
        reason: str | None = None,
        detail: Any = None,
    ) -> None:
        self.subject: str | int | None = subject
        self.elapsed: float = elapsed
        self.where: Literal["local", "remote"] = where
        self.text: str = text
        self.reason: str | None = reason
        self.detail: Any = detail
        super().__init__(subject, elapsed, where, text, reason, detail)

    def __str__(self) -> str:
        who = "the peer gave up on" if self.where == "remote" else "no answer to"
        said = self.text or "increase timeout=, or check the handler"
        after = f"{self.elapsed:.3f}" if self.elapsed >= 0.001 else f"{self.elapsed:.1g}"
        return f"{who} {self.subject!r} after {after} s: {in_one_line(said)}{self._asked}"


class Disconnected(BusError, ConnectionError):
    """The connection was lost before the response arrived.

    Attributes:
        reason: Why the link was closed or lost.
        peer: The peer as a string, or an empty string if there was no connection.
        sent: True if the handler may have run. False if the request was never passed to the transport, or if the peer drained
            without reading it. It is then safe to retry.
    """

    def __init__(self, reason: str = "", peer: str = "", sent: bool = False) -> None:
        self.reason: str = reason
        self.peer: str = peer
        self.sent: bool = sent
        super().__init__(reason, peer, sent)

    def __str__(self) -> str:
        state = "the request may have run" if self.sent else "the request was never sent, or the peer did not read it"
        reason = in_one_line(self.reason)
        if self.peer or not reason:
            reason = f"the link to {self.peer or 'the peer'} is down" + f" ({reason})" * bool(reason)
        return f"{reason}; {state}{self._asked}"


class ConnectFailed(BusError, ConnectionError):
    """The initial connection could not be established.

    Attributes:
        url: The address, without secrets.
        reason: Why the attempt failed.
        errno: The operating system's error number, such as `errno.ECONNREFUSED` or `errno.ETIMEDOUT`. None if the attempt
            failed for another reason.
        status: HTTP status if the server rejected the connection, or None.
    """

    errno: int | None = None
    status: int | None = None

    def __init__(self, url: str, reason: str, *, errno: int | None = None, status: int | None = None) -> None:
        self.url: str = without_secrets(url)
        self.reason: str = reason
        self.errno = errno
        self.status = status
        super().__init__(self.url, reason)

    def __str__(self) -> str:
        return f"cannot connect to {self.url}: {in_one_line(self.reason)}{self._asked}"


class ProtocolError(BusError):
    """A protocol or API rule was violated.

    Attributes:
        protocol: Name of the protocol or transport, for example ``"ubre"``.
        offset: Position of the error in the frame in bytes, if known.
        frame: First bytes of the frame, if known.
    """

    def __init__(self, text: str, *, protocol: str = "", offset: int | None = None, frame: bytes = b"") -> None:
        self.text: str = text
        self.protocol: str = protocol
        self.offset: int | None = offset
        self.frame: bytes = frame[:200]
        super().__init__(text)

    def __str__(self) -> str:
        where = f" at byte {self.offset}" if self.offset is not None else ""
        who = f"{self.protocol}: " if self.protocol else ""
        return f"{who}{in_one_line(_shown(self.text, 4000))}{where}"


class LocalProtocolError(ProtocolError):
    """This program did something that the protocol or the API does not allow."""


class RemoteProtocolError(ProtocolError):
    """The peer sent something that the protocol does not allow.

    Attributes:
        reason: Short identifier for counters and for quarantined recordings: ``malformed``, ``bad_protobuf``, ``too_deep``,
            ``bad_length``, ``invalid_subject``, ``ambiguous``, ``unknown_type``, ``too_large``, ...
        answer_id: Id to use in the response, or None if the message had no id.
        reply_id: Id of the request that this malformed message responds to. That request fails immediately.
        close_code: WebSocket close code for closing the connection, or None to reject only this message.
    """

    def __init__(
        self,
        text: str,
        *,
        reason: str = "malformed",
        protocol: str = "",
        offset: int | None = None,
        frame: bytes = b"",
        answer_id: Any = None,
        reply_id: Any = None,
        close_code: int | None = None,
    ) -> None:
        super().__init__(text, protocol=protocol, offset=offset, frame=frame)
        self.reply_id: Any = reply_id
        self.reason: str = reason
        self.answer_id: Any = answer_id
        self.close_code: int | None = close_code


class EncodeError(BusError, ValueError):
    """The body format of this protocol cannot represent a value.

    Attributes:
        path: Path of the value that cannot be encoded, for example ``$.items[3].price``.
    """

    def __init__(self, text: str, path: str = "$") -> None:
        self.text: str = text
        self.path: str = path
        super().__init__(text, path)

    def __str__(self) -> str:
        return f"{self.text} at {self.path}"


class BadReply(BusError):
    """The response does not match the type in ``returns=``."""


class RequestCancelled(BusError):
    """The request was cancelled by `Reply.cancel`, or because the last task that awaited it was cancelled."""


class QueueFull(BusError):
    """A queue is full, so the message was not sent."""


class SlowConsumer(BusError):
    """The bus closed a ``block`` subscription because it was read too slowly. The link and other subscriptions are not
    affected."""


class Unsupported(BusError):
    """The protocol, or a peer that does not run polybus, does not support this operation."""


class AmbiguousRoute(BusError):
    """Several links match this request. Pass ``to=``, or open the links with ``serves=``."""


class ReservedSubject(BusError, ValueError):
    """The subject or header is reserved for polybus or a protocol."""
