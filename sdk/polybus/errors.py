"""Every error that polybus raises, as one tree.

::

    BusError
    ├── RequestError(code, text)          the peer answered: "no"
    │   ├── NoHandler  NotFound  Conflict  BadRequest  Unauthorized  Forbidden
    │   └── TooLarge  TooManyRequests  Unavailable  RemoteError
    ├── DeadlineExceeded                  also TimeoutError
    ├── Disconnected                      also ConnectionError
    ├── ConnectFailed                     also ConnectionError
    ├── ProtocolError
    │   ├── LocalProtocolError            our misuse
    │   └── RemoteProtocolError           their bytes
    └── EncodeError  BadReply  RequestCancelled  QueueFull  SlowConsumer
        Unsupported  AmbiguousRoute  ReservedSubject

Two roots of blame: a `LocalProtocolError` is mended in the calling program, a `RemoteProtocolError` tells of bytes that the
peer should not have sent.
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
    "AmbiguousRoute",
    "BadReply",
    "BadRequest",
    "BusError",
    "Code",
    "Conflict",
    "ConnectFailed",
    "DeadlineExceeded",
    "Disconnected",
    "EncodeError",
    "Forbidden",
    "LocalProtocolError",
    "NoHandler",
    "NotFound",
    "ProtocolError",
    "QueueFull",
    "RemoteError",
    "RemoteProtocolError",
    "RequestCancelled",
    "RequestError",
    "ReservedSubject",
    "SlowConsumer",
    "TooLarge",
    "TooManyRequests",
    "Unauthorized",
    "Unavailable",
    "Unsupported",
]


class Code(enum.IntEnum):
    """Why a request failed, with the names and numbers of ``google.rpc.Code``."""

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
    """The root: `except BusError` catches whatever polybus itself raises.

    Attributes:
        attempts: How often was asked: more than once only with ``retry=``.
    """

    attempts: int = 1

    def __str__(self) -> str:
        return f"{super().__str__()}{self._asked}"

    @property
    def _asked(self) -> str:
        """The end of the text where more than one attempt has failed."""
        return f" (asked {self.attempts} times)" if self.attempts > 1 else ""


class _ByCode(type):
    """Makes ``RequestError(Code.NOT_FOUND)`` a `NotFound`."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if cls is RequestError:
            return _by_code(*args, **kwargs)
        return super().__call__(*args, **kwargs)


_TEXT: Final = re.compile(r"[^\n\t]+")
_INTERNAL: Final = re.compile(r"internal error [0-9a-f]{8}")
"""The text for an exception of a handler, which says no more to strangers."""
"""Part of a text that is shown as one line: it may have several, and tabs."""


def _shown(text: Any, most: int) -> str:
    """The words of a peer for people and logs: not all of what is long."""
    whole = str(text)
    return whole if len(whole) <= most else f"{whole[:most]}... ({len(whole)} characters)"


def _shown_in_lines(text: Any, most: int) -> str:
    """`_shown`, without what writes over other lines."""
    return _TEXT.sub(lambda found: in_one_line(found[0]), _shown(text, most))


class RequestError(BusError, metaclass=_ByCode):
    """The peer (or the bus on its behalf) answered a request with an error.

    Raised in a handler it chooses the answer; received from a request it tells what the peer said. ``RequestError(code,
    text)`` makes an instance of the subclass that belongs to the code, so ``except NotFound`` works wherever it came from.

    Args:
        code: Why, as `Code` (its number or name is taken too).
        text: For people: what was wrong and what to do next.
        reason: For programs: a short word within the code, such as ``"too_large"``.
        detail: Anything that the body format of the wire can carry.

    Raises:
        ValueError: The code is not one of `Code`, or is ``OK``.
    """

    default_code: Code = Code.UNKNOWN
    default_reason: str | None = None

    code: Code
    text: str
    reason: str | None
    detail: Any
    subject: str | int | None
    foreign: bool
    """True if another program sent this error; False of one that a handler of this bus has raised, or the bus itself."""

    def __init__(self, code: Code | int | str, text: str = "", *, reason: str | None = None, detail: Any = None) -> None:
        self._fill(as_code(code), text, reason, detail)

    def _fill(self, code: Code, text: str, reason: str | None, detail: Any) -> None:
        if code is Code.OK:
            raise ValueError("a RequestError needs a code other than OK: return a value instead")
        # Not what a subclass of str makes of itself: a wire writes no such objects.
        given = _exact(text)
        super().__init__(given)
        self.code = code
        self.text = given
        self.reason = None if reason is None else _exact(reason)
        self.detail = detail
        self.subject = None
        # Set on what came from a peer: such an error is passed on only by relay(), never by falling through a handler.
        self._received = False
        self.foreign = False

    @property
    def received(self) -> bool:
        """True if a peer sent this error (as opposed to one created here)."""
        return self._received

    def relay(self) -> RequestError:
        """A copy that a handler may raise to pass a received error on to its own caller, deliberately."""
        made = copy.copy(self)
        made._received, made.subject, made.attempts = False, None, 1
        made.foreign = False
        return made

    def __str__(self) -> str:
        about = f" ({self.subject!r})" if self.subject is not None else ""
        reason = f" [{in_one_line(_shown(self.reason, 200))}]" if self.reason else ""
        text = f": {_shown_in_lines(self.text, 4000)}" if self.text else ""
        advice = "; the server's log has it under this id" if _INTERNAL.fullmatch(self.text) else ""
        return f"{self.code.name}{reason}{about}{text}{advice}{self._asked}"

    def __repr__(self) -> str:
        reason = None if self.reason is None else _shown(self.reason, 200)
        return f"{type(self).__name__}({self.code.name}, {_shown(self.text, 4000)!r}, reason={reason!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _made, (type(self), self.code, self.text, self.reason, self.detail), {**self.__dict__}


