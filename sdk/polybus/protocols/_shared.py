"""Code shared by the protocols: caches, URL options, and rules for subjects, headers, counts and errors."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final, Self, TypeVar

from attrs import field, fields

from ..errors import BadRequest, Code, EncodeError, LocalProtocolError, RemoteProtocolError, TooLarge, Unsupported
from ..message import Kind, Message
from ..plugins.tools import shown

K = TypeVar("K")
V = TypeVar("V")

_MOST: Final = 4096


def remember(cache: dict[K, V], key: K, value: V, most: int) -> V:
    """Cache a value. If the cache already has `most` entries, it is emptied first."""
    if len(cache) >= most:
        cache.clear()
    cache[key] = value
    return value


class Memo(dict[K, V]):
    """A dictionary that calls `make` for a missing key and empties itself when it is full. A hit costs no Python call."""

    __slots__ = ("_make", "_most")

    def __init__(self, make: Callable[[K], V], most: int = _MOST) -> None:
        super().__init__()
        self._make = make
        self._most = most

    def __missing__(self, key: K) -> V:
        return remember(self, key, self._make(key), self._most)


class UrlOptions:
    """Base class of protocol adapters. `option_names` lists the attributes that can be set in a URL."""

    __slots__ = ()

    name: ClassVar[str]
    option_names: ClassVar[tuple[str, ...]]

    @property
    def url_options(self) -> Mapping[str, str]:
        """Return the options that differ from their defaults, as in a URL query."""
        kind: Any = type(self)
        defaults = {one.name: one.default for one in fields(kind)}
        given = {name: getattr(self, name) for name in self.option_names if getattr(self, name) != defaults[name]}
        return {name: f"{value:g}" if isinstance(value, float) else str(value) for name, value in given.items()}

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Self:
        """Create an adapter from URL query options.

        Raises:
            ValueError: If an option or value is unknown. The message lists the known options or values.
        """
        unknown = sorted(set(options) - set(cls.option_names))
        if unknown:
            raise ValueError(f"{cls.name}: unknown option {', '.join(unknown)}; use one of {', '.join(cls.option_names)}")
        return cls(**options)


def choice(*values: str) -> Any:
    """Return an attrs field that accepts one of these values and defaults to the first."""
    return field(default=values[0], validator=one_of(*values))


def one_of(*values: str) -> Callable[[UrlOptions, Any, object], None]:
    def check(adapter: UrlOptions, attribute: Any, value: object) -> None:
        if not isinstance(value, (str, int)) or str(value) not in values:
            raise ValueError(f"{adapter.name}: {attribute.name}={shown(value)} must be one of {', '.join(values)}")

    return check


MAX_INT: Final = 2**53  # Larger integers lose digits in JavaScript
MODES: Final = ("stream", "channel", "tunnel")

_SHOWN: Final = 200
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
LINE_BREAK: Final = re.compile(r"[\r\n\x00]")


def fault_in_subject(value: Any, limit: int) -> str | None:
    """Return the fault in a subject, or `None` for a string of up to `limit` UTF-8 bytes without control characters."""
    if type(value) is not str:
        return f"a subject must be a string here, not {type(value).__name__}"
    if _CONTROL.search(value):
        return f"control character in the subject {value[:40]!r}"
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        return "lone surrogate in the subject"
    return f"a subject of {size} bytes is longer than {limit} (limit: subject)" if size > limit else None


def fault_in_headers(headers: Any, limit: int) -> str | None:
    """Return the fault in headers, or `None` if they map strings to strings, with up to `limit` UTF-8 bytes in total."""
    if type(headers) is not dict:
        return f"headers must be an object, not {type(headers).__name__}"
    size = 0
    for name, value in headers.items():
        if type(name) is not str or type(value) is not str or not name:
            return "headers must map non-empty strings to strings"
        both = name + value
        if LINE_BREAK.search(both):
            return f"CR, LF or NUL in the header {name[:40]!r}"
        try:
            size += len(both) if both.isascii() else len(both.encode())
        except UnicodeEncodeError:
            return f"lone surrogate in the header {name[:40]!r}"
    return f"headers of {size} bytes are larger than {limit} (limit: headers)" if size > limit else None


def too_large(size: int, limit: int, what: str = "a frame") -> TooLarge:
    advice = "send less, or raise Limits(message=...) at both ends; a stream or a channel carries it in parts"
    return TooLarge(f"{what} of {size} bytes is larger than {limit} (limit: message): {advice}")


def milliseconds(ttl: float) -> int:
    return int(min(max(0.0, ttl) * 1000 + 0.5, float(MAX_INT)))


def shown_text(data: bytes) -> str:
    text = data[:_SHOWN].decode("utf-8", "backslashreplace")
    return (text if text.isprintable() else repr(text)) + (f" ... {len(data)} bytes" if len(data) > _SHOWN else "")


def plain_field(value: int | bytes) -> str:
    return value.hex(" ") if isinstance(value, bytes) else str(value)


def opening_facts(message: Message) -> tuple[str, int, int]:
    given = message.attributes
    return given.get("mode", "channel"), given.get("credit", 0), given.get("hops", 0)


def error_facts(text: Any, reason: Any, detail: Any) -> dict[str, Any]:
    """Return the attributes of an incoming error. A message or reason that is not a string is dropped."""
    text, reason = text if isinstance(text, str) else "", reason if isinstance(reason, str) else None
    return {"text": text, "reason": reason, "detail": detail}


def refusal(error: RemoteProtocolError, id: Any) -> Message:
    code = Code.RESOURCE_EXHAUSTED if error.reason == "too_large" else Code.INVALID_ARGUMENT
    return Message(Kind.ERROR, "", id, code=code, attributes={"text": error.text, "reason": error.reason})


class WireRules:
    """Checks that raise `RemoteProtocolError` for input and `LocalProtocolError` for output, with the protocol's name."""

    def __init__(self, protocol: str) -> None:
        self._protocol = protocol

    def refuse(
        self, text: str, reason: str = "malformed", answer_id: Any = None, close_code: int | None = None
    ) -> RemoteProtocolError:
        return RemoteProtocolError(text, reason=reason, protocol=self._protocol, answer_id=answer_id, close_code=close_code)

    def refuse_size(self, size: int, limit: int) -> RemoteProtocolError:
        text = f"a frame of {size} bytes is larger than {limit} (limit: message)"
        return self.refuse(text, "too_large", close_code=1009)

    def refuse_json(self, error: Exception, answer_id: Any = None, kind: str = "a message") -> RemoteProtocolError:
        """Convert an error raised by a JSON decoder or `polybus.body.check_json`, or a `BadRequest` for an invalid value."""
        if isinstance(error, (EncodeError, RecursionError)):  # check_json raises EncodeError for input that is too deep
            return self.refuse("nested too deeply (limit: depth)", "too_deep", answer_id)
        if isinstance(error, BadRequest):
            return self.refuse(error.text, error.reason or "invalid_value", answer_id)
        return self.refuse(f"not the JSON of {kind}: {error}", "malformed", answer_id)

    def read_headers(self, headers: Any, limit: int, answer_id: Any = None) -> dict[str, str] | None:
        fault = None if headers is None else fault_in_headers(headers, limit)
        if fault is not None:
            raise self.refuse(fault, "invalid_headers", answer_id)
        return headers  # type: ignore[no-any-return]

    def read_count(
        self, value: Any, name: str, answer_id: Any = None, reason: str = "malformed", most: int = MAX_INT, least: int = 0
    ) -> int:
        if type(value) is not int or not least <= value <= most:
            raise self.refuse(f"{name} must be a whole number from {least} to {most}", reason, answer_id)
        return value

    def read_ttl(self, value: Any, name: str, answer_id: Any = None) -> float | None:
        """Convert an incoming time to live from whole milliseconds, or null, to seconds."""
        return None if value is None else self.read_count(value, name, answer_id, "invalid_ttl") / 1000

    def read_opening(
        self, mode: Any, credit: Any, hops: Any, answer_id: Any = None, reason: str = "malformed", most: int = MAX_INT
    ) -> dict[str, Any]:
        """Check an incoming open message and return its attributes. Errors have the given `reason`."""
        if mode not in MODES:
            raise self.refuse(f"mode must be one of {', '.join(MODES)}", reason, answer_id)
        credit = self.read_count(credit, "credit", answer_id, reason, most)
        return {"mode": mode, "credit": credit, "hops": self.read_count(hops, "hops", answer_id, reason, most)}

    def check_local_subject(self, value: Any, limit: int) -> str:
        """Check an outgoing subject. Empty subjects are allowed. An integer raises `Unsupported`."""
        fault = fault_in_subject(value, limit)
        if fault is not None:
            if isinstance(value, int):
                raise Unsupported(f"{self._protocol}: {value} is a number, but subjects are strings here: write {str(value)!r}")
            raise LocalProtocolError(fault, protocol=self._protocol)
        return str(value)

    def check_local_headers(self, headers: Any, limit: int) -> None:
        fault = fault_in_headers(headers, limit)
        if fault is not None:
            raise LocalProtocolError(fault, protocol=self._protocol)
