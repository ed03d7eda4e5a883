"""Errors as ``google.rpc.Status``, which has the same fields as ``uprotocol.v1.UStatus``.

Code and text are fields of Status; reason (in a ``google.rpc.ErrorInfo``) and detail are in its details.
"""

from __future__ import annotations

from typing import Any, Final

from ...errors import BusError, Code
from ...message import Message
from ...plugins.protobuf import field, read_fields, varint
from .any_body import ANY, pack, type_name, unpack

_ERROR_INFO: Final = "google.rpc.ErrorInfo"
_DOMAIN: Final = field(b"\x12", b"polybus")


def status_of(message: Message) -> bytes:
    """Write the Status of an error or failed end. May raise `EncodeError`: the detail cannot be encoded."""
    given = message.attributes
    reason, detail = given.get("reason"), given.get("detail")
    data = b"\x08" + varint(int(message.code or Code.UNKNOWN)) + field(b"\x12", str(given.get("text") or "").encode())
    if reason is not None:
        data += field(b"\x1a", pack(_ERROR_INFO, field(b"\n", str(reason).encode()) + _DOMAIN))
    if detail is not None:
        data += field(b"\x1a", ANY.encode(detail))
    return data


def facts_of(status: bytes) -> tuple[int, dict[str, Any]]:
    """Code and facts of a Status. May raise `ValueError`: malformed."""
    code, facts = 0, {"text": "", "reason": None, "detail": None}
    for number, part in read_fields(status):
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
    """The code of a number, and a text if the number is unknown."""
    try:
        return Code(number), ""
    except ValueError:
        return Code.UNKNOWN, f"UNKNOWN({number}): no google.rpc.Code"