class _CodedError(RequestError):
    """A subclass with a code of its own, which takes the text alone: ``Forbidden("not yours")``."""

    def __init__(self, text: str = "", *, code: Code | None = None, reason: str | None = None, detail: Any = None) -> None:
        reason = reason if reason is not None else self.default_reason
        self._fill(self.default_code if code is None else as_code(code), text, reason, detail)


def _exact(value: Any) -> str:
    """The text that an object of a subclass is, or that another object gives of itself, such as an exception."""
    return str.__str__(value if isinstance(value, str) else str(value))


class NoHandler(_CodedError):
    """Nobody serves this subject (UNIMPLEMENTED)."""

    default_code = Code.UNIMPLEMENTED


class NotFound(_CodedError):
    """The handler looked and there is no such thing (NOT_FOUND)."""

    default_code = Code.NOT_FOUND


class Conflict(_CodedError):
    """The state of things forbids it (ALREADY_EXISTS, ABORTED, FAILED_PRECONDITION)."""

    default_code = Code.FAILED_PRECONDITION


class BadRequest(_CodedError):
    """The body or its shape is wrong (INVALID_ARGUMENT)."""

    default_code = Code.INVALID_ARGUMENT


class Unauthorized(_CodedError):
    """The asker is not known (UNAUTHENTICATED)."""

    default_code = Code.UNAUTHENTICATED


class Forbidden(_CodedError):
    """The asker may not (PERMISSION_DENIED)."""

    default_code = Code.PERMISSION_DENIED


class TooLarge(_CodedError):
    """A message above the size limit (RESOURCE_EXHAUSTED, reason ``too_large``)."""

    default_code = Code.RESOURCE_EXHAUSTED
    default_reason: str | None = "too_large"


class TooManyRequests(_CodedError):
    """The peer has more to do than it takes on (RESOURCE_EXHAUSTED)."""

    default_code = Code.RESOURCE_EXHAUSTED


class Unavailable(_CodedError):
    """The peer is there but takes no requests now, for example because it drains (UNAVAILABLE)."""

    default_code = Code.UNAVAILABLE


class RemoteError(_CodedError):
    """Any other failure that the peer reported."""

    default_code = Code.UNKNOWN


_CLASSES: Mapping[Code, type[_CodedError]] = {
    Code.UNIMPLEMENTED: NoHandler,
    Code.NOT_FOUND: NotFound,
    Code.ALREADY_EXISTS: Conflict,
    Code.ABORTED: Conflict,
    Code.FAILED_PRECONDITION: Conflict,
    Code.INVALID_ARGUMENT: BadRequest,
    Code.UNAUTHENTICATED: Unauthorized,
    Code.PERMISSION_DENIED: Forbidden,
    Code.RESOURCE_EXHAUSTED: TooManyRequests,
    Code.UNAVAILABLE: Unavailable,
}


def as_code(value: Code | int | str) -> Code:
    """The `Code` of a number or a name.

    Raises:
        ValueError: There is no such code.
    """
    try:
        return Code[value.upper()] if isinstance(value, str) else Code(value)
    except (KeyError, ValueError):
        raise ValueError(f"{value!r} is no google.rpc.Code: use polybus.Code, for example Code.NOT_FOUND") from None


def class_of(code: Code, reason: str | None) -> type[RequestError]:
    """The class that stands for (code, reason)."""
    if code is Code.RESOURCE_EXHAUSTED and reason == "too_large":
        return TooLarge
    return _CLASSES.get(code, RemoteError)


def _by_code(code: Code | int | str, text: str = "", *, reason: str | None = None, detail: Any = None) -> RequestError:
    return make_request_error(as_code(code), text, reason=reason, detail=detail)


