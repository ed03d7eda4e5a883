"""What the throw-away protocols of these tests share, so that each shows only what is peculiar to it."""

from __future__ import annotations

import json
import random
import string
from collections.abc import Mapping
from typing import Any, ClassVar, Final, Literal, Self

from attrs import frozen

from polybus import Code
from polybus.body import JSON, BodyFormat
from polybus.errors import EncodeError, RemoteProtocolError, TooLarge
from polybus.limits import Limits
from polybus.message import Kind, Message
from polybus.plugins import CloseWanted, Ready, Refused, SessionEvent

TEXT_ONLY: Final[frozenset[Literal["text", "binary"]]] = frozenset(("text",))


@frozen(kw_only=True)
class ShapeAdapter:
    """An adapter without options; those that have some say so."""

    name: ClassVar[str] = "shape"

    @property
    def url_options(self) -> Mapping[str, str]:
        return {}

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Self:
        if options:
            raise ValueError(f"{cls.name}: unknown option {', '.join(options)}; there are none")
        return cls()


class JsonCodec:
    """What the codecs of JSON texts have in common."""

    formats: tuple[BodyFormat, ...] = (JSON,)
    reads = TEXT_ONLY
    writes: Literal["text", "binary"] = "text"

    def format_for(self, value: Any, subject: str | int) -> BodyFormat:
        return JSON


class ShapeSession:
    """The queues that every session has, and nothing else."""

    def __init__(self, limits: Limits, rng: random.Random | None = None) -> None:
        self.limits = limits
        self.rng = rng if rng is not None else random.SystemRandom()
        self._events: list[Message | SessionEvent] = []
        self._frames: list[bytes] = []

    def start(self, now: float) -> None:
        self._events.append(Ready())

    def events(self) -> list[Message | SessionEvent]:
        events, self._events = self._events, []
        return events

    def frames_to_send(self) -> list[bytes]:
        frames, self._frames = self._frames, []
        return frames

    def forget(self, key: Any, now: float) -> None:
        """Nothing to set aside."""

    def next_tick(self) -> float | None:
        return None

    def tick(self, now: float) -> None:
        """No clock."""

    def close(self, code: int, reason: str, now: float, peer_key: Any = None) -> None:
        """No goodbye."""

    def connection_lost(self, reason: str) -> None:
        self._frames.clear()

    def refuse(self, error: RemoteProtocolError, peer_key: Any = None) -> None:
        """Report a bad message; the connection goes on unless the error says otherwise."""
        self._events.append(Refused(error, peer_key))
        if error.close_code is not None:
            self._events.append(CloseWanted(error.close_code, error.reason, error))

    def queue(self, frame: bytes) -> None:
        if len(frame) > self.limits.message:
            raise TooLarge(f"a frame of {len(frame)} bytes is larger than {self.limits.message} (Limits.message)")
        self._frames.append(frame)


def token(rng: random.Random) -> str:
    """A random part that nobody guesses."""
    return "".join(rng.choices(string.ascii_letters + string.digits, k=10))


def load(frame: bytes) -> Any:
    """The value of a JSON text.

    Raises:
        RemoteProtocolError: It is none.
    """
    try:
        return json.loads(frame)
    except (ValueError, RecursionError) as error:
        raise RemoteProtocolError(f"not JSON: {error}") from error


def dump(value: Any) -> bytes:
    """A JSON text.

    Raises:
        EncodeError: The value has none.
    """
    try:
        return json.dumps(value, separators=(",", ":")).encode()
    except (TypeError, ValueError) as error:
        raise EncodeError(str(error)) from error


def body_of(message: Message) -> Any:
    """The body as a JSON value."""
    raw = message.encoded((JSON,))
    return None if raw is None else json.loads(raw)


def facts_of(message: Message) -> dict[str, Any]:
    """What an error or an end says, as members of a JSON object."""
    return {"code": int(message.code or Code.UNKNOWN), **{k: message.attributes.get(k) for k in ("text", "reason", "detail")}}


def failed(kind: Kind, id: Any, facts: Any) -> Message:
    """The other direction: an error or an end from the members of an object."""
    facts = facts if isinstance(facts, dict) else {}
    number = facts.get("code")
    code = Code(number) if type(number) is int and 0 < number <= 16 else Code.UNKNOWN
    attributes = {"text": str(facts.get("text") or ""), "reason": facts.get("reason"), "detail": facts.get("detail")}
    return Message(kind, "", id, code=code, attributes=attributes)


def text_of(document: Any, name: str) -> str:
    """A member that must be text.

    Raises:
        RemoteProtocolError: It is not there or is something else.
    """
    value = document.get(name) if isinstance(document, dict) else None
    if not isinstance(value, str) or not value:
        raise RemoteProtocolError(f"{name} is a text and not empty", reason="malformed")
    return value


def headers_of(value: Any) -> dict[str, str] | None:
    """Headers, or None.

    Raises:
        RemoteProtocolError: Not text to text.
    """
    if value is None:
        return None
    if not isinstance(value, dict) or not all(isinstance(v, str) for v in value.values()):
        raise RemoteProtocolError("headers are text to text", reason="invalid_headers")
    return value


def seconds_of(value: Any) -> float | None:
    """A time to live in seconds, from milliseconds.

    Raises:
        RemoteProtocolError: Not a whole number.
    """
    if value is None:
        return None
    if type(value) is not int:
        raise RemoteProtocolError("ttl is a whole number of milliseconds", reason="invalid_ttl")
    return value / 1000
