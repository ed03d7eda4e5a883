"""Reasons for quarantine: from the error of a codec to the closed list of `schema.QUARANTINE_REASONS`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from ...errors import RemoteProtocolError
from ..schema import FLAG_REDACTED, FLAG_TRUNCATED

_BY_REASON: Final[Mapping[str, str]] = {
    "truncated": "bad_length",
    "unknown_kind": "bad_kind",
    "encoding": "bad_encoding",
    "result": "bad_code",
    **dict.fromkeys(("missing_subject", "missing_part", "missing_attribute"), "missing_field"),
    **dict.fromkeys(("unknown_verb", "unknown_type"), "unknown_type"),
    **dict.fromkeys(("too_large", "too_many_messages"), "too_large"),
    **{reason: reason for reason in ("too_deep", "malformed")},
}
_BY_TEXT: Final = (
    ("trailing bytes", "bad_length"),
    ("is no object", "not_array"),
    ("Expected `array`", "not_array"),
    ("a JSON object, not", "bad_json"),
    ("JSON", "bad_json"),
    ("CloudEvent", "bad_protobuf"),
    ("not a UMessage", "bad_protobuf"),
    ("google.protobuf", "bad_protobuf"),
    ("google.rpc.Status", "bad_protobuf"),
    ("base64", "bad_encoding"),
    ("ambiguous", "bad_field"),
)


def reason_of(error: RemoteProtocolError, flags: int = 0) -> str:
    """The word for an error, given the flags of the row: a frame that the recorder has cut or blanked is not at fault."""
    if flags & FLAG_TRUNCATED:
        return "truncated"
    if flags & FLAG_REDACTED:
        return "redacted"
    text = str(error)
    if " bytes of a header" in text:
        return "short_frame"
    if isinstance(error.__cause__, UnicodeDecodeError) or "UTF-8" in text or "utf-8" in text:
        return "bad_text"
    known = _BY_REASON.get(error.reason)
    if known == "bad_encoding" and "JSON" in text:
        return "bad_json"
    if known == "bad_encoding" and "too deeply" in text:
        return "too_deep"
    if known not in (None, "malformed"):
        return str(known)
    if isinstance(error.__cause__, msgspec.DecodeError) and not isinstance(error.__cause__, msgspec.ValidationError):
        return "bad_json"
    for words, reason in _BY_TEXT:
        if words in text:
            return reason
    if getattr(error, "rule", None) is not None:
        return "missing_field" if "is missing" in text else "unknown_type" if error.text.startswith("type ") else "bad_field"
    return "malformed" if known else "bad_field"
