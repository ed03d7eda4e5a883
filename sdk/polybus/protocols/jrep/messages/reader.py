"""Makes messages of payloads: an array of objects whose members are the parts (document, "Payload Structure").

Reading is in two steps. The usual messages have few parts, and one pass over the payload decodes them all at once, with other
parts forbidden. What does not fit is read again, message by message and part by part, so that one bad message costs no other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import Raw, Struct

from ...._util.json_arrays import LONG, cut, joined
from ....body import check_json
from ....errors import RemoteProtocolError
from ....limits import Limits
from ....message import Kind, Message
from ..formats import ErraiFormat
from ..names import CONTROL_SUBJECTS, ERRORS_SUFFIX, LOCAL_PREFIX, REPLY_SUFFIX
from .checks import read_ttl, refuse, refuse_json
from .part_reader import PartReader, answered_by, too_large, tunnelled
from .payloads import told_apart

_REQUEST, _RESPONSE, _PUBLISH, _ITEM = Kind.REQUEST, Kind.RESPONSE, Kind.PUBLISH, Kind.ITEM
_REPLY_LENGTH: Final = len(REPLY_SUFFIX)
_ERRORS_LENGTH: Final = len(ERRORS_SUFFIX)


class _Usual(Struct, gc=False, forbid_unknown_fields=True):
    """The parts of most messages."""

    ToSubject: str
    ReplyTo: str | None = None
    ErrorTo: str | None = None
    Value: Raw = Raw()
    PolybusTtl: int | None = None
    PolybusVerb: str | None = None
    PolybusId: str | None = None
    PolybusFrame: Raw = Raw()


_usual: Final = msgspec.json.Decoder(list[_Usual]).decode


class MessageReader(PartReader):
    """Reads both kinds of values; `values` says what becomes of marked ones."""

    def __init__(self, limits: Limits, values: ErraiFormat) -> None:
        super().__init__(limits, values)
        # Around a body are the array and the message; a marker is one more level for each of the body's.
        self._depth = 2 * limits.depth + 2
        self._long = min(LONG, limits.message)
        self._short_frame = min(limits.message, 2 * self._depth)
        # Shorter than this, text is within its limit however many bytes its characters have.
        self._short = limits.subject // 4

    def read(self, frame: bytes) -> Sequence[Message | RemoteProtocolError]:
        """The messages of a payload, errors in place of bad ones. May raise `RemoteProtocolError`: it is none, or too much."""
        if len(frame) > self._long and len(parts := self.cut(frame)) > 1:
            return self._read_parts(parts)
        try:
            if len(frame) > self._short_frame or not frame.isascii():
                self._check(frame)
            if not self._values.strict:
                try:
                    return [self._message(parts) for parts in _usual(frame)]
                except (ValueError, RemoteProtocolError):
                    pass  # other parts, or a mistake
            return self.read_each(frame)
        except RemoteProtocolError as error:
            error.frame = frame[:200]
            raise
        except (ValueError, RecursionError) as error:
            apart = told_apart(frame) if len(frame) <= self._long else None  # or `cut` has tried that
            if apart is not None:
                return self.read_apart(apart, self._depth - 1)
            refused = refuse_json(error)
            refused.frame = frame[:200]
            refused.reply_id = answered_by(frame) if frame.lstrip()[:1] == b"{" else None
            raise refused from error

    def cut(self, frame: bytes) -> list[bytes]:
        """A long payload as several, so that it need not be read all at once; one of a single message as it is.

        What is no JSON is cut too, where its messages can be told apart.

        Raises:
            RemoteProtocolError: It is too much.
        """
        if len(frame) > self._limits.payload:
            text = f"a payload of {len(frame)} bytes is larger than {self._limits.payload} (limit: payload)"
            raise refuse(text, "too_large", close_code=1009)
        if len(frame) <= self._long:
            return [frame]
        try:
            return cut(frame, self._long)
        except (ValueError, RecursionError):
            apart = told_apart(frame)
            return [frame] if apart is None else joined(apart, self._long)

    def _read_parts(self, parts: list[bytes]) -> Sequence[Message | RemoteProtocolError]:
        """Messages up to the part in which there are more bad ones than a peer may send: then its link ends."""
        messages: list[Message | RemoteProtocolError] = []
        bad = 0
        for part in parts:
            read = self._read_part(part)
            messages += read
            bad += sum(isinstance(message, RemoteProtocolError) for message in read)
            if bad > self._limits.bad_messages:
                break
        return messages

    def _read_part(self, part: bytes) -> Sequence[Message | RemoteProtocolError]:
        try:
            return self.read(part)
        except RemoteProtocolError as error:
            return [error]

    def _check(self, frame: bytes) -> None:
        if len(frame) > self._limits.message:  # of one message, or it would have been cut
            text = frame.strip()
            message = text if text[:1] == b"{" else text[1:-1]
            if len(message) > self._limits.message:
                raise too_large(message, self._limits.message, self._longest)
        check_json(frame, self._depth)

    # -- the usual -------------------------------------------------------------------------------------------------------

    def _message(self, parts: _Usual) -> Message:
        """May raise `RemoteProtocolError`: it is not so usual after all, or wrong."""
        subject = parts.ToSubject
        if not 0 < len(subject) <= self._short or not subject.isprintable() or subject in CONTROL_SUBJECTS:
            raise refuse("to be looked at")
        if subject[:6] == LOCAL_PREFIX or (parts.PolybusTtl is not None and parts.ReplyTo is None):
            raise refuse("to be looked at")
        if parts.PolybusVerb is not None or parts.PolybusId is not None:
            message = self._usual_item(parts)
            if raw := bytes(parts.PolybusFrame):
                message.raw, message.format = tunnelled(raw)
                return message
        elif (reply := parts.ReplyTo) is not None:
            message = self._usual_request(parts, reply)
        elif subject[-_REPLY_LENGTH:] == REPLY_SUFFIX:
            name, _, id = subject[:-_REPLY_LENGTH].rpartition(":")
            message = Message(_RESPONSE, name, id)
        elif subject[-_ERRORS_LENGTH:] == ERRORS_SUFFIX:
            raise refuse("to be looked at")
        else:
            message = Message(_PUBLISH, subject)
            if parts.ErrorTo is not None:
                message.extras = {"ErrorTo": parts.ErrorTo}
        raw = bytes(parts.Value)
        if raw:
            self.set_body(message, raw)
        return message

    def _usual_request(self, parts: _Usual, reply: str) -> Message:
        error = parts.ErrorTo
        if parts.ToSubject[-4:] == ":RPC":  # perhaps an answer that may be answered in turn
            raise refuse("to be looked at")
        if not 0 < len(reply) <= self._short or (error is not None and not 0 < len(error) <= self._short):
            raise refuse("to be looked at")
        message = Message(_REQUEST, parts.ToSubject, (reply, error))
        message.reply_to = reply
        message.extras = {"ReplyTo": reply} if error is None else {"ReplyTo": reply, "ErrorTo": error}
        ttl = parts.PolybusTtl
        if ttl is not None:
            message.ttl = read_ttl(ttl)
        return message

    def _usual_item(self, parts: _Usual) -> Message:
        id = parts.PolybusId
        if parts.PolybusVerb != "item" or id is None or not 0 < len(id) <= self._limits.id // 4 or parts.ReplyTo is not None:
            raise refuse("to be looked at")
        return Message(_ITEM, parts.ToSubject, id)
