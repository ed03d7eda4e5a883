"""Code shared by both generations of uProtocol: ids, priorities, the session, and attributes that are kept across a bridge.

Ids are UUIDs that contain a time (eclipse-uprotocol/up-spec a6392ed, basics/uuid.adoc). The document specifies version 8: 48
bits of Unix milliseconds, a 12-bit counter that restarts each millisecond, and 62 bits that each generator chooses at random
once. Versions 6 and 7, which up-java writes, can also be read. Version 4, which the document's examples use, contains no time.
"""

from __future__ import annotations

import ipaddress
import math
import random
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final, Self, TypeAlias

from attrs import field, frozen

from ..errors import Code, RemoteProtocolError
from ..limits import Limits
from ..message import RELAYED, Kind, Message
from ..plugins import CloseWanted, Frames, QuietSession, Refused, SessionEvent, SessionOutput, Undelivered
from ..plugins.tools import SubjectIndex, shown, sources
from ._shared import UrlOptions

PRIORITIES: Final = tuple(f"CS{level}" for level in range(7))
LEVELS: Final = {name: level for level, name in enumerate(PRIORITIES)}
FIRST_TOPIC: Final = 0x8000
"""First topic number in an address. Methods have lower numbers, and number 0 is for answers and notifications."""
Pairs: TypeAlias = tuple[tuple[str, str], ...]


def pairs_in(table: Any) -> tuple[tuple[Any, Any], ...] | None:
    try:
        return tuple((name, value) for name, value in (table.items() if isinstance(table, Mapping) else table))
    except (TypeError, ValueError):
        return None


def _pairs(priorities: Mapping[str, str] | Pairs) -> Pairs:
    pairs = pairs_in(priorities)
    return priorities if pairs is None else pairs  # type: ignore[return-value]  # refused by the validator


def _check_priorities(adapter: Any, attribute: Any, value: Any) -> None:
    if type(value) is not tuple or pairs_in(value) is None:
        text = "must be a table from patterns to CS0 ... CS6: {'door.*': 'CS4'}"
        raise ValueError(f"{adapter.name}: priorities={shown(value)} {text}")
    for pattern, name in value:
        if name not in LEVELS:
            text = f"priority {shown(name)} of {shown(pattern)} is not one of {', '.join(PRIORITIES)}"
            raise ValueError(f"{adapter.name}: {text}")


def _check_token(adapter: Any, attribute: Any, value: Any) -> None:
    if not (value is None or callable(value) or (isinstance(value, str) and value.isprintable())):  # never show the value
        raise ValueError(f"{adapter.name}: token must be a string, a function that returns a string, or None")


def _check_level(adapter: Any, attribute: Any, value: Any) -> None:
    most = adapter.largest
    if value is not None and not (type(value) is int and 0 <= value <= most):
        raise ValueError(f"{adapter.name}: permission_level={shown(value)} must be a number from 0 to {most}")


def _check_seconds(adapter: Any, attribute: Any, value: Any) -> None:
    if not isinstance(value, (int, float)) or not 0 <= value < 1e9:
        raise ValueError(f"{adapter.name}: {attribute.name}={shown(value)} must be a number of seconds")


def _check_lifetime(adapter: Any, attribute: Any, value: Any) -> None:
    most = adapter.largest / 1000
    if value is not None and not (isinstance(value, (int, float)) and 0.001 <= value <= most):
        raise ValueError(f"{adapter.name}: ttl={shown(value)} must be from 0.001 to {int(most)} seconds")


@frozen(kw_only=True)
class EntityOptions(UrlOptions):
    largest: ClassVar[int]
    """Maximum ttl in milliseconds, and maximum permission level."""

    ttl: float | None = field(default=None, validator=_check_lifetime)
    priorities: Pairs = field(default=(), converter=_pairs, validator=_check_priorities)
    token: str | Callable[[], str | None] | None = field(default=None, validator=_check_token, repr=False)
    permission_level: int | None = field(default=None, validator=_check_level)
    max_clock_skew: float = field(default=30.0, validator=_check_seconds)
    allowance: float = field(default=0.0, validator=_check_seconds)
    clock: Callable[[], int] = field(factory=lambda: sources.get().wall_clock_ns)