def make_request_error(code: Code, text: str = "", *, reason: str | None = None, detail: Any = None) -> RequestError:
    """A `RequestError` of the class that belongs to the code."""
    return _made(class_of(code, reason), code, text, reason, detail)


def _made(kind: type[RequestError], code: Code, text: str, reason: str | None, detail: Any) -> RequestError:
    """An error of a class, whatever that asks for when it is called."""
    error = kind.__new__(kind, text)
    error._fill(code, text, reason, detail)
    return error


def another(error: BusError) -> BusError:
    """A copy, for one more who is told: an exception that several raise would collect the traceback and context of all."""
    return copy.copy(error)


class DeadlineExceeded(BusError, TimeoutError):
    """The answer did not come in time.

    Attributes:
        subject: What was asked.
        elapsed: Seconds from the call to the end.
        where: ``"local"`` when our own timer fired, ``"remote"`` when the peer said so.
        text: What the peer said, if anything; as `reason` and `detail`, where its handler chose to answer so.
        reason: As in `RequestError`.
        detail: As in `RequestError`.
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
        who = "the peer gave up" if self.where == "remote" else "no answer"
        said = self.text or "raise timeout= or look at the handler"
        after = f"{self.elapsed:.3f}" if self.elapsed >= 0.001 else f"{self.elapsed:.1g}"
        return f"{who} on {self.subject!r} after {after} s: {in_one_line(said)}{self._asked}"


class Disconnected(BusError, ConnectionError):
    """The link broke before the answer came.

    Attributes:
        reason: Why the link ended.
        peer: Whom it led to, as text; empty where there was no link.
        sent: Whether the request may have run. If not, it is safe to ask again: it was not handed to the transport, or the peer
            has drained and had not read it.
    """

    def __init__(self, reason: str = "", peer: str = "", sent: bool = False) -> None:
        self.reason: str = reason
        self.peer: str = peer
        self.sent: bool = sent
        super().__init__(reason, peer, sent)

    def __str__(self) -> str:
        state = "it may have run" if self.sent else "it was never sent, or not read"
        reason = in_one_line(self.reason)
        if self.peer or not reason:
            reason = f"the link to {self.peer or 'the peer'} is down" + f" ({reason})" * bool(reason)
        return f"{reason}; {state}{self._asked}"


class ConnectFailed(BusError, ConnectionError):
    """A first connect did not succeed.

    Attributes:
        url: Where to, without secrets.
        reason: Why not.
    """

    def __init__(self, url: str, reason: str) -> None:
        self.url: str = without_secrets(url)
        self.reason: str = reason
        super().__init__(self.url, reason)

    def __str__(self) -> str:
        return f"cannot connect to {self.url}: {in_one_line(self.reason)}{self._asked}"


class ProtocolError(BusError):
    """A rule of a wire was broken.

    Attributes:
        protocol: Name of the protocol or transport, for example ``"ubre"``.
        offset: Position in the frame in bytes, where known.
        frame: The first bytes of the frame, where known.
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
    """The calling program asked for something that the wire or the API does not allow."""


class RemoteProtocolError(ProtocolError):
    """The peer sent something that it must not send.

    Attributes:
        reason: A short word for counters and the quarantine of recorded traffic: ``malformed``, ``too_deep``, ``truncated``,
            ``invalid_subject``, ``invalid_id``, ``ambiguous``, ``unknown_verb``, ``too_large``, ...
        answer_id: The id under which the peer can be told, where the message had one; else None.
        reply_id: The id of our own request that this malformed message was meant to answer: nobody need wait for it any more.
        close_code: A WebSocket close code when the connection must end at once; None when only this message is refused.
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
    """A value cannot be written in the body format of this wire.

    Attributes:
        path: Where in the value, for example ``$.items[3].price``.
    """

    def __init__(self, text: str, path: str = "$") -> None:
        self.text: str = text
        self.path: str = path
        super().__init__(text, path)

    def __str__(self) -> str:
        return f"{self.text} at {self.path}"


class BadReply(BusError):
    """The peer answered, but the answer does not fit ``returns=``."""


class RequestCancelled(BusError):
    """This request was cancelled by `Reply.cancel` or because its last waiter went away."""


class QueueFull(BusError):
    """There is no room for one more message; nothing of it was sent."""


class SlowConsumer(BusError):
    """A ``block`` subscription was read too slowly, and has ended. Its link and all others go on."""


class Unsupported(BusError):
    """The protocol, or the bare peer at the other end, cannot carry this."""


class AmbiguousRoute(BusError):
    """Several links could take this request: say ``to=`` or give the links ``serves=``."""


class ReservedSubject(BusError, ValueError):
    """The subject or header belongs to a protocol and cannot be used by an application."""
