"""Reads and publishes to existing streams of a NATS network, as if they were stores.

The bus never creates or changes such a stream. For each durable name, it creates a consumer if none exists.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from attrs import define, field

from ...errors import LocalProtocolError
from ...integrations import parts_of
from ...plugins.tools import tokens_overlap
from ...protocols.nats.operations import local_pattern
from .consumers import find_streams
from .dead_letters import OVER, Death, LetterPlace, Letters, LetterWriter
from .jetstream import Advice, EngineLink, JetStream, JetStreamError, StoredPublishing
from .readers import StoreReaders

if TYPE_CHECKING:
    from ... import Bus
    from ...integrations import Link, Services
    from .delivery import Delivery
    from .storage import DurableSpec

logger: logging.Logger = logging.getLogger("polybus.cluster")

_EACH: Final = 2.0  # Seconds until an unconfirmed publication is resent
_KNOWN: Final = 30.0
"""Seconds during which an unconfirmed publication is resent. Streams remember ids for two minutes by default."""
_PATIENCE: Final = 5.0
_LONGEST_REASON: Final = 200
OF_OTHERS: Final = Advice(
    keeps_nothing=(
        "JetStream is not enabled for this user, but durable=, start= and id= require it: enable it in the NATS server "
        "(nats-server -js -sd FOLDER) and in the user's account"
    ),
    no_store="Ask the owner for a stream with this subject; for publications of your own programs, use a Store of a cluster",
    gone="{!r} is not stored: no stream of this NATS network has this subject, or nothing subscribes to it",
    full="the stream has reached a limit set by its owner, or its server or account is full",
    forbidden=(
        "to read a stream, a user publishes to $JS.API.STREAM.NAMES, $JS.API.STREAM.INFO.<stream>, "
        "$JS.API.CONSUMER.INFO.<stream>.*, $JS.API.CONSUMER.MSG.NEXT.<stream>.* and $JS.ACK.<stream>.>; to create its "
        "consumer also to $JS.API.CONSUMER.DURABLE.CREATE.<stream>.*, with start= and no durable= to "
        "$JS.API.CONSUMER.CREATE.<stream>.> and $JS.API.CONSUMER.DELETE.<stream>.*; with dead_letters= "
        "also to $JS.API.STREAM.INFO of the stream of letters, and to their subjects"
    ),
)


@define(eq=False)
class ForeignLetters:
    """Stores dead letters in an external stream. Implements `dead_letters.Graveyard`.

    Without a writer, there is no such stream, and the engine receives the reason for a failure instead.
    """

    _jetstream: JetStream
    _writer: LetterWriter | None
    place: tuple[str, str] | None = field(default=None, init=False)

    async def prepare(self, stream: str) -> None:
        if self._writer is not None:
            prefix = self._writer.prefix
            self.place = await _stream_of_letters(self._jetstream, prefix), prefix

    async def bury(self, delivery: Delivery, spec: DurableSpec, death: Death, now: float) -> tuple[str, str]:
        where = f"{delivery.to.number} of {delivery.stream}"
        if self._writer is None:
            word = f"{OVER} {' '.join(death.reason.split())[:_LONGEST_REASON]}" if self._jetstream.hears_why else OVER
            return f"; it is not redelivered, and without dead_letters= no letter is stored: it was {where}", word
        whole = await self._writer.write(delivery, spec.name, death, now)
        return "" if whole else f"; its letter is incomplete: it was {where}", OVER


async def _stream_of_letters(jetstream: JetStream, prefix: str) -> str:
    """Return the name of the external stream for dead letters. Raises `LocalProtocolError` if the stream does not exist."""
    pattern = f"{prefix}.>"
    try:
        found = await find_streams(jetstream, pattern)
    except JetStreamError as error:
        raise LocalProtocolError(f"the stream for {pattern!r} cannot be found: {error.text}") from None
    if not found.whole:
        raise LocalProtocolError(
            f"dead_letters={prefix!r}: no stream of this NATS network stores all of {pattern!r}: ask the network's owner for "
            "one, or leave out the option"
        )
    return found.whole


async def letters_of(bus: Bus) -> Letters:
    """Return the dead letters of the bus's only link. ``dead_letters=`` in its URL names their external stream."""
    jetstream, publishing = _streams_of(bus)
    parts = parts_of(bus)
    adapter: Any = parts.links.peers[0].link.adapter
    prefix: str = adapter.dead_letters
    stream = await _stream_of_letters(jetstream, prefix)
    place = LetterPlace(f"the stream {stream!r}", stream, prefix, str, ours=False)
    return Letters(place, jetstream, publishing, parts.services.running.time)


def publishing_of(bus: Bus) -> StoredPublishing:
    return _streams_of(bus)[1]


def _streams_of(bus: Bus) -> tuple[JetStream, StoredPublishing]:
    parts = parts_of(bus)
    (peer,) = parts.links.peers
    return _streams(parts.services, peer.link, peer.link.adapter)


def _streams(services: Services, link: EngineLink, adapter: Any) -> tuple[JetStream, StoredPublishing]:
    jetstream = JetStream(link, _PATIENCE, OF_OTHERS, adapter.domain)
    return jetstream, StoredPublishing(services, jetstream, "", _EACH, _KNOWN)


def readers_behind(services: Services, link: Link) -> StoreReaders:
    """Create the readers of the external streams that a link leads to."""
    adapter: Any = link.adapter
    jetstream, publishing = _streams(services, link, adapter)
    letters: str = adapter.dead_letters
    graveyard = ForeignLetters(jetstream, LetterWriter(letters, publishing) if letters else None)

    def published(pattern: str | int) -> str:
        """Convert a pattern to a wire subject. Raises an error if the pattern is not valid or matches its own dead letters."""
        subject = local_pattern(pattern, services.limits.subject)
        if letters and tokens_overlap(subject.split("."), [*letters.split("."), ">"]):
            raise LocalProtocolError(
                f"stored publications of {subject!r} include dead_letters={letters!r}, so a failed dead letter would cause "
                "another one: choose a prefix that the pattern does not match"
            )
        return subject

    return StoreReaders(services, published, publishing, graveyard)