def is_ip(host: str, kind: Callable[[str], object] = ipaddress.ip_address) -> bool:
    try:
        kind(host.strip("[]"))
    except ValueError:
        return False
    return True


class SubjectLevels:
    def __init__(self, priorities: Pairs) -> None:
        self._index: SubjectIndex[int] = SubjectIndex()
        self._names = [name for _, name in priorities]
        for place, (pattern, _) in enumerate(priorities):
            self._index.add(pattern, place)

    def of(self, subject: str | int) -> str | None:
        places = self._index.match(subject) if self._names else ()
        return self._names[min(places)] if places else None


_UUID: Final = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-([0-9a-f])[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", re.ASCII | re.IGNORECASE
)
_COUNTS: Final = 4096
# Formatting the counter takes a third of the time for an id. These suffice for a million ids per second.
_HEX: Final = tuple(f"{count:03x}" for count in range(1024))
_LAST_MS: Final = 2**48 - 1
_GREGORIAN_MS: Final = 12_219_292_800_000  # from 1582-10-15, the epoch of version 6, to 1970


class IdFactory:
    """Generates unique ids in ascending order, even if the clock is set back.

    After 4,096 ids in one millisecond, or if the clock is set back, ids contain times ahead of the clock until the clock
    catches up. (According to the document the counter stops instead, which repeats ids.) Not thread-safe.

    Args:
        clock: A function that returns nanoseconds since 1970.
        rng: Generates the random part. The default is `random.SystemRandom`.
    """

    __slots__ = ("_clock", "_count", "_head", "_ms", "suffix")

    def __init__(self, clock: Callable[[], int] | None = None, rng: random.Random | None = None) -> None:
        self._clock = clock if clock is not None else sources.get().wall_clock_ns
        random_bits = (rng if rng is not None else sources.get().rng).getrandbits(62)
        self.suffix: Final = (
            f"-{8 + (random_bits >> 60):x}{random_bits >> 48 & 0xFFF:03x}-{random_bits & 0xFFFF_FFFF_FFFF:012x}"
        )
        self._ms: float = -math.inf
        self._count = 0
        self._head = ""

    def next(self) -> str:
        ms = self._clock() // 1_000_000
        count = self._count + 1
        if ms > self._ms:
            self._begin(ms)
            count = 0
        elif count == _COUNTS:
            self._begin(int(self._ms) + 1)
            count = 0
        self._count = count
        return f"{self._head}{_HEX[count] if count < 1024 else f'{count:03x}'}{self.suffix}"

    def _begin(self, ms: int) -> None:
        ms = min(max(ms, 0), _LAST_MS)
        self._ms = ms
        self._head = f"{ms >> 16:08x}-{ms & 0xFFFF:04x}-8"


def id_version(id: str) -> int | None:
    found = _UUID.fullmatch(id)
    return int(found[1], 16) if found is not None else None


def id_time_ms(id: str) -> int | None:
    """Return the creation time in an id, in milliseconds since 1970, or `None` for version 4, which contains no time.

    Raises:
        ValueError: If the string is not a UUID with hyphens.
    """
    version = id_version(id)
    if version == 8 or version == 7:
        return int(id[:8], 16) << 16 | int(id[9:13], 16)
    if version == 6:
        return (int(id[:8], 16) << 28 | int(id[9:13], 16) << 12 | int(id[15:18], 16)) // 10_000 - _GREGORIAN_MS
    if version is None:
        raise ValueError(f"{id[:60]!r} is not a UUID: a UUID has the form 018bcfe5-687b-8000-9122-334455667788")
    return None


