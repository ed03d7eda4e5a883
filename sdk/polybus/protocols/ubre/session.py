"""One UBRE connection without I/O. There is no handshake, heartbeat or goodbye, so the session only tracks ids."""

from __future__ import annotations

import random
import string
from typing import TYPE_CHECKING, Any, Final

import msgspec

from ...errors import RemoteProtocolError
from ...limits import Limits
from ...message import Kind, Message
from ...plugins import Capabilities, CloseWanted, QuietSession, Refused, SessionEvent, SessionOutput
from .._shared import refusal, too_large
from .members import refuse

if TYPE_CHECKING:
    from .adapter import UbreCodec

_ALPHABET: Final = string.ascii_letters + string.digits
_TOKEN_LENGTH: Final = 10  # 62^10: 59 bits, so that peers behind one relay do not collide and ids cannot be guessed
_PREFIX_LENGTH: Final = _TOKEN_LENGTH + 1
_CAPABILITIES: Final = Capabilities(bare_headers=False, shared_publish=True, announce="client", answers_duplicates=True)
_REQUEST, _NOTIFY, _OPEN = Kind.REQUEST, Kind.NOTIFY, Kind.OPEN
_RESPONSE, _ERROR = Kind.RESPONSE, Kind.ERROR


class UbreSession(QuietSession):
    """Session for one end of a connection. Both ends behave alike.

    Local ids are ``<token>-<n>``. Answers with any other id are rejected (``unknown_id``). The link detects late answers.
    """

    __slots__ = ("_count", "_max_frame", "_prefix", "_read", "_write", "codec", "publication", "tell", "usual")

    capabilities: Capabilities = _CAPABILITIES

    def __init__(self, codec: UbreCodec, limits: Limits, rng: random.Random) -> None:
        self.codec: Final = codec
        self.publication: Final = codec.publication
        self.tell: Final = codec.tell
        self.usual: Final = codec.usual
        self._read = codec.read
        self._write = codec.write
        self._max_frame = limits.message
        self._prefix = "".join(rng.choices(_ALPHABET, k=_TOKEN_LENGTH)) + "-"
        self._count = 0

    def receive(self, frame: bytes, now: float) -> SessionOutput:
        try:
            message = self._read(frame)
            kind = message.kind
            if kind is _RESPONSE or kind is _ERROR:
                id = message.id
                if type(id) is not str or not id.startswith(self._prefix):
                    raise refuse("an answer to an id that this side did not create", "unknown_id")
                if not 0 < int(id[_PREFIX_LENGTH:]) <= self._count:
                    raise refuse("an answer to an id that was never sent", "unknown_id")
            elif kind is _OPEN and str(message.id).startswith(self._prefix):
                # Both ends name a channel by its opener's id, so a peer must not use this side's ids.
                raise refuse("a request with an id that belongs to this side", "invalid_id")
        except RemoteProtocolError as error:
            return self._refuse(error)
        except ValueError:  # from int()
            return self._refuse(refuse("an answer to an id that was never sent", "unknown_id"))
        return message

    def _refuse(self, error: RemoteProtocolError) -> SessionOutput:
        output: list[SessionEvent | bytes] = [Refused(error)]
        if error.answer_id is not None:
            output.append(self._write(refusal(error, error.answer_id), error.answer_id))
        if error.close_code is not None:
            output.append(CloseWanted(error.close_code, error.reason, error))
        return output

    def send(self, message: Message, now: float, peer_key: Any = None) -> tuple[str | None, bytes]:
        """Return the frame of a message, and the new id if the message is a request, notification or open."""
        kind = message.kind
        key = None
        if kind is _REQUEST or kind is _NOTIFY or kind is _OPEN:
            self._count = count = self._count + 1
            key = self._prefix + str(count)
            frame = self._write(message, key)
        else:
            frame = self._write(message, message.id)
        if len(frame) > self._max_frame:
            raise too_large(len(frame), self._max_frame)
        return key, frame


class RawUbreSession(UbreSession):
    """Session with ``body=raw``, whose bodies cannot carry a hello, so the bus doesn't look for polybus peers."""

    __slots__ = ()

    capabilities: Capabilities = msgspec.structs.replace(_CAPABILITIES, extensions=False)


class ShortUbreSession(UbreSession):
    """A session that can also write ordinary requests without a `Message`, using `ask`."""

    __slots__ = ()

    def ask(self, subject: str | int, raw: bytes | None, ttl: float) -> tuple[str, bytes]:
        self._count = count = self._count + 1
        key = f"{self._prefix}{count}"
        frame = self.codec.ask(subject, key, raw, ttl)  # type: ignore[misc]  # otherwise the session has another class
        if len(frame) > self._max_frame:
            raise too_large(len(frame), self._max_frame)
        return key, frame
