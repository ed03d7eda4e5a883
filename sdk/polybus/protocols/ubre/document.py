"""The document's dialect of requests: the only name in a request is its id, so the subject stands in the body."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Raw, Struct


class SubjectInBody(Struct, gc=False, forbid_unknown_fields=True):
    """The body of a request in the document's dialect."""

    subject: str
    body: Raw = Raw()


_subject_in_body: Final = msgspec.json.Decoder(SubjectInBody).decode


def named_in_body(body: bytes | Raw) -> SubjectInBody | None:
    """A body ``{"subject": text, "body": any}``, without further members, in its two parts; None for every other body."""
    try:
        return _subject_in_body(body)
    except (ValueError, RecursionError):
        return None


def with_subject(quoted_subject: bytes, body: bytes | None) -> bytes | None:
    """A JSON body that carries its subject in it. For the subject ``""`` it stays as it is, unless it could be mistaken."""
    if quoted_subject == b'""' and (body is None or not (b'"subject"' in body or b"\\" in body)):
        return body
    if body is None:
        return b'{"subject":%b}' % quoted_subject
    return b'{"subject":%b,"body":%b}' % (quoted_subject, body)