_CONVERTIBLE: Final = (7, 8)  # Versions with the same layout: the old generation writes 8, the new one 7
_VERSION_AT: Final = 14


def relayed_priority(attributes: Mapping[str, Any]) -> str | None:
    """Return the original priority of a message even if it crossed a bridge, or `None` if it came from another protocol."""
    crossed = attributes.get(RELAYED)
    name = crossed.get("priority") if isinstance(crossed, dict) else attributes.get("priority")
    return name if isinstance(name, str) and name in LEVELS else None


def relayed_id(attributes: Mapping[str, Any], version: int) -> str | None:
    """Return the original id of a bridged message, converted to a UUID version, or `None` if it had no id with a time.

    Versions 7 and 8 differ only in the version digit, so an id that crosses twice is unchanged.
    """
    crossed = attributes.get(RELAYED)
    id = crossed.get("id") if isinstance(crossed, dict) else None
    if not isinstance(id, str) or id_version(id) not in _CONVERTIBLE:
        return None
    return f"{id[:_VERSION_AT]}{version}{id[_VERSION_AT + 1 :]}".lower()


class LazyMessage(Message, ABC):
    """A message that builds its `attributes` on first access, because few handlers read the attributes."""

    __slots__ = ()
    extras: dict[str, Any] | None  # declared in `Message`; repeated for type checkers

    def __copy__(self) -> Self:
        made = object.__new__(type(self))
        for name in (*Message.__match_args__, *self.__slots__):
            setattr(made, name, getattr(self, name))
        return made

    @abstractmethod
    def _facts(self) -> dict[str, Any]: ...

    @property
    def attributes(self) -> dict[str, Any]:
        if self.extras is None:
            self.extras = self._facts()
        return self.extras


_USUAL_LEVEL: Final = {Kind.PUBLISH: 1, Kind.NOTIFY: 1}
_REQUEST_LEVEL: Final = 4


def urgency_of(message: Message, asked: str | None, level_of: Callable[[str | int], str | None]) -> int:
    """Return the urgency of a message, from 0 (CS0) to 6 (CS6). An answer has the priority of its request, `asked`."""
    name = asked or relayed_priority(message.attributes) or level_of(message.subject)
    return LEVELS.get(str(name), _USUAL_LEVEL.get(message.kind, _REQUEST_LEVEL))


# -- sessions ------------------------------------------------------------------------------------------------------------

REMEMBERED: Final = 1024  # Cached subjects of a session; at the limit the cache is emptied
_LAST_MOMENT: Final = 0.001  # Time left in the last millisecond of a ttl: a message expires only after it
_REQUEST: Final = Kind.REQUEST


