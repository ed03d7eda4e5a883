"""Usual payloads of J.REP: one message of few parts, whose value is a plain object or list."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from ....limits import Limits
from ....protocols.jrep.names import CONTROL_SUBJECTS, ERRORS_SUFFIX, LOCAL_PREFIX, REPLY_SUFFIX
from .bodies import JSON_TYPE, decode, is_shallow

_LONG: Final = 16 * 1024
_LONGEST_TTL: Final = 1 << 40
_REPLY: Final = -len(REPLY_SUFFIX)
_ERRORS: Final = -len(ERRORS_SUFFIX)


class _Usual(Struct, gc=False, forbid_unknown_fields=True):
    ToSubject: str
    ReplyTo: str | None = None
    ErrorTo: str | None = None
    Value: Raw = Raw()
    PolybusTtl: Any = None


_usual: Final = msgspec.json.Decoder(list[_Usual]).decode


def jrep_reader(limits: Limits) -> Callable[[bytes], list[Any] | None]:
    """A reader of requests, good answers and publications."""
    longest, depth = limits.subject // 4, 2 * limits.depth + 2

    def read(frame: bytes) -> list[Any] | None:
        if len(frame) > _LONG or not is_shallow(frame, depth):
            return None
        try:
            (said,) = _usual(frame)
            data = bytes(said.Value) or None
            # What may be marked, or hold something that is, is a value of Java.
            if data is not None and (type(decode(data)) not in _PLAIN or b"EncodedType" in data or b"\\u" in data):
                return None
        except (ValueError, RecursionError):
            return None
        if data is not None and not is_shallow(data, limits.depth):
            return None
        subject, reply, error, ttl = said.ToSubject, said.ReplyTo, said.ErrorTo, said.PolybusTtl
        if not 0 < len(subject) <= longest or not subject.isprintable() or subject in CONTROL_SUBJECTS:
            return None
        if subject[:6] == LOCAL_PREFIX or subject[_ERRORS:] == ERRORS_SUFFIX:
            return None
        media = None if data is None else JSON_TYPE
        if reply is not None:
            if subject[-4:] == ":RPC" or not 0 < len(reply) <= longest or (error is not None and not 0 < len(error) <= longest):
                return None
            if ttl is not None and (type(ttl) is not int or not 0 <= ttl < _LONGEST_TTL):
                return None
            key = reply.removesuffix(REPLY_SUFFIX)
            return ["request", subject, None, None, media, None, data, key, None, None, ttl, None, reply, "", None, None]
        if ttl is not None:
            return None
        if subject[_REPLY:] != REPLY_SUFFIX:
            return ["publish", subject, None, None, media, None, data, None, None, None, None, None, None, "", None, None]
        name, _, id = subject[:_REPLY].rpartition(":")
        asked, key = name or None, f"{name}:{id}"
        return ["response", asked, None, None, media, None, data, key, 0, "OK", None, None, None, "", None, None]

    return read


_PLAIN: Final = (dict, list)
