"""Recording and decoding of UBRE frames."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import Raw

from ...protocols.ubre.binary_format import HEADER
from .shared import encode, objects_in

_BODY: Final = re.compile("body|headers|data|text|detail")


def without_body(frame: bytes, options: Mapping[str, Any], cut: bool) -> bytes:
    if frame[:1] in (b"{", b" ", b"\t", b"\r", b"\n"):
        (kept,) = objects_in(frame, cut, _BODY)
        body = kept.pop("body", None)
        for name in ("data", "text", "detail"):
            kept.pop(name, None)
        if "request" in kept and "id" not in kept:  # the document's dialect: a subject inside
            value = None if body is None else msgspec.json.decode(bytes(body))
            subject = value.get("subject", "") if isinstance(value, dict) else ""
            if cut and not (subject and options.get("dialect") == "spec"):
                raise ValueError("its id or subject may have been cut off")
            if body is not None:
                kept["body"] = Raw(encode({"subject": subject}))
        return encode(kept)
    letter, name_length, _ = HEADER.unpack_from(frame)
    text = frame[7 : 7 + name_length]
    if len(text) != name_length:
        raise ValueError("cut off")
    return HEADER.pack(letter, name_length, 0) + text
