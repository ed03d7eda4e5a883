"""The engine's own API for what it keeps (NATS documentation, "JetStream wire API Reference"): questions in JSON."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeGuard

import anyio
from attrs import define, frozen

from ...errors import DeadlineExceeded, Disconnected, Forbidden, LocalProtocolError, NoHandler
from ...message import Kind, Message
from ...protocols.nats.stored import ToEngine, api_of

if TYPE_CHECKING:
    from ... import Peer

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
NO_CONSUMER: Final = 10014
"""The same of a consumer."""
_STREAM: Final = re.compile(r"(?:(?![.*>/\\])[!-~]){1,255}")
_NEW: Final = (2, 10)
_HEARS_WHY: Final = (2, 10, 4)
"""The first servers that hear why a publication is not to come again."""
_DISABLED: Final = frozenset((10035, 10039, 10076))
"""JetStream is not enabled: in the server, in the account, in the system."""
_MOST_PAGES: Final = 98
"""Pages of names that are asked for, one after the other: an engine gives 1,024 names on each."""


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


class EngineLink(Protocol):
    """The link to the engine: of a cluster `backbone.Backbone`, to a network of others `foreign.ForeignStreams`."""

    @property
    def peer(self) -> Peer | None:
        """The engine, as the peer of the link; None while there is none."""
        ...


@frozen
class Advice:
    """Texts of errors that say what to do, which depends on whose engine it is.

    Attributes:
        keeps_nothing: It has no JetStream.
        no_store: Behind why no store keeps a pattern, which it has a place for.
        gone: No store keeps a subject that was published, which it has a place for.
        full: Where there is no room.
        forbidden: Behind what the engine does not allow; empty where that says enough.
    """

    keeps_nothing: str
    no_store: str
    gone: str
    full: str
    forbidden: str = ""


OF_CLUSTER: Final = Advice(
    keeps_nothing=(
        "the NATS server of the cluster keeps nothing: start it with JetStream (nats-server -js -sd FOLDER); that of "
        "run(workers=...) keeps stores in the folder that POLYBUS_STORE names"
    ),
    no_store="Name one in Cluster(stores=[Store('orders', {!r})])",
    gone=(
        "{!r} is not stored: the engine has no store for it any more, which was removed or lost. A bus that names it in "
        "Cluster(stores=...) makes it anew when it is entered or comes back to the engine, and `polybus store add` does"
    ),
    full="the store is full (max_bytes=), or what the server or its account may keep",
)


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


def read_answer(answer: Any, advice: Advice) -> dict[str, Any]:
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
        raise LocalProtocolError(f"{advice.keeps_nothing} (it says: {text})")
    raise JetStreamError(number, text, error.get("code"))


@define(eq=False)
class JetStream:
    """Asks an engine about streams."""

    _link: EngineLink
    _patience: float = 5.0
    """Seconds for an answer, however often it is asked."""
    advice: Advice = OF_CLUSTER
    domain: str = ""
    """The domain whose streams they are; empty for that of the server."""

    @property
    def api(self) -> str:
        """The beginning of the subjects where it is asked."""
        return api_of(self.domain)

    @property
    def version(self) -> str:
        """The version of the server, as it says; empty where it does not."""
        peer = self._link.peer
        session: Any = None if peer is None else peer.link.session
        return "" if session is None else str(session.server.version or "")

    @property
    def is_old(self) -> bool:
        """True for a server before 2.10: it drops at times what it has stored where a store is full, and changes what it is to
        make where that is there already."""
        numbers = self._numbers
        return len(numbers) > 1 and numbers < _NEW

    @property
    def hears_why(self) -> bool:
        """True for a server that takes a reason with the word that a publication is not to come again."""
        return self._numbers >= _HEARS_WHY

    @property
    def _numbers(self) -> tuple[int, ...]:
        release = self.version.partition("-")[0].split(".")[:3]
        return tuple(int(digits) for digits in release if digits.isascii() and digits.isdigit())

    async def streams(self, subject: str) -> list[str]:
        """Find the names of the streams that keep what a pattern on the wire matches, or a part of it.

        Raises:
            JetStreamError, LocalProtocolError, Disconnected, Forbidden, DeadlineExceeded: As `ask`.
        """
        return await self._names("STREAM.NAMES", "streams", {"subject": subject})

    async def consumers(self, stream: str) -> list[str]:
        """Find the names of the consumers of a stream.

        Raises:
            JetStreamError, LocalProtocolError, Disconnected, Forbidden, DeadlineExceeded: As `ask`.
        """
        return await self._names(f"CONSUMER.NAMES.{stream}", "consumers", {})

    async def _names(self, word: str, member: str, members: dict[str, Any]) -> list[str]:
        """Ask page by page, and leave out what can be no name."""
        names, read = list[str](), 0
        for _ in range(_MOST_PAGES):
            answer = await self.ask(word, {**members, "offset": read})
            page = answer.get(member)
            page = page if isinstance(page, list) else []
            names += [name for name in page if is_stream_name(name)]
            read += len(page)
            if not page or read >= count_of(answer, "total"):
                break
        return names

    async def ask(self, word: str, members: dict[str, Any] | None = None) -> dict[str, Any]:
        """Ask ``$JS.API.<word>``, or that of a domain; again where servers do not answer that have not found together yet, or
        the link was lost and is to come back.

        Raises:
            JetStreamError: The engine refuses.
            LocalProtocolError: It keeps nothing.
            Disconnected, Forbidden, DeadlineExceeded: It is not there, does not let this bus, or does not answer.
        """
        peer = self._link.peer
        assert peer is not None  # asked for while there is a link, whose peer stays the same when it comes back
        runtime = peer.link.runtime
        removes = ".DELETE." in word  # asked again, what is removed would not be there, or what was made anew would be removed
        end, each = runtime.time() + self._patience, math.inf if removes else _EACH
        while True:
            try:
                answer = await peer.pass_on(_question(self.api + word, members), min(each, max(end - runtime.time(), 0)))
                return read_answer(answer, self.advice)
            except NoHandler:
                elsewhere = f"; nobody answers for the streams of domain={self.domain!r}" if self.domain else ""
                raise LocalProtocolError(f"{self.advice.keeps_nothing}{elsewhere}") from None
            except Forbidden as error:
                if not self.advice.forbidden:
                    raise
                raise Forbidden(f"{error.text}; {self.advice.forbidden}") from None
            except DeadlineExceeded:
                if runtime.time() >= end:
                    raise
            except Disconnected as error:
                if (removes and error.sent) or peer.gone or runtime.time() >= end:
                    raise
                await anyio.sleep(_PAUSE)
            except JetStreamError as error:
                if not error.passes or runtime.time() >= end:
                    raise
                await anyio.sleep(_PAUSE)


def _question(subject: str, members: dict[str, Any] | None) -> Message:
    asked = Message(Kind.REQUEST, subject, attributes={"to": ToEngine()})
    if members is not None:
        asked.decoded = members
    return asked
