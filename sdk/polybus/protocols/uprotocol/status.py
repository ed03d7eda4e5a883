"""Errors as ``google.rpc.Status`` in an ``Any``: what a handler raises (document, 4.4; up-l2 dispatchers).

Code and text are Status's own, the reason is a ``google.rpc.ErrorInfo`` among the details, the detail another ``Any`` there.
"""

from __future__ import annotations

from typing import Any, Final

from ...errors import BusError, Code
from ...message import Message
from .bodies import ANY, pack, type_name, unpack
from .cloudevents.wire import field, read_fields, varint

_STATUS: Final = "google.rpc.Status"
_ERROR_INFO: Final = "google.rpc.ErrorInfo"
_DOMAIN: Final = field(b"\x12", b"polybus")
_STATUSES: Final = (_STATUS, "uprotocol.v1.UStatus")
"""The document's, and the one that the SDKs answer with, whose fields are the same."""
STATUS_URLS: Final = tuple(f"{where}/{name}".encode() for where in ("type.googleapis.com", "") for name in _STATUSES)
"""Types of a Status, as they stand in an ``Any``."""


def write_status(message: Message) -> bytes:
    """An ``Any`` that says why, of an error or of an end that failed. May raise `EncodeError`: the detail cannot be written."""
    given = message.attributes
    reason, detail = given.get("reason"), given.get("detail")
    data = b"\x08" + varint(int(message.code or Code.UNKNOWN)) + field(b"\x12", str(given.get("text") or "").encode())
    if reason is not None:
        data += field(b"\x1a", pack(_ERROR_INFO, field(b"\n", str(reason).encode()) + _DOMAIN))
    if detail is not None:
        data += field(b"\x1a", ANY.encode(detail))
    return pack(_STATUS, data)


def read_status(data: bytes | None) -> tuple[int, dict[str, Any]] | None:
    """Code and facts of an ``Any`` that holds a Status, or None. May raise `ValueError`: it says that it is one and is none."""
    if data is None or not data[2:].startswith(STATUS_URLS):
        return None
    url, inner = unpack(data)
    if type_name(url) not in _STATUSES:
        return None
    code, facts = 0, {"text": "", "reason": None, "detail": None}
    for number, part in read_fields(inner):
        if number == 1 and isinstance(part, int):
            code = part if part < 2**63 else part - 2**64
        elif number == 2 and isinstance(part, bytes):
            facts["text"] = str(part, "utf-8")
        elif number == 3 and isinstance(part, bytes):
            _add_detail(facts, part)
    return code, facts


def _add_detail(facts: dict[str, Any], data: bytes) -> None:
    url, inner = unpack(data)
    if type_name(url) == _ERROR_INFO and facts["reason"] is None:
        for number, part in read_fields(inner):
            if number == 1 and isinstance(part, bytes):
                facts["reason"] = str(part, "utf-8")
    elif facts["detail"] is None:
        try:
            facts["detail"] = ANY.decode(data)
        except BusError as error:
            raise ValueError(str(error)) from error


def code_of(number: int) -> tuple[Code, str]:
    """The code of a number, and what to say where there is none."""
    try:
        return Code(number), ""
    except ValueError:
        return Code.UNKNOWN, f"UNKNOWN({number}): no google.rpc.Code"
