"""Header blocks, and the errors that they or a server's -ERR contain.

A block is ``NATS/1.0`` with an optional status, followed by lines with a name and a value (ADR-4). Blocks often repeat,
especially in errors and in messages from the same sender, so the last few hundred are cached.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from attrs import frozen

from ...body import JSON, OCTETS
from ...errors import BusError, Code, Forbidden, LocalProtocolError, Unauthorized
from ...message import Kind, Message
from .._shared import LINE_BREAK, MAX_INT, Memo, fault_in_headers

VERSION: Final = b"NATS/1.0"
TTL: Final = "Polybus-Ttl"
REASON: Final = "Polybus-Reason"
TEXT: Final = "Polybus-Text"
BODY: Final = "Polybus-Body"
KIND: Final = "Polybus-Kind"
USER: Final = "Polybus-User"
ONLY: Final = "Polybus-Only"  # The one durable handler that a republished message is for
AGAIN: Final = "Polybus-Again"  # Marks a repeated publication: subscribers may already have received the first copy
ECHO: Final = "Polybus-Echo"  # Marks publications so that their publisher recognises the server's copy
MESSAGE_ID: Final = "Nats-Msg-Id"
"""If several messages have the same id, a stream stores only one (NATS documentation, JetStream, "Message Deduplication")."""
ERROR: Final = "Nats-Service-Error"
ERROR_CODE: Final = "Nats-Service-Error-Code"

_DEADLINE: Final = VERSION + f"\r\n{TTL}: ".encode()
_OWN: Final = frozenset(name.lower() for name in (TTL, REASON, TEXT, BODY, KIND, USER, ONLY, AGAIN, ECHO, ERROR, ERROR_CODE))
_NAME: Final = re.compile(r"[!-9;-~]+")
_STATUS: Final = re.compile(rb"NATS/1\.0(?:[ \t]+(\d{3})(?:[ \t]+([^\r\n]*))?)?[ \t]*")
_BLANKS: Final = " \t"  # Optional around a value, and not part of it (ADR-4)
_CACHED: Final = 512  # Number of cached blocks, and the largest cached block in bytes
_LINES: Final = 4096
_SLACK: Final = 1024  # Bytes of a block beyond the application's headers: its first line and our own fields


@frozen
class HeaderBlock:
    status: int | None = None  # Status from the server, such as 503: no subscriber
    text: str = ""  # Text after the status, or the text of an error
    fields: Mapping[str, str] | None = None  # Headers of the application
    ttl: float | None = None  # Time-out of the request in seconds
    error: str | None = None  # Number of an error
    reason: str | None = None
    octets: bool = False  # The body is bytes even if it looks like JSON
    kind: str | None = None  # Kind of message, if the subject does not tell (cluster)
    user: str | None = None  # Key of the calling user of a forwarded request (cluster)
    only: str | None = None  # The one durable handler that the message is for (cluster)
    again: bool = False  # The message was sent before (cluster)
    echo: str | None = None  # Mark of the publishing connection
    left_out: str = ""  # First reason why a part of the block was unreadable; empty if all was read
    whole: bytes = b""  # The original block if a part exceeds the limit, for a reader with a larger limit


class HeaderReader:
    """Reads and caches header blocks.

    Servers forward headers unchecked, so a publisher may send malformed headers. Malformed lines, and all lines after `limit`,
    are ignored, and the message is still delivered.
    """

    __slots__ = ("_limit", "known")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.known: Final[Memo[bytes, HeaderBlock]] = Memo(self._parse, _CACHED)

    def read(self, block: bytes) -> HeaderBlock:
        return self.known[block] if len(block) <= _CACHED else self._parse(block)

    def _parse(self, block: bytes) -> HeaderBlock:
        # Fast path for a request's deadline, which differs each time.
        if block.startswith(_DEADLINE) and block.endswith(b"\r\n\r\n"):
            digits = block[len(_DEADLINE) : -4]
            if digits.isdigit() and len(digits) <= 16:
                return HeaderBlock(ttl=min(int(digits), MAX_INT) / 1000)
        first, *lines = block.split(b"\r\n", _LINES)
        over = len(lines) == _LINES
        status = _STATUS.fullmatch(first)
        if status is None:
            return HeaderBlock(left_out=f"the first line is {first[:40]!r}, not NATS/1.0")
        left_out = f"there are more than {_LINES - 2} lines of headers" if over else ""
        fields, own = dict[str, str](), dict[str, str]()
        room = self._limit  # the engine's headers do not count against the sender's limit
        for line in filter(None, lines[: _LINES - 1]):
            name, value, fault = _field(line)
            if fault:
                left_out = left_out or fault
            elif name.lower() in _OWN:
                own[name.lower()] = value
            elif not _of_engine(name) and len(line) > room:
                over, left_out = True, left_out or f"headers are larger than {self._limit} bytes (limit: headers)"
            else:
                room -= 0 if _of_engine(name) else len(line)
                fields[name] = f"{fields[name]}, {value}" if name in fields else value
        number, said = status.groups()
        text = own.get(ERROR.lower(), "") if number is None else (said or b"").decode("utf-8", "replace").strip()
        return HeaderBlock(
            status=None if number is None else int(number),
            text=_whole_text(own.get(TEXT.lower()), text),
            fields=fields or None,
            ttl=_seconds(own.get(TTL.lower())),
            error=own.get(ERROR_CODE.lower(), "500" if ERROR.lower() in own else None),
            reason=_text_of_line(own.get(REASON.lower())),
            octets=own.get(BODY.lower()) == "bytes",
            kind=own.get(KIND.lower()),
            user=_text_of_line(own.get(USER.lower())),
            only=own.get(ONLY.lower()),
            again=AGAIN.lower() in own,
            echo=own.get(ECHO.lower()),
            left_out=left_out,
            whole=block if over else b"",
        )


def raw_without_those_of_engine(block: bytes) -> bytes:
    return b"\r\n".join(line for line in block.split(b"\r\n") if line[:5].lower() != b"nats-")


def _of_engine(name: str) -> bool:
    return name[:5].lower() == "nats-"


def without_those_of_engine(fields: Mapping[str, str] | None) -> Mapping[str, str] | None:
    """Remove headers that are instructions to the engine: message id, expiry, replacement."""
    return fields and {name: value for name, value in fields.items() if not _of_engine(name)}


def _field(line: bytes) -> tuple[str, str, str]:
    """Return the name and value of a header line. If the line is malformed, also return a description of the fault."""
    raw_name, colon, raw_value = line.partition(b":")
    name = raw_name.decode("latin-1")
    try:
        value = raw_value.decode()
    except UnicodeDecodeError:  # from a publisher that counts bytes as characters, as HTTP once did
        value = raw_value.decode("latin-1")
    if not colon or not _NAME.fullmatch(name):
        return name, "", f"a header must be a name, a colon and a value, not {line[:60]!r}"
    if LINE_BREAK.search(value):
        return name, "", f"CR, LF or NUL in the header {name[:40]!r}"
    return name, value.strip(_BLANKS), ""


def _whole_text(quoted: str | None, text: str) -> str:
    if quoted is not None:
        try:
            return msgspec.json.decode(quoted.encode(), type=str)
        except (ValueError, RecursionError):
            return text
    return text


def _text_of_line(text: str | None) -> str | None:
    return _whole_text(text, text) if text is not None and text[:1] == '"' else text


def _seconds(text: str | None) -> float | None:
    if text is None or not text.isascii() or not text.isdigit() or len(text) > 16:
        return None
    return min(int(text), MAX_INT) / 1000


def write_block(fields: Mapping[str, str] | None, own: list[tuple[str, str]], limit: int) -> bytes:
    lines = [VERSION]
    if fields:
        check_fields(fields, limit)
        lines += [f"{name}: {value}".encode() for name, value in fields.items()]
    lines += [f"{name}: {value}".encode("utf-8", "replace") for name, value in own]
    block = b"\r\n".join(lines) + b"\r\n\r\n"
    if len(block) > limit + _SLACK:
        raise LocalProtocolError(f"headers of {len(block)} bytes are larger than {limit} (limit: headers)", protocol="nats")
    return block


def check_fields(fields: Mapping[str, str], limit: int) -> None:
    fault = fault_in_headers(fields, limit)
    if fault is None:
        for name, value in fields.items():
            if not _NAME.fullmatch(name):
                fault = f"the header {name[:40]!r}: a name consists of visible ASCII characters without a colon"
            elif name.lower() in _OWN:
                fault = f"the header {name!r} is reserved by this protocol"
            elif value.strip(_BLANKS) != value:
                fault = f"the header {name[:40]!r} begins or ends with a blank, which NATS clients remove: strip it"
    if fault is not None:
        raise LocalProtocolError(fault, protocol="nats")


def error_fields(number: int, text: str, reason: str | None) -> list[tuple[str, str]]:
    """Return the header fields of an error. A text that does not fit on a line is truncated there, and sent whole in `TEXT`."""
    line = LINE_BREAK.sub(" ", text)[:_SHORT].strip(_BLANKS)
    fields = [(ERROR, line), (ERROR_CODE, str(number))]
    if line != text:
        fields.append((TEXT, quoted(text)))
    if reason is not None:
        fields.append((REASON, one_line(reason)))
    return fields


def one_line(text: str) -> str:
    """Return a header value: the string itself, or its JSON form if a reader would change or split the string."""
    plain = not LINE_BREAK.search(text) and text[:1] != '"' and text.strip(_BLANKS) == text
    return text if plain else quoted(text)


_SHORT: Final = 500  # Characters of an error's text that third-party clients see


def quoted(text: str) -> str:
    return msgspec.json.encode(text).decode()


NO_RESPONDERS: Final = 503  # Status of an empty message from the server: the request's subject has no subscriber

_CODES: Final = {
    Code.INVALID_ARGUMENT: (400, 415, 422),
    Code.UNAUTHENTICATED: (401,),
    Code.PERMISSION_DENIED: (403,),
    Code.NOT_FOUND: (404, 410),
    Code.UNIMPLEMENTED: (405, 501),
    Code.DEADLINE_EXCEEDED: (408, 504),
    Code.ABORTED: (409,),
    Code.FAILED_PRECONDITION: (412,),
    Code.RESOURCE_EXHAUSTED: (413, 429),
    Code.CANCELLED: (499,),
    Code.INTERNAL: (500,),
    Code.UNAVAILABLE: (503,),
}
_STATUSES: Final = {number: code for code, numbers in _CODES.items() for number in numbers}
_REASONS: Final = {405: "not_implemented", 501: "not_implemented", 413: "too_large"}
"""Error numbers of third-party services are HTTP status codes by convention. Numbers 1 to 16 are polybus codes."""


def code_of_status(number: Any) -> Code:
    return _STATUSES.get(number, Code.UNKNOWN) if type(number) is int else Code.UNKNOWN


def is_failure(headers: HeaderBlock | None) -> bool:
    return headers is not None and (headers.error is not None or headers.status is not None)


def error_message(id: Any, headers: HeaderBlock, payload: bytes) -> Message:
    if headers.error is None and headers.status == NO_RESPONDERS and not payload:
        text = headers.text or "no subscriber for this subject (503 of the NATS server)"
        facts: dict[str, Any] = {"text": text, "reason": None, "detail": None}
        return Message(Kind.ERROR, "", id, code=Code.UNIMPLEMENTED, attributes=facts)
    given = headers.error if headers.error is not None else str(headers.status)
    number = int(given) if given.isascii() and given.isdigit() and len(given) < 6 else 0
    detail = _detail(payload)
    if 1 <= number <= 16:
        code, reason = Code(number), headers.reason
    else:
        code, reason = _STATUSES.get(number, Code.UNKNOWN), headers.reason or _REASONS.get(number)
        detail = {"status": number or given, **({} if detail is None else {"body": detail})}
    return Message(Kind.ERROR, "", id, code=code, attributes={"text": headers.text, "reason": reason, "detail": detail})


def _detail(payload: bytes) -> Any:
    if not payload:
        return None
    try:
        return JSON.decode(payload)
    except BusError:
        return OCTETS.decode(payload)


@frozen
class ServerError:
    text: str
    ends: bool = False  # The connection ends or is unusable
    error: BusError | None = None  # Error for callers if reconnecting is useless
    refused: str | None = None  # The subject without permission
    subscribing: bool = False  # The refused operation was a subscription, not a publication
    queue: str | None = None

    @property
    def expired(self) -> bool:
        return self.text.lower().endswith("expired")


_VIOLATION: Final = re.compile(
    r'permissions violation for (publish|subscription)[^"]*"([^"]*)"(?: using queue "([^"]*)")?', re.I
)
_CREDENTIALS: Final = ("authorization violation", "authentication timeout", "authentication expired", "authentication revoked")
_GOES_ON: Final = ("invalid subject", "invalid publish subject", "maximum subscriptions exceeded", "permissions violation")
"""Prefixes of errors after which the server keeps the connection open. After any other error it closes the connection."""


def read_error(text: str) -> ServerError:
    lower = text.lower()
    violation = _VIOLATION.match(text)
    if violation is not None:
        verb, subject, queue = violation.groups()
        return ServerError(text, refused=subject, subscribing=verb.lower() == "subscription", queue=queue)
    if any(one in lower for one in _CREDENTIALS):
        hint = "" if lower.endswith("expired") else ": check user and password, token, or credentials"
        return ServerError(text, ends=True, error=Unauthorized(f"the NATS server says: {text}{hint}"))
    if lower.startswith(("permissions violation for account", "account authorization", "no matching origin")):
        return ServerError(text, ends=True, error=Forbidden(f"the NATS server says: {text}"))
    return ServerError(text, ends=not lower.startswith(_GOES_ON))
