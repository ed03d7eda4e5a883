"""The engine's own API for what it keeps (NATS documentation, "JetStream wire API Reference"): questions in JSON."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, TypeGuard

import anyio
from attrs import define

from ...errors import DeadlineExceeded, LocalProtocolError, NoHandler
from ...message import Kind, Message
from ...plugins import ToEngine

if TYPE_CHECKING:
    from ..membership import Membership

NANOSECONDS: Final = 1_000_000_000
"""In a second: the engine writes times so."""
_EACH: Final = 2.0
"""Seconds for an answer, after which it is asked again: servers that have no leader yet are silent."""
_PAUSE: Final = 0.25
_UNAVAILABLE: Final = 503
_NOT_STORED: Final = 10077
"""The number of an error whose text says why: a limit, or a store that is about to be closed."""
_FULL: Final = frozenset((10002, 10023, 10028, 10047, 10122))
"""Numbers of errors: no room."""
_PASSING: Final = frozenset((10008, 10009, 10158, 10167))
"""Numbers of errors: no leader yet, the same id is being stored, too many at once."""
NOT_FOUND: Final = 10059
"""The number of an error: there is no such stream."""
KEEPS_NOTHING: Final = (
    "the NATS server of the cluster keeps nothing: start it with JetStream (nats-server -js -sd FOLDER); that of "
    "run(workers=...) keeps stores in the folder that POLYBUS_STORE names"
)
_STREAM: Final = re.compile(r"(?:(?![.*>/\\])[!-~]){1,255}")
_NEW: Final = [2, 10]
_DISABLED: Final = frozenset((10035, 10039, 10076))
"""JetStream is not enabled: in the server, in the account, in the system."""


class JetStreamError(Exception):
    """An answer that is an error.

    Attributes:
        number: The engine's number of it (``err_code``).
        text: Its description.
        full: There is no room: in the store, the account or the server.
        passes: It may pass: servers have not found together yet, or are at the same publication.
    """

    def __init__(self, number: int, text: str, code: Any = None) -> None:
        super().__init__(f"{text} ({number})")
        self.number = number
        self.text = text
        self.full: bool = number in _FULL or (number == _NOT_STORED and text.startswith("maximum"))
        self.passes: bool = number in _PASSING or (code == _UNAVAILABLE and not self.full)


def config_of(answer: dict[str, Any]) -> dict[str, Any]:
    """The configuration in an answer that tells of a stream or a consumer; empty where there is none."""
    config = answer.get("config")
    return config if isinstance(config, dict) else {}


def is_stream_name(name: Any) -> TypeGuard[str]:
    """True for what can be the name of a stream: anything else would be another subject."""
    return isinstance(name, str) and _STREAM.fullmatch(name) is not None


def count_of(members: Any, name: str) -> int:
    """A number among the members of an answer; 0 where there is none."""
    value = members.get(name) if isinstance(members, dict) else None
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def read_answer(answer: Any) -> dict[str, Any]:
    """Take the members of an answer.

    Raises:
        JetStreamError: It says that something is wrong, or is no answer.
        LocalProtocolError: The engine keeps nothing.
    """
    if not isinstance(answer, dict):
        raise JetStreamError(0, f"the engine has answered {answer!r:.100}, which is no object")
    error = answer.get("error")
    if not isinstance(error, dict):
        return answer
    number = count_of(error, "err_code")
    text = str(error.get("description") or error)[:500]
    if number in _DISABLED:
        raise LocalProtocolError(f"{KEEPS_NOTHING} (it says: {text})")
    raise JetStreamError(number, text, error.get("code"))


@define(eq=False)
class JetStream:
    """Asks the engine of the cluster about streams."""

    _known: Membership
    _patience: float = 5.0
    """Seconds for an answer, however often it is asked."""

    @property
    def version(self) -> str:
        """The version of the server, as it says; empty where it does not."""
        peer = self._known.peer
        session: Any = None if peer is None else peer.link.session
        return "" if session is None else str(session.server.version or "")

    @property
    def is_old(self) -> bool:
        """True for a server before 2.10: it drops at times what it has stored where a store is full, and changes what it is to
        make where that is there already."""
        numbers = [int(digits) for digits in self.version.split(".")[:2] if digits.isascii() and digits.isdigit()]
        return len(numbers) == 2 and numbers < _NEW

    async def ask(self, word: str, members: dict[str, Any] | None = None) -> dict[str, Any]:
        """Ask ``$JS.API.<word>``, again where servers do not answer that have not found together yet.

        Raises:
            JetStreamError: The engine refuses.
            LocalProtocolError: It keeps nothing.
            Disconnected, Forbidden, DeadlineExceeded: It is not there, does not let this bus, or does not answer.
        """
        peer = self._known.peer
        assert peer is not None  # asked for while there is a link
        runtime = peer.link.runtime
        end = runtime.time() + self._patience
        while True:
            try:
                return read_answer(await peer.pass_on(_question(word, members), min(_EACH, max(end - runtime.time(), 0))))
            except NoHandler:
                raise LocalProtocolError(KEEPS_NOTHING) from None
            except DeadlineExceeded:
                if runtime.time() >= end:
                    raise
            except JetStreamError as error:
                if not error.passes or runtime.time() >= end:
                    raise
                await anyio.sleep(_PAUSE)


def _question(word: str, members: dict[str, Any] | None) -> Message:
    asked = Message(Kind.REQUEST, f"$JS.API.{word}", attributes={"to": ToEngine()})
    if members is not None:
        asked.decoded = members
    return asked