class EntitySession(QuietSession, ABC):
    """Base class of both sessions; handles pending requests, expiry, and malformed requests. Times are in milliseconds."""

    codes: ClassVar[Mapping[str | None, Code]]  # Codes of refusal reasons that are not INVALID_ARGUMENT
    return_address: ClassVar[type]
    refuse: ClassVar[Callable[..., RemoteProtocolError]]
    _names: Any

    def __init__(self, codec: Any, adapter: Any, limits: Limits) -> None:
        self.codec: Any = codec
        self._read = codec.read
        self._options = adapter
        self._clock: Callable[[], int] = adapter.clock
        self._allowance: float = adapter.allowance * 1000
        self._skew: float = adapter.max_clock_skew * 1000
        self._max_frame = limits.message
        self._ttl = None if adapter.ttl is None else int(adapter.ttl * 1000 + 0.5)
        self._methods: dict[str | int, tuple[bytes, str]] = {}
        self._topics: dict[Any, bytes] = {}  # Head of publications and notifications, by subject and further parts
        self._asked: dict[Any, str] = {}
        self._output: list[Message | SessionEvent | bytes] = []  # Outcome of the current frame, unless it is one message

    def receive(self, frame: bytes, now: float) -> SessionOutput:
        try:
            message = self._read(frame)
            if self._is_taken(message, now):
                return message  # type: ignore[no-any-return]
        except RemoteProtocolError as error:
            self._unread(error, frame, now)
        return self._taken()

    @abstractmethod
    def _is_taken(self, message: Any, now: float) -> bool:
        """Return True if the message is for the bus. Otherwise the result is in `_output`."""

    def _unread(self, error: RemoteProtocolError, frame: bytes, now: float) -> None:
        self._refuse(error)

    def _taken(self) -> SessionOutput:
        output, self._output = self._output, []
        return output

    def _learn(self, source: str) -> None:
        self._names.learn(source)
        self._methods.clear()
        self._topics.clear()

    def _in_time(self, message: Message, made: int, ttl: int) -> bool:
        """Set the remaining ttl of a message that is not an answer. Returns False if the message has expired.

        Raises `RemoteProtocolError` if the message is from too far in the future.
        """
        age = self._clock() // 1_000_000 - made
        left = ttl - age + self._allowance
        if left < 0:
            if message.kind is _REQUEST:
                message.ttl = 0.0  # the bus answers it, and bounds answers that the peer does not read
                return False
            return self._expired(message, age, ttl)
        if -age > self._skew:
            text = f"made {-age / 1000:.3f} s in the future: at most {self._skew / 1000:g} s (max_clock_skew)"
            raise self.refuse(text, "clock_skew", message.id if message.kind is _REQUEST else None)
        message.ttl = min(left, ttl) / 1000 if left > 0 else _LAST_MOMENT
        return True

    def _answer_in_time(self, message: Message, source: str, made: int, ttl: int) -> bool:
        """Return False for an expired answer. Its request keeps waiting until the request's own deadline."""
        age = self._clock() // 1_000_000 - made
        if age <= ttl + self._allowance:
            return True
        message.subject = self._names.subject(source)
        return self._expired(message, age, ttl)

    def _expired(self, message: Message, age: int, ttl: int) -> bool:
        text = f"made {age / 1000:.3f} s ago with a ttl of {ttl / 1000:.3f} s; where clocks differ, set allowance="
        self._output.append(Undelivered(message, Code.DEADLINE_EXCEEDED, "expired", text))
        return False

    def _refuse(self, error: RemoteProtocolError) -> None:
        self._output.append(Refused(error))
        if isinstance(error.answer_id, self.return_address):
            self._answer(error.answer_id, self.codes.get(error.reason, Code.INVALID_ARGUMENT), error.text, error.reason)
        if error.reply_id is not None and self._asked.pop(error.reply_id, None) is None:
            error.reply_id = None
        if error.close_code is not None:
            self._output.append(CloseWanted(error.close_code, error.reason, error))

    def _answer(self, address: Any, code: Code, text: str, reason: str | None) -> None:
        facts = {"text": text, "reason": reason, "undelivered": True}
        self._output.append(self._response(Message(Kind.ERROR, "", address, code=code, attributes=facts)))

    @abstractmethod
    def _response(self, message: Message) -> bytes: ...

    @abstractmethod
    def _event(self, kind: Kind, message: Message) -> bytes: ...

    def _publication(self, message: Message) -> bytes:
        """Write a publication once for all peers, so that every peer receives the same id."""
        shared, key = message.shared, (self.codec, self._names.entity)
        frame = shared.get(key)
        if frame is None:
            frame = shared[key] = self._event(Kind.PUBLISH, message)
        return frame

    def _kept_id(self, extras: Mapping[str, Any], version: int) -> tuple[str | None, int]:
        """Return the original id and the age in milliseconds of a bridged message. The age counts against its ttl."""
        id = relayed_id(extras, version)
        made = None if id is None else id_time_ms(id)
        return id, 0 if made is None else max(0, self._clock() // 1_000_000 - made)

    def forget(self, key: Any, now: float) -> Frames:
        self._asked.pop(key, None)
        return ()

    def connection_lost(self, reason: str) -> None:
        self._asked.clear()
